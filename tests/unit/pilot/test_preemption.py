"""Preemption by RANK: occupied slots are offered, and vacate for better jobs within their retirement time."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.values.attempts import JobHold, Outcome
from pilotage.values.offers import OccupiedSlot, VacateOrder
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.instructions import KillPayload, RequestJobs, StopPayload
from pilotage_pilot.core.model import GrantedJob
from pilotage_pilot.core.policy import Policy
from support.live_slots import SHIPPED
from support.pilot_bench import PilotBench, a_job, slots_under, with_ad

RANK_POLICY = """
NUM_SLOTS = 2
RANK = 10 * (TARGET.IsGood =?= True)
MaxJobRetirementTime = 100
MachineMaxVacateTime = 20
"""


@pytest.fixture
def bench(tmp_path: Path) -> PilotBench:
    return a_node(tmp_path, RANK_POLICY)


def a_node(folder: Path, policy: str) -> PilotBench:
    path = folder / "policy.conf"
    path.write_text(policy)
    return PilotBench(2, 2000, slots=slots_under(path))


def job_in(job_id: int, slot: int, **attributes: bool) -> GrantedJob:
    return with_ad(a_job(job_id, slot=f"slot{slot}", lease_s=1e6), **attributes)


WANTED = VacateOrder("slot1", "bob's job is better")


def occupied(call: RequestJobs) -> dict[str, OccupiedSlot]:
    """Return the occupied slots of a request."""
    return {offer.name: offer.occupied for offer in call.slots if offer.occupied}


def offer_of(bench: PilotBench, *slots: str) -> RequestJobs:
    """Answer requests with nothing until one offers these occupied slots; return it."""
    for _ in range(60):
        bench.answer_recalled()
        for call in bench.take(RequestJobs):
            if occupied(call).keys() >= set(slots):
                return call
            if bench.after_s and call.wait_s:
                bench.pass_time(call.wait_s)
            bench.feed(ev.JobsGranted(call.request_id))
        bench.pass_time(1)
    raise AssertionError(f"{slots} are not offered")


def order(bench: PilotBench) -> None:
    """Answer the next request that offers the first slot with a vacate order."""
    bench.feed(ev.JobsGranted(offer_of(bench, "slot1").request_id, vacate=(WANTED,)))


def test_occupied_slot_is_offered_with_rank_of_its_job(bench: PilotBench) -> None:
    bench.run(job_in(1, 1), job_in(2, 2, IsGood=True))
    call = offer_of(bench, "slot1", "slot2")
    ranks = {name: (slot.key.job_id, slot.rank, slot.ordered) for name, slot in occupied(call).items()}
    assert ranks == {"slot1": (1, 0.0, False), "slot2": (2, 10.0, False)}
    assert [offer.free.cpus for offer in call.slots] == [1, 1], "a better job may use the resources of the present one"
    assert call.wait_s > 0


def test_occupied_slot_without_rank_is_not_offered(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\n")
    bench.run(job_in(1, 1))
    bench.pass_time(5)
    assert {offer.name for call in bench.take(RequestJobs) for offer in call.slots} == {"slot2"}


def test_preempted_job_gets_retirement_time_and_is_evicted(bench: PilotBench) -> None:
    bench.run(job := job_in(1, 1), job_in(2, 2))
    order(bench)
    assert bench.state_and_activity("slot1") == ["Claimed/Retiring"]
    while bench.after_s < 60:
        order(bench)
    assert bench.take(StopPayload) == []
    bench.pass_time(81 - bench.after_s)
    assert bench.one(StopPayload).key == job.key, "its vacate time ends within its retirement"
    bench.pass_time(18)
    assert bench.take(KillPayload) == []
    bench.pass_time(3)
    assert bench.one(KillPayload).key == job.key
    bench.feed(ev.PayloadExited(job.key, None, 9))
    outcome = next(report for report in bench.reports() if report.outcome)
    assert (outcome.key, outcome.outcome, outcome.reason) == (job.key, Outcome.EVICTED, "bob's job is better")
    assert bench.state_and_activity("slot1") == ["Unclaimed/Idle"]


def test_vacated_slot_is_offered_immediately(bench: PilotBench) -> None:
    bench.run(with_ad(a_job(1, slot="slot1"), MaxJobRetirementTime=0), job_in(2, 2))
    order(bench)
    vacated = bench.one(StopPayload)
    bench.feed(ev.PayloadExited(vacated.key, 0, None))
    bench.pass_time(0)
    assert "slot1" in {offer.name for call in bench.take(RequestJobs) for offer in call.slots}


def test_unrepeated_vacate_order_is_withdrawn(bench: PilotBench) -> None:
    bench.run(job_in(1, 1), job_in(2, 2))
    order(bench)
    assert bench.state_and_activity("slot1") == ["Claimed/Retiring"]
    call = offer_of(bench, "slot1")
    assert occupied(call)["slot1"].ordered
    assert call.wait_s == 0, "a request with a retiring slot is no long poll"
    bench.feed(ev.JobsGranted(call.request_id))
    assert bench.state_and_activity("slot1") == ["Claimed/Busy"]
    bench.pass_time(200)
    assert bench.take(StopPayload) == []


def test_vacate_order_is_withdrawn_when_policy_loses_rank(bench: PilotBench) -> None:
    bench.run(job_in(1, 1), job_in(2, 2))
    order(bench)
    bench.feed(ev.PolicyReloaded(Policy({"maxjobretirementtime": "100", "machinemaxvacatetime": "20"})))
    call = offer_of(bench, "slot1")
    assert occupied(call).keys() == {"slot1"}, "only the retiring slot is offered"
    bench.feed(ev.JobsGranted(call.request_id))
    assert bench.state_and_activity("slot1") == ["Claimed/Busy"]


def test_new_job_delays_offer_of_its_slot(bench: PilotBench) -> None:
    bench.run(job_in(1, 1), job_in(2, 2))
    bench.pass_time(0.9)
    assert bench.take(RequestJobs) == []
    bench.pass_time(0.2)
    assert occupied(bench.one(RequestJobs)).keys() == {"slot1", "slot2"}


def test_answer_that_requests_ad_parts_withdraws_no_vacate_order(bench: PilotBench) -> None:
    bench.run(job_in(1, 1), job_in(2, 2))
    order(bench)
    call = offer_of(bench, "slot1")
    bench.feed(ev.JobsGranted(call.request_id, ad_parts_wanted=call.slots[0].ad_parts))
    assert bench.state_and_activity("slot1") == ["Claimed/Retiring"]


def test_answer_with_node_attributes_withdraws_no_vacate_order(bench: PilotBench) -> None:
    bench.run(job_in(1, 1), job_in(2, 2))
    order(bench)
    call = offer_of(bench, "slot1")
    bench.feed(ev.JobsGranted(call.request_id, node_attributes=ev.NodeAttributes(1, {})))
    assert bench.state_and_activity("slot1") == ["Claimed/Retiring"]


def test_vacate_order_is_rechecked_about_every_ten_seconds(bench: PilotBench) -> None:
    bench.run(job_in(1, 1), job_in(2, 2))
    order(bench)
    offers = 0
    for _ in range(60):
        bench.pass_time(1)
        bench.answer_recalled()
        for call in bench.take(RequestJobs):
            offers += "slot1" in occupied(call)
            bench.feed(ev.JobsGranted(call.request_id, vacate=(WANTED,)))
    assert 5 <= offers <= 7


def test_vacate_order_for_ended_job_does_nothing(bench: PilotBench) -> None:
    bench.run(ended := job_in(1, 1), job_in(2, 2))
    call = offer_of(bench, "slot1")
    bench.exit(ended)
    bench.feed(ev.OutputStored(ended.key))
    bench.feed(ev.JobsGranted(call.request_id, vacate=(WANTED,)))
    assert bench.outcome(ended) is Outcome.EXITED
    assert bench.state_and_activity("slot2") == ["Claimed/Busy"]


def test_job_evicted_by_want_hold_reports_hold(tmp_path: Path) -> None:
    bench = a_node(
        tmp_path,
        """
        NUM_SLOTS = 2
        PREEMPT = time() - EnteredCurrentActivity > 50
        WANT_HOLD = True
        WANT_HOLD_REASON = "it ran too long"
        WANT_HOLD_SUBCODE = 7
        """,
    )
    bench.run(job := job_in(1, 1))
    bench.pass_time(56)
    bench.feed(ev.PayloadExited(job.key, None, 15))
    report = next(report for report in bench.reports() if report.outcome)
    assert (report.outcome, report.hold) == (Outcome.EVICTED, JobHold("it ran too long", 7))


def test_batch_job_preempts_other_job_on_bologna_server() -> None:
    bench = PilotBench(2, 4000, slots=slots_under(SHIPPED / "bologna.conf"))
    bench.run(other := job_in(1, 1))
    call = offer_of(bench, "slot1")
    assert occupied(call)["slot1"].rank == 0.0
    bench.feed(ev.JobsGranted(call.request_id, vacate=(WANTED,)))
    bench.pass_time(6)
    assert bench.one(StopPayload).key == other.key
    bench.feed(ev.PayloadExited(other.key, None, 15))
    short = with_ad(a_job(2, slot="slot1"), BolognaBatchJob=True, SUBMIT_SITE_DOMAIN="bo.infn.it")
    bench.pass_time(1)
    free = bench.take(RequestJobs)[-1]
    assert "slot1" in {offer.name for offer in free.slots}
    bench.feed(ev.JobsGranted(free.request_id, (short,)))
    assert bench.machine.payloads.slots.of(short.key) is not None
