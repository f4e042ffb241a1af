"""The whole-machine policies beside their published texts: the same answers for both."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.classads.library import Expression
from support.live_slots import CLAIMED, NOW_S, SHIPPED, SINGLE, Job, PolicyBench, bench_of, either

WHOLE: Job = {"RequiresWholeMachine": True, "RequestCpus": 8}
SINGLES = tuple(range(1, 9))


@pytest.fixture(params=either(("ours", "whole-machine.conf"), ("theirs", "whole_machine_suspend_wm.conf")))
def whole(request: pytest.FixtureRequest, shared_data: Path) -> PolicyBench:
    return bench_of(request, shared_data, cpus=8)


@pytest.fixture(
    params=either(("ours", "whole-machine-suspend-single.conf"), ("theirs", "whole_machine_suspend_single.conf"))
)
def whole_suspending_singles(request: pytest.FixtureRequest, shared_data: Path) -> PolicyBench:
    return bench_of(request, shared_data, cpus=8)


@pytest.fixture(params=either(("ours", "whole-machine-kick.conf"), ("theirs", "whole_machine_kick.conf")))
def whole_kicking(request: pytest.FixtureRequest, shared_data: Path) -> PolicyBench:
    return bench_of(request, shared_data, cpus=8)


@pytest.fixture(params=either(("ours", "whole-machine-sticky.conf"), ("theirs", "whole_machine_sticky.conf")))
def whole_sticky(request: pytest.FixtureRequest, shared_data: Path) -> PolicyBench:
    return bench_of(request, shared_data, cpus=8)


def test_whole_machine_lays_out_one_slot_per_core_and_one_of_all(whole: PolicyBench) -> None:
    slots = whole.loaded.layout.slots
    assert [slot.amounts.cpus for slot in slots] == [1] * 8 + [8]
    assert [slot.amounts.memory_mib for slot in slots] == [2006] * 8 + [16054]


def test_whole_machine_1_the_slot_of_all_shows_as_owner_while_idle(whole: PolicyBench) -> None:
    assert [whole.value("IS_OWNER", slot) for slot in (*SINGLES, 9)] == [False] * 8 + [True]


def test_whole_machine_2_each_kind_of_job_has_its_slots(whole: PolicyBench) -> None:
    assert [whole.value("START", slot, SINGLE) for slot in (*SINGLES, 9)] == [True] * 8 + [False]
    assert [whole.value("START", slot, WHOLE) for slot in (*SINGLES, 9)] == [False] * 8 + [True]


def test_whole_machine_3_no_single_starts_once_the_machine_is_claimed(whole: PolicyBench) -> None:
    for slot in SINGLES:
        values = whole.values(slot, SINGLE, slot9_State=CLAIMED)
        assert values["START"].value is False
        assert values["SUSPEND"].value is False
        assert values["PREEMPT"].value is False
        assert whole.value("IS_OWNER", slot, slot9_State=CLAIMED) is True


def test_whole_machine_4_and_5_its_job_waits_suspended_for_the_last_single(whole: PolicyBench) -> None:
    waiting = whole.values(9, WHOLE, State=CLAIMED, slot3_State=CLAIMED)
    assert [waiting[name].value for name in ("WANT_SUSPEND", "SUSPEND", "CONTINUE")] == [True, True, False]
    alone = whole.values(9, WHOLE, State=CLAIMED)
    assert [alone[name].value for name in ("WANT_SUSPEND", "SUSPEND", "CONTINUE")] == [False, False, True]


def test_whole_machine_6_a_kept_claim_of_a_single_counts(whole: PolicyBench) -> None:
    assert whole.value("SUSPEND", 9, WHOLE, State=CLAIMED, slot1_State=CLAIMED, slot1_Activity="Idle") is True


def test_whole_machine_7_variant_suspends_singles_instead(whole_suspending_singles: PolicyBench) -> None:
    policy = whole_suspending_singles
    suspended = policy.values(3, SINGLE, State=CLAIMED, slot9_State=CLAIMED)
    assert [suspended[name].value for name in ("WANT_SUSPEND", "SUSPEND", "CONTINUE")] == [True, True, False]
    resumed = policy.values(3, SINGLE, State=CLAIMED, slot9_State="Owner")
    assert [resumed[name].value for name in ("WANT_SUSPEND", "SUSPEND", "CONTINUE")] == [False, False, True]
    assert policy.value("SUSPEND", 9, WHOLE, State=CLAIMED, slot1_State=CLAIMED) is False


def test_whole_machine_8_variant_lets_singles_run_for_a_day_and_then_kicks_them(whole_kicking: PolicyBench) -> None:
    single = whole_kicking.values(3, SINGLE, State=CLAIMED, slot9_State=CLAIMED)
    assert single["PREEMPT"].value is True
    assert single["MaxJobRetirementTime"].value == 86400
    assert whole_kicking.value("PREEMPT", 3, SINGLE, State=CLAIMED) is False
    whole = whole_kicking.values(9, WHOLE, State=CLAIMED, slot3_State=CLAIMED)
    assert (whole["PREEMPT"].value, whole["SUSPEND"].value) == (False, True)


@pytest.mark.parametrize(("ago", "starts"), [(0, False), (600, False), (601, True)])
def test_whole_machine_9_variant_keeps_singles_away_for_ten_minutes(
    whole_sticky: PolicyBench, ago: int, starts: bool
) -> None:
    seen = {"LastHeardFrom": NOW_S, "slot9_EnteredCurrentState": NOW_S - ago}
    assert whole_sticky.value("START", 1, SINGLE, **seen) is starts
    assert whole_sticky.value("START", 9, WHOLE, **seen) is True


def test_whole_machine_9_nothing_is_kept_away_where_the_times_are_not_known(whole_sticky: PolicyBench) -> None:
    assert whole_sticky.value("START", 1, SINGLE) is True
    unknown = Expression("undefined")
    assert whole_sticky.value("START", 1, SINGLE, LastHeardFrom=NOW_S, slot9_EnteredCurrentState=unknown) is True


def test_our_whole_machine_counts_as_many_slots_as_the_node_has() -> None:
    many = PolicyBench(SHIPPED / "whole-machine.conf", cpus=64)
    assert len(many.loaded.layout.slots) == 65
    assert many.value("SUSPEND", 65, WHOLE, State=CLAIMED, slot64_State=CLAIMED) is True
    assert many.value("SUSPEND", 65, WHOLE, State=CLAIMED) is False
