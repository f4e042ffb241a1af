"""The policies of Bologna's batch servers and ALICE servers: shipped and published texts give equal values."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilotage.classads.library import AdValue
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.policy import JOB_ATTRIBUTES
from pilotage_pilot.node.node import ActivityMeter
from support.live_slots import (
    CLAIMED,
    NOW_S,
    SHIPPED,
    Job,
    LiveSlots,
    PolicyBench,
    bench_of,
    job_ad,
    policy_params,
)

HOUR = 3600
BB: Job = {"BolognaBatchJob": True, "SUBMIT_SITE_DOMAIN": "bo.infn.it"}
SHORT: Job = BB
LONG: Job = {**BB, "LongRunningJob": True}
ALICE: Job = {**LONG, "App": "ALICE"}
OTHER: Job = {"SUBMIT_SITE_DOMAIN": "bo.infn.it"}
SHORT_SLOTS, LONG_SLOTS = (1, 2), (3, 4, 5, 6)
ALICE_SLOTS = (3, 4)


@pytest.fixture(params=policy_params(("shipped", "bologna.conf"), ("published", "bologna_1_9.conf")))
def bologna(request: pytest.FixtureRequest, shared_data: Path) -> PolicyBench:
    return bench_of(request, shared_data, cpus=2)


@pytest.fixture(params=policy_params(("shipped", "bologna-alice.conf"), ("published", "bologna_alice.conf")))
def alice(request: pytest.FixtureRequest, shared_data: Path) -> PolicyBench:
    return bench_of(request, shared_data, cpus=2)


@pytest.fixture(params=policy_params(("shipped", "whole-machine.conf"), ("published", "whole_machine_suspend_wm.conf")))
def whole(request: pytest.FixtureRequest, shared_data: Path) -> PolicyBench:
    return bench_of(request, shared_data, cpus=8)


@pytest.mark.parametrize(
    ("kind", "starts_in"),
    [(SHORT, SHORT_SLOTS), (LONG, LONG_SLOTS), (OTHER, SHORT_SLOTS)],
    ids=["R6c short", "R6c long", "R6c other"],
)
def test_bologna_each_kind_of_job_has_its_slots(bologna: PolicyBench, kind: Job, starts_in: tuple[int, ...]) -> None:
    for slot in (*SHORT_SLOTS, *LONG_SLOTS):
        assert bologna.value("START", slot, kind) is (slot in starts_in), slot


@pytest.mark.parametrize(
    "job",
    [
        {**SHORT, "SUBMIT_SITE_DOMAIN": "mi.infn.it"},
        {**SHORT, "SUBMIT_SITE_DOMAIN": "BO.INFN.IT"},
        {"BolognaBatchJob": True},
        {**SHORT, "JobUniverse": 1},
        {**SHORT, "BolognaBatchJob": "true"},
        {**SHORT, "BolognaBatchJob": 1},
    ],
    ids=["R2 domain", "R2 case", "R2 none", "R3a universe", "text", "number"],
)
def test_bologna_incomplete_batch_job_counts_as_other_job(bologna: PolicyBench, job: Job) -> None:
    assert bologna.value("START", 1, job) is True
    assert bologna.value("START", 1, job, LoadAvg=3.0, TotalLoadAvg=3.0) is False
    assert bologna.value("START", 3, {**job, "LongRunningJob": True}) is False
    assert bologna.value("RANK", 1, job) is False


@pytest.mark.parametrize(
    "busy",
    [{"LoadAvg": 0.3, "TotalLoadAvg": 0.3}, {"KeyboardIdle": 900}, {"TotalCondorLoadAvg": 1.01}],
    ids=["load", "keyboard", "condor"],
)
def test_bologna_r4a_only_batch_jobs_start_on_busy_machine(bologna: PolicyBench, busy: dict[str, float]) -> None:
    assert bologna.value("START", 1, SHORT, **busy) is True
    assert bologna.value("START", 3, LONG, **busy) is True
    assert bologna.value("START", 1, OTHER, **busy) is False


@pytest.mark.parametrize("policy", ["bologna.conf", "bologna-alice.conf"])
@pytest.mark.parametrize(
    ("load", "idle_s", "starts"),
    [("3.50", 2 * HOUR, False), ("2.00", 2 * HOUR, False), ("0.00", 5, False), ("0.20", 2 * HOUR, True)],
    ids=["load", "two loops", "keyboard", "quiet"],
)
def test_bologna_r4a_other_jobs_depend_on_what_the_node_measures(
    tmp_path: Path, policy: str, load: str, idle_s: int, starts: bool
) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/loadavg").write_text(f"{load} 1.00 1.00 3/96 25011\n")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/console").touch()
    os.utime(tmp_path / "dev/console", (NOW_S - idle_s, NOW_S))
    node = LiveSlots.loaded(SHIPPED / policy, Amounts(cpus=2, memory_mib=4000))
    node.ads.sample(ActivityMeter(tmp_path, tmp_path).sample([], NOW_S, node.now.boot_s), node.now)
    assert [node.ads.starts(f"slot{slot}", job_ad(), node.now) for slot in SHORT_SLOTS] == [starts] * 2


def test_bologna_r4b_rank_prefers_batch_jobs(bologna: PolicyBench) -> None:
    assert bologna.value("RANK", 1, SHORT) is True
    assert bologna.value("RANK", 3, LONG) is True
    assert bologna.value("RANK", 1, OTHER) is False


@pytest.mark.parametrize("value", [None, False, "true", 1], ids=repr)
def test_bologna_r5_long_running_job_must_be_exactly_true(bologna: PolicyBench, value: bool | str | int | None) -> None:
    job = BB if value is None else {**BB, "LongRunningJob": value}
    assert bologna.value("START", 1, job) is True
    assert bologna.value("START", 3, job) is False


def test_bologna_r6_start_is_independent_of_other_slots(bologna: PolicyBench) -> None:
    full = {f"slot{slot}_State": CLAIMED for slot in LONG_SLOTS}
    assert bologna.value("START", 1, SHORT, **full) is True
    assert bologna.value("START", 3, LONG, slot1_State=CLAIMED, slot2_State=CLAIMED) is True


@pytest.mark.parametrize(
    ("job", "nice"),
    [(SHORT, 5), (LONG, 15), (OTHER, 15), ({"LongRunningJob": True}, 15)],
    ids=["short", "long", "other", "long other"],
)
def test_bologna_r7_short_jobs_have_lower_nice_value(bologna: PolicyBench, job: Job, nice: int) -> None:
    assert bologna.value("JOB_RENICE_INCREMENT", 1, job) == nice


@pytest.mark.parametrize(("age", "preempted"), [(HOUR, False), (HOUR + 1, True)])
def test_bologna_r8a_short_job_is_preempted_after_one_hour(bologna: PolicyBench, age: int, preempted: bool) -> None:
    busy: dict[str, AdValue] = {"State": CLAIMED, "Activity": "Busy", "EnteredCurrentActivity": NOW_S - age}
    assert bologna.value("PREEMPT", 1, SHORT, **busy) is preempted
    assert bologna.value("PREEMPT", 3, LONG, **busy) is False
    assert bologna.value("PREEMPT", 1, OTHER, **busy) is False
    assert bologna.value("MaxJobRetirementTime", 1, SHORT, **busy) == 0


@pytest.mark.parametrize(("used", "starts"), [(3599.0, True), (3600.0, False), (3601.0, False)])
def test_bologna_r8b_short_job_with_used_hour_does_not_restart(bologna: PolicyBench, used: float, starts: bool) -> None:
    assert bologna.value("START", 1, {**SHORT, "RemoteWallClockTime": used}) is starts
    assert bologna.value("START", 3, {**LONG, "RemoteWallClockTime": used}) is True


def test_bologna_r3b_batch_job_is_never_suspended(bologna: PolicyBench) -> None:
    for job in (SHORT, LONG):
        values = bologna.values(3, job, LoadAvg=9.0, KeyboardIdle=0)
        assert values["WANT_SUSPEND_VANILLA"].value is False
        assert values["SUSPEND"].value is False


@pytest.mark.parametrize(
    ("age", "user_prio", "preempted"),
    [
        (2 * HOUR - 60, 200.0, False),
        (2 * HOUR, 200.0, False),
        (2 * HOUR + 60, 100.0, False),
        (2 * HOUR + 60, 121.0, True),
    ],
)
def test_bologna_r9c_other_job_is_preemptible_after_two_hours(
    bologna: PolicyBench, age: int, user_prio: float, preempted: bool
) -> None:
    candidate = {**OTHER, "SubmittorPrio": 100.0}
    running: dict[str, AdValue] = {"EnteredCurrentState": NOW_S - age, "JobStart": NOW_S - age, "State": CLAIMED}
    assert bologna.value("PREEMPTION_REQUIREMENTS", 1, candidate, RemoteUserPrio=user_prio, **running) is preempted


def test_bologna_r9b_batch_job_is_never_preemptible(bologna: PolicyBench) -> None:
    running: dict[str, AdValue] = {
        "BolognaBatchJob": True,
        "RemoteUserPrio": 1e6,
        "EnteredCurrentState": NOW_S - 9 * HOUR,
    }
    for candidate in (OTHER, SHORT):
        assert bologna.value("PREEMPTION_REQUIREMENTS", 1, {**candidate, "SubmittorPrio": 1.0}, **running) is False


def test_bologna_r9a_shipped_policy_distinguishes_running_job_from_candidate() -> None:
    # In the published text the name falls through to the candidate; rank preemption hides it there.
    shipped = PolicyBench(SHIPPED / "bologna.conf", cpus=2)
    assert shipped.value("PREEMPTION_REQUIREMENTS", 1, SHORT, EnteredCurrentState=NOW_S) is True
    assert shipped.loaded.policy.listed(JOB_ATTRIBUTES) == ("BolognaBatchJob",)


def test_bologna_r1_only_bologna_publishes_batch_server_attribute(bologna: PolicyBench, whole: PolicyBench) -> None:
    assert "BolognaBatchServer" in bologna.loaded.policy.published()
    assert "BolognaBatchServer" not in whole.loaded.policy.published()


def test_shipped_bologna_has_six_single_core_slots() -> None:
    layout = PolicyBench(SHIPPED / "bologna.conf", cpus=2).loaded.layout
    assert [(slot.key.type_id, slot.amounts.cpus) for slot in layout.slots] == [(1, 1), (1, 1), *[(2, 1)] * 4]


def test_alice_r11_alice_jobs_start_regardless_of_other_jobs(alice: PolicyBench) -> None:
    full = {f"{kind}{slot}_State": CLAIMED for slot in SHORT_SLOTS for kind in ("vm", "slot")}
    for slot in ALICE_SLOTS:
        assert alice.value("START", slot, ALICE, LoadAvg=5.0, KeyboardIdle=0, **full) is True
    for slot in SHORT_SLOTS:
        assert alice.value("START", slot, ALICE) is False


def test_alice_r12a_other_long_jobs_never_start(alice: PolicyBench) -> None:
    assert [alice.value("START", slot, LONG) for slot in (*SHORT_SLOTS, *ALICE_SLOTS)] == [False] * 4


@pytest.mark.parametrize(("claimed", "starts"), [((), True), ((3,), True), ((2, 3), False), ((3, 4), False)])
def test_alice_r12b_short_jobs_need_under_two_claimed_slots(
    alice: PolicyBench, claimed: tuple[int, ...], starts: bool
) -> None:
    states = {f"{kind}{slot}_State": CLAIMED for slot in claimed for kind in ("vm", "slot")}
    assert alice.value("START", 1, SHORT, **states) is starts
    # The claim of the slot itself does not count.
    assert alice.value("START", 1, SHORT, State=CLAIMED, **states) is starts


def test_alice_other_jobs_need_low_load(alice: PolicyBench) -> None:
    assert alice.value("START", 1, OTHER) is True
    of_this_slot = {"LoadAvg": 0.5, "CondorLoadAvg": 0.5}
    of_the_machine = {"TotalLoadAvg": 0.5, "TotalCondorLoadAvg": 0.5}
    assert alice.value("START", 1, OTHER, **of_this_slot, **of_the_machine) is False
    assert alice.value("START", 1, OTHER, **of_the_machine) is False


@pytest.mark.parametrize(("job", "nice"), [(ALICE, 0), (SHORT, 10), (OTHER, 10)], ids=["alice", "short", "other"])
def test_alice_r13_alice_jobs_have_nice_value_zero(alice: PolicyBench, job: Job, nice: int) -> None:
    assert alice.value("JOB_RENICE_INCREMENT", 3, job) == nice


def test_alice_r10_server_publishes_its_group(alice: PolicyBench) -> None:
    assert alice.loaded.policy.published()["BolognaBatchGroup"] == '"ALICE"'
