"""Shipped policies for whole machines, multicore jobs and fast queues, compared with their published texts."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.classads.library import Expression
from support.live_slots import CLAIMED, NOW_S, SHIPPED, SINGLE, Job, PolicyBench, bench_of, policy_params

FAST: Job = {"FastJob": True}
WHOLE: Job = {"RequiresWholeMachine": True, "RequestCpus": 8}
SINGLES = tuple(range(1, 9))


@pytest.fixture(params=policy_params(("shipped", "whole-machine.conf"), ("published", "whole_machine_suspend_wm.conf")))
def whole(request: pytest.FixtureRequest, shared_data: Path) -> PolicyBench:
    return bench_of(request, shared_data, cpus=8)


@pytest.fixture(
    params=policy_params(
        ("shipped", "whole-machine-suspend-single.conf"), ("published", "whole_machine_suspend_single.conf")
    )
)
def whole_suspending_singles(request: pytest.FixtureRequest, shared_data: Path) -> PolicyBench:
    return bench_of(request, shared_data, cpus=8)


@pytest.fixture(params=policy_params(("shipped", "whole-machine-kick.conf"), ("published", "whole_machine_kick.conf")))
def whole_kicking(request: pytest.FixtureRequest, shared_data: Path) -> PolicyBench:
    return bench_of(request, shared_data, cpus=8)


@pytest.fixture(
    params=policy_params(("shipped", "whole-machine-sticky.conf"), ("published", "whole_machine_sticky.conf"))
)
def whole_sticky(request: pytest.FixtureRequest, shared_data: Path) -> PolicyBench:
    return bench_of(request, shared_data, cpus=8)


def test_whole_machine_has_one_slot_per_core_and_one_large_slot(whole: PolicyBench) -> None:
    slots = whole.loaded.layout.slots
    assert [slot.amounts.cpus for slot in slots] == [1] * 8 + [8]
    assert [slot.amounts.memory_mib for slot in slots] == [2006] * 8 + [16054]


def test_whole_machine_1_large_slot_is_in_owner_state_while_idle(whole: PolicyBench) -> None:
    assert [whole.value("IS_OWNER", slot) for slot in (*SINGLES, 9)] == [False] * 8 + [True]


def test_whole_machine_2_each_kind_of_job_has_its_slots(whole: PolicyBench) -> None:
    assert [whole.value("START", slot, SINGLE) for slot in (*SINGLES, 9)] == [True] * 8 + [False]
    assert [whole.value("START", slot, WHOLE) for slot in (*SINGLES, 9)] == [False] * 8 + [True]


def test_whole_machine_3_claimed_machine_starts_no_single_core_job(whole: PolicyBench) -> None:
    for slot in SINGLES:
        values = whole.values(slot, SINGLE, slot9_State=CLAIMED)
        assert values["START"].value is False
        assert values["SUSPEND"].value is False
        assert values["PREEMPT"].value is False
        assert whole.value("IS_OWNER", slot, slot9_State=CLAIMED) is True


def test_whole_machine_4_and_5_whole_job_is_suspended_until_singles_end(whole: PolicyBench) -> None:
    waiting = whole.values(9, WHOLE, State=CLAIMED, slot3_State=CLAIMED)
    assert [waiting[name].value for name in ("WANT_SUSPEND", "SUSPEND", "CONTINUE")] == [True, True, False]
    alone = whole.values(9, WHOLE, State=CLAIMED)
    assert [alone[name].value for name in ("WANT_SUSPEND", "SUSPEND", "CONTINUE")] == [False, False, True]


def test_whole_machine_6_idle_claim_of_single_counts(whole: PolicyBench) -> None:
    assert whole.value("SUSPEND", 9, WHOLE, State=CLAIMED, slot1_State=CLAIMED, slot1_Activity="Idle") is True


def test_whole_machine_7_variant_suspends_singles(whole_suspending_singles: PolicyBench) -> None:
    policy = whole_suspending_singles
    suspended = policy.values(3, SINGLE, State=CLAIMED, slot9_State=CLAIMED)
    assert [suspended[name].value for name in ("WANT_SUSPEND", "SUSPEND", "CONTINUE")] == [True, True, False]
    resumed = policy.values(3, SINGLE, State=CLAIMED, slot9_State="Owner")
    assert [resumed[name].value for name in ("WANT_SUSPEND", "SUSPEND", "CONTINUE")] == [False, False, True]
    assert policy.value("SUSPEND", 9, WHOLE, State=CLAIMED, slot1_State=CLAIMED) is False


def test_whole_machine_8_variant_preempts_singles_after_a_day(whole_kicking: PolicyBench) -> None:
    single = whole_kicking.values(3, SINGLE, State=CLAIMED, slot9_State=CLAIMED)
    assert single["PREEMPT"].value is True
    assert single["MaxJobRetirementTime"].value == 86400
    assert whole_kicking.value("PREEMPT", 3, SINGLE, State=CLAIMED) is False
    whole = whole_kicking.values(9, WHOLE, State=CLAIMED, slot3_State=CLAIMED)
    assert (whole["PREEMPT"].value, whole["SUSPEND"].value) == (False, True)


@pytest.mark.parametrize(("ago", "starts"), [(0, False), (600, False), (601, True)])
def test_whole_machine_9_variant_delays_singles_for_ten_minutes(
    whole_sticky: PolicyBench, ago: int, starts: bool
) -> None:
    times = {
        "LastHeardFrom": NOW_S,
        "slot9_EnteredCurrentState": NOW_S - ago,
        "slot9_LastClaimEnd": NOW_S - ago,
    }
    assert whole_sticky.value("START", 1, SINGLE, **times) is starts
    assert whole_sticky.value("START", 9, WHOLE, **times) is True


def test_whole_machine_9_unknown_times_delay_nothing(whole_sticky: PolicyBench) -> None:
    assert whole_sticky.value("START", 1, SINGLE) is True
    unknown = Expression("undefined")
    assert whole_sticky.value("START", 1, SINGLE, LastHeardFrom=NOW_S, slot9_EnteredCurrentState=unknown) is True


def test_shipped_whole_machine_covers_all_slots_of_node() -> None:
    large = PolicyBench(SHIPPED / "whole-machine.conf", cpus=64)
    assert len(large.loaded.layout.slots) == 65
    assert large.value("SUSPEND", 65, WHOLE, State=CLAIMED, slot64_State=CLAIMED) is True
    assert large.value("SUSPEND", 65, WHOLE, State=CLAIMED) is False


# Multicore drain ------------------------------------------------------------------------------------------------------


@pytest.fixture(params=policy_params(("shipped", "multicore-drain.conf"), ("published", "fallow.conf")))
def draining(request: pytest.FixtureRequest, shared_data: Path) -> PolicyBench:
    return bench_of(request, shared_data, cpus=8)


@pytest.mark.parametrize("value", [False, "True", 1], ids=repr)
def test_multicore_drain_starts_any_job_by_default(draining: PolicyBench, value: bool | str | int) -> None:
    for cpus in (1, 4, 8, 16):
        assert draining.value("START", 1, {"RequestCpus": cpus}, OnlyMulticore=value) is True


@pytest.mark.parametrize(("cpus", "starts"), [(1, False), (4, False), (8, True), (8.0, False), (16, False)])
def test_multicore_drain_starts_only_eight_core_jobs_when_set(draining: PolicyBench, cpus: float, starts: bool) -> None:
    assert draining.value("START", 1, {"RequestCpus": cpus}, OnlyMulticore=True) is starts


# Fast queue -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def fast() -> PolicyBench:
    return PolicyBench(SHIPPED / "fast-queue.conf", cpus=4)


def test_fast_queue_has_separate_slots_for_fast_jobs(fast: PolicyBench) -> None:
    assert [fast.value("START", slot, FAST) for slot in range(1, 9)] == [False] * 4 + [True] * 4
    assert [fast.value("START", slot, SINGLE) for slot in range(1, 9)] == [True] * 4 + [False] * 4


def test_fast_queue_suspends_only_job_of_same_core(fast: PolicyBench) -> None:
    names = ("WANT_SUSPEND", "SUSPEND", "CONTINUE", "PREEMPT", "KILL")
    suspended = fast.values(2, SINGLE, State=CLAIMED, slot6_Activity="Busy")
    assert [suspended[name].value for name in names] == [True, True, False, False, False]
    other_core = fast.values(3, SINGLE, State=CLAIMED, slot6_Activity="Busy")
    assert [other_core[name].value for name in names] == [False, False, True, False, False]
    resumed = fast.values(2, SINGLE, State=CLAIMED, slot6_Activity="Idle")
    assert [resumed[name].value for name in names] == [False, False, True, False, False]


def test_fast_queue_never_suspends_fast_job(fast: PolicyBench) -> None:
    assert fast.value("SUSPEND", 6, FAST, State=CLAIMED, slot2_Activity="Busy", slot10_Activity="Busy") is False
