"""A pilot with static slots: the whole-machine policy and Bologna's batch servers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pilotage.values.amounts import Amounts
from pilotage.values.attempts import Outcome
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.instructions import (
    ContinuePayload,
    KillPayload,
    PrepareJob,
    RequestJobs,
    StopPayload,
    SuspendPayload,
)
from pilotage_pilot.core.model import GrantedJob
from support.live_slots import SHIPPED
from support.pilot_bench import PilotBench, a_job, slots_under, with_ad

IDLE_SINGLES = ["Unclaimed/Idle"] * 8


def a_node(path: Path) -> PilotBench:
    return PilotBench(8, 16054, slots=slots_under(path))


def single(job_id: int, slot: int) -> GrantedJob:
    return with_ad(a_job(job_id, slot=f"slot{slot}", lease_s=1e6, owner="anna"))


def whole(job_id: int) -> GrantedJob:
    return with_ad(a_job(job_id, cpus=8, slot="slot9", lease_s=1e6, owner="bert"), RequiresWholeMachine=True)


@pytest.fixture(params=["shipped", "published"])
def whole_machine(request: pytest.FixtureRequest, shared_data: Path) -> Path:
    published = shared_data / "policies" / "whole_machine_suspend_wm.conf"
    return SHIPPED / "whole-machine.conf" if request.param == "shipped" else published


def test_all_static_slots_are_offered_even_in_owner_state(whole_machine: Path) -> None:
    bench = a_node(whole_machine)
    assert bench.state_and_activity() == [*IDLE_SINGLES, "Owner/Idle"]
    call = bench.one(RequestJobs)
    assert [(offer.name, offer.partitionable, offer.free.cpus) for offer in call.slots] == [
        *((f"slot{number}", False, 1) for number in range(1, 9)),
        ("slot9", False, 8),
    ]
    assert all(offer.ad_parts and offer.job_ad_wanted for offer in call.slots)


def test_ad_parts_are_sent_once_and_on_request(whole_machine: Path) -> None:
    bench = a_node(whole_machine)
    first = bench.one(RequestJobs)
    used = {key for offer in first.slots for key in offer.ad_parts}
    assert {part.key for part in first.ad_parts} == used
    bench.feed(ev.JobsGranted(first.request_id))
    bench.pass_time(1)
    second = bench.one(RequestJobs)
    assert second.ad_parts == ()
    bench.feed(ev.JobsGranted(second.request_id, ad_parts_wanted=tuple(used)))
    assert {part.key for part in bench.one(RequestJobs).ad_parts} == used


def test_whole_machine_job_is_suspended_until_single_core_jobs_end(whole_machine: Path) -> None:
    bench = a_node(whole_machine)
    singles = [single(1, 1), single(2, 2)]
    bench.run(*singles)
    bench.run(big := whole(3))
    assert bench.state_and_activity("slot9") == ["Claimed/Busy"]
    bench.pass_time(5)
    assert bench.one(SuspendPayload).key == big.key
    assert bench.state_and_activity() == ["Claimed/Busy"] * 2 + ["Owner/Idle"] * 6 + ["Claimed/Suspended"]
    bench.pass_time(100)
    bench.exit(singles[0])
    bench.pass_time(20)
    assert bench.take(ContinuePayload) == []
    bench.exit(singles[1])
    bench.pass_time(6)
    assert bench.one(ContinuePayload).key == big.key
    assert bench.state_and_activity() == ["Owner/Idle"] * 8 + ["Claimed/Busy"]
    bench.pass_time(50)
    bench.exit(big)
    bench.feed(ev.OutputStored(big.key))
    report = next(report for report in bench.reports() if report.key == big.key and report.outcome)
    assert report.suspended_s == pytest.approx(120, abs=10)


def test_single_core_job_is_declined_while_whole_machine_is_claimed(whole_machine: Path) -> None:
    bench = a_node(whole_machine)
    bench.grant(whole(1), late := single(2, 3))
    assert bench.outcome(late) is Outcome.DECLINED
    assert [prepare.job.key.job_id for prepare in bench.take(PrepareJob)] == [1]
    barred = {offer.name: offer.declined_task_queues for offer in bench.one(RequestJobs).slots}
    assert barred["slot3"] == {late.task_queue}


def test_changed_slots_are_offered_in_new_request(whole_machine: Path) -> None:
    bench = a_node(whole_machine)
    bench.run(single(1, 1))
    before = bench.one(RequestJobs)
    assert {offer.name for offer in before.slots} == {f"slot{number}" for number in range(2, 10)}
    bench.exit(single(1, 1))
    bench.feed(ev.OutputStored(single(1, 1).key))
    bench.feed(ev.JobsGranted(before.request_id))
    bench.feed(ev.JobsGranted(bench.take(RequestJobs)[-1].request_id))
    bench.pass_time(2)
    assert {offer.name for offer in bench.take(RequestJobs)[-1].slots} == {f"slot{n}" for n in range(1, 10)}


def test_kick_policy_evicts_single_core_jobs_after_a_day(
    shared_data: Path,
) -> None:
    bench = a_node(shared_data / "policies" / "whole_machine_kick.conf")
    bench.run(old := single(1, 1))
    bench.boot_s += 85_000  # the machine slept
    bench.run(whole(2))
    bench.pass_time(10)
    assert bench.state_and_activity("slot1", "slot9") == ["Claimed/Retiring", "Claimed/Suspended"]
    bench.pass_time(780)
    assert bench.take(StopPayload) == []
    bench.pass_time(20)  # its vacate time of 600 s lies within its retirement
    assert bench.one(StopPayload).key == old.key
    bench.feed(ev.PayloadExited(old.key, None, 15))
    assert bench.outcome(old) is Outcome.EVICTED
    bench.pass_time(6)
    assert bench.state_and_activity("slot1", "slot9") == ["Owner/Idle", "Claimed/Busy"]


@pytest.fixture(params=["shipped", "published"])
def bologna(request: pytest.FixtureRequest, shared_data: Path, tmp_path: Path) -> Path:
    if request.param == "shipped":
        return SHIPPED / "bologna.conf"
    path = tmp_path / "bologna.conf"
    published = (shared_data / "policies" / "bologna_1_9.conf").read_text()
    path.write_text(f"{published}\nNUM_CPUS = 6\nNUM_SLOTS = 6\n")
    return path


def a_server(path: Path) -> PilotBench:
    return PilotBench(2, 4000, slots=slots_under(path))


def batch_job(job_id: int, slot: int, **attributes: bool) -> GrantedJob:
    job = a_job(job_id, slot=f"slot{slot}", lease_s=1e6)
    return with_ad(job, SUBMIT_SITE_DOMAIN="bo.infn.it", BolognaBatchJob=True, **attributes)


def test_short_job_is_vacated_after_one_hour(bologna: Path) -> None:
    bench = a_server(bologna)
    bench.run(job := batch_job(1, 1))
    bench.pass_time(3600)
    assert bench.take(StopPayload) == []
    assert bench.state_and_activity("slot1") == ["Claimed/Busy"]
    bench.pass_time(5)
    assert bench.one(StopPayload).key == job.key
    assert bench.state_and_activity("slot1") == ["Preempting/Vacating"]
    bench.pass_time(600)
    assert bench.one(KillPayload).key == job.key
    bench.feed(ev.PayloadExited(job.key, None, 9))
    assert bench.outcome(job) is Outcome.EVICTED
    assert bench.state_and_activity("slot1")[0] in ("Owner/Idle", "Unclaimed/Idle")


def test_policy_sets_nice_value_of_payload(bologna: Path) -> None:
    bench = a_server(bologna)
    bench.grant(batch_job(1, 1), batch_job(2, 3, LongRunningJob=True))
    assert [prepare.nice for prepare in bench.take(PrepareJob)] == [5, 15]


def test_prepared_job_has_machine_ad_and_job_ad(bologna: Path) -> None:
    bench = a_server(bologna)
    bench.grant(job := batch_job(1, 2))
    prepare = bench.one(PrepareJob)
    assert prepare.job_ad == job.job_ad
    assert "SlotID = 2" in prepare.machine_ad


@pytest.mark.parametrize("start", ["TARGET.Nowhere", "1", '"True"', "1 / 0", "TARGET.Good == 1"])
def test_start_that_is_not_true_declines_job(tmp_path: Path, start: str) -> None:
    path = tmp_path / "policy.conf"
    path.write_text(f"NUM_SLOTS = 1\nIS_OWNER = False\nSTART = {start}\n")
    bench = PilotBench(1, 1000, slots=slots_under(path))
    bench.grant(job := with_ad(a_job(1), Good="yes"))
    assert bench.outcome(job) is Outcome.DECLINED


@pytest.mark.parametrize("ad", ["", "no ad at all", "[Good = true", "[Good = ]", '[Good = "true"]', "[Good = 1]"])
def test_job_without_sufficient_ad_is_declined(tmp_path: Path, ad: str) -> None:
    path = tmp_path / "policy.conf"
    path.write_text("NUM_SLOTS = 1\nIS_OWNER = False\nSTART = TARGET.Good\n")
    bench = PilotBench(1, 1000, slots=slots_under(path))
    bench.grant(job := replace(a_job(1), job_ad=ad))
    assert bench.outcome(job) is Outcome.DECLINED
    assert bench.state_and_activity() == ["Unclaimed/Idle"]


def test_declined_task_queue_is_barred_for_five_minutes(tmp_path: Path) -> None:
    path = tmp_path / "policy.conf"
    path.write_text("NUM_SLOTS = 1\nIS_OWNER = False\nSTART = TARGET.Good\n")
    bench = PilotBench(1, 1000, slots=slots_under(path))
    bench.grant(replace(a_job(1), task_queue=5, job_ad="[Good = false]"))
    barred: dict[bool, set[frozenset[int]]] = {True: set(), False: set()}
    for _ in range(310):
        for call in bench.take(RequestJobs):
            barred[bench.after_s < 300].add(call.slots[0].declined_task_queues)
            bench.feed(ev.JobsGranted(call.request_id))
        bench.pass_time(1)
    assert barred == {True: {frozenset({5})}, False: {frozenset()}}


def test_slot_lacks_disk_of_unstored_files(tmp_path: Path) -> None:
    path = tmp_path / "policy.conf"
    path.write_text("NUM_SLOTS = 2\n")
    bench = PilotBench(2, 2000, slots=slots_under(path))
    bench.run(job := with_ad(replace(a_job(1), amounts=Amounts(1, 100, 3000))))
    bench.exit(job)
    assert bench.slot("slot1").free == Amounts(1, 1000, 2000)
    bench.feed(ev.OutputStored(job.key))
    assert bench.slot("slot1").free == Amounts(1, 1000, 5000)


def test_slot_returns_to_owner_when_claim_ends(tmp_path: Path) -> None:
    path = tmp_path / "policy.conf"
    path.write_text("NUM_SLOTS = 1\nSTART = TARGET.Good =?= True\nCLAIM_WORKLIFE = 0\n")
    bench = PilotBench(1, 1000, slots=slots_under(path))
    assert bench.state_and_activity() == ["Owner/Idle"]
    bench.run(job := with_ad(a_job(1), Good=True))
    bench.exit(job)
    assert bench.state_and_activity() == ["Owner/Idle"]


def test_declined_job_reports_start_as_reason(bologna: Path) -> None:
    bench = a_server(bologna)
    bench.grant(long := batch_job(1, 1, LongRunningJob=True))
    assert bench.outcome(long) is Outcome.DECLINED
    assert "START of slot1" in bench.reports()[-1].reason
