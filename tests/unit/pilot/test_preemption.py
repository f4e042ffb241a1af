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

CHOOSY = """
NUM_SLOTS = 2
RANK = 10 * (TARGET.IsGood =?= True)
MaxJobRetirementTime = 100
MachineMaxVacateTime = 20
"""


@pytest.fixture
def choosy(tmp_path: Path) -> PilotBench:
    return a_node(tmp_path, CHOOSY)


def a_node(folder: Path, policy: str) -> PilotBench:
    path = folder / "policy.conf"
    path.write_text(policy)
    return PilotBench(2, 2000, slots=slots_under(path))


def a_run(job_id: int, slot: int, **attributes: bool) -> GrantedJob:
    return with_ad(a_job(job_id, slot=f"slot{slot}", lease_s=1e6), **attributes)


WANTED = VacateOrder("slot1", "bob's job is better")


def occupied(call: RequestJobs) -> dict[str, OccupiedSlot]:
    """Return the occupied slots of a request."""
    return {offer.name: offer.occupied for offer in call.slots if offer.occupied}


def offer_of(bench: PilotBench, *slots: str) -> RequestJobs:
    """Answer requests with nothing until one offers these occupied slots; return it."""
    for _ in range(60):
        bench.answer_taken_back()
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


def test_occupied_slot_is_offered_with_rank_of_its_job(choosy: PilotBench) -> None:
    choosy.run(a_run(1, 1), a_run(2, 2, IsGood=True))
    call = offer_of(choosy, "slot1", "slot2")
    ranks = {name: (slot.key.job_id, slot.rank, slot.ordered) for name, slot in occupied(call).items()}
    assert ranks == {"slot1": (1, 0.0, False), "slot2": (2, 10.0, False)}
    assert [offer.free.cpus for offer in call.slots] == [1, 1], "a better job may use the resources of the present one"
    assert call.wait_s > 0


def test_occupied_slot_without_rank_is_not_offered(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\n")
    bench.run(a_run(1, 1))
    bench.pass_time(5)
    assert {offer.name for call in bench.take(RequestJobs) for offer in call.slots} == {"slot2"}


def test_preempted_job_gets_retirement_time_and_is_evicted(choosy: PilotBench) -> None:
    choosy.run(job := a_run(1, 1), a_run(2, 2))
    order(choosy)
    assert choosy.doing("slot1") == ["Claimed/Retiring"]
    while choosy.after_s < 60:
        order(choosy)
    assert choosy.take(StopPayload) == []
    choosy.pass_time(81 - choosy.after_s)
    assert choosy.one(StopPayload).key == job.key, "its vacate time ends within its retirement"
    choosy.pass_time(18)
    assert choosy.take(KillPayload) == []
    choosy.pass_time(3)
    assert choosy.one(KillPayload).key == job.key
    choosy.feed(ev.PayloadExited(job.key, None, 9))
    outcome = next(report for report in choosy.reports() if report.outcome)
    assert (outcome.key, outcome.outcome, outcome.reason) == (job.key, Outcome.EVICTED, "bob's job is better")
    assert choosy.doing("slot1") == ["Unclaimed/Idle"]


def test_vacated_slot_is_offered_immediately(choosy: PilotBench) -> None:
    choosy.run(with_ad(a_job(1, slot="slot1"), MaxJobRetirementTime=0), a_run(2, 2))
    order(choosy)
    left = choosy.one(StopPayload)
    choosy.feed(ev.PayloadExited(left.key, 0, None))
    choosy.pass_time(0)
    assert "slot1" in {offer.name for call in choosy.take(RequestJobs) for offer in call.slots}


def test_unrepeated_vacate_order_is_withdrawn(choosy: PilotBench) -> None:
    choosy.run(a_run(1, 1), a_run(2, 2))
    order(choosy)
    assert choosy.doing("slot1") == ["Claimed/Retiring"]
    call = offer_of(choosy, "slot1")
    assert occupied(call)["slot1"].ordered
    assert call.wait_s == 0, "a request with a retiring slot is no long poll"
    choosy.feed(ev.JobsGranted(call.request_id))
    assert choosy.doing("slot1") == ["Claimed/Busy"]
    choosy.pass_time(200)
    assert choosy.take(StopPayload) == []


def test_vacate_order_is_withdrawn_when_policy_loses_rank(choosy: PilotBench) -> None:
    choosy.run(a_run(1, 1), a_run(2, 2))
    order(choosy)
    choosy.feed(ev.PolicyReloaded(Policy({"maxjobretirementtime": "100", "machinemaxvacatetime": "20"})))
    call = offer_of(choosy, "slot1")
    assert occupied(call).keys() == {"slot1"}, "only the retiring slot is offered"
    choosy.feed(ev.JobsGranted(call.request_id))
    assert choosy.doing("slot1") == ["Claimed/Busy"]


def test_new_job_delays_offer_of_its_slot(choosy: PilotBench) -> None:
    choosy.run(a_run(1, 1), a_run(2, 2))
    choosy.pass_time(0.9)
    assert choosy.take(RequestJobs) == []
    choosy.pass_time(0.2)
    assert occupied(choosy.one(RequestJobs)).keys() == {"slot1", "slot2"}


def test_answer_that_requests_ad_parts_withdraws_no_vacate_order(choosy: PilotBench) -> None:
    choosy.run(a_run(1, 1), a_run(2, 2))
    order(choosy)
    call = offer_of(choosy, "slot1")
    choosy.feed(ev.JobsGranted(call.request_id, ad_parts_wanted=call.slots[0].ad_parts))
    assert choosy.doing("slot1") == ["Claimed/Retiring"]


def test_answer_with_node_attributes_withdraws_no_vacate_order(choosy: PilotBench) -> None:
    choosy.run(a_run(1, 1), a_run(2, 2))
    order(choosy)
    call = offer_of(choosy, "slot1")
    choosy.feed(ev.JobsGranted(call.request_id, node_attributes=ev.NodeAttributes(1, {})))
    assert choosy.doing("slot1") == ["Claimed/Retiring"]


def test_vacate_order_is_rechecked_about_every_ten_seconds(choosy: PilotBench) -> None:
    choosy.run(a_run(1, 1), a_run(2, 2))
    order(choosy)
    offers = 0
    for _ in range(60):
        choosy.pass_time(1)
        choosy.answer_taken_back()
        for call in choosy.take(RequestJobs):
            offers += "slot1" in occupied(call)
            choosy.feed(ev.JobsGranted(call.request_id, vacate=(WANTED,)))
    assert 5 <= offers <= 7


def test_vacate_order_for_ended_job_does_nothing(choosy: PilotBench) -> None:
    choosy.run(ended := a_run(1, 1), a_run(2, 2))
    call = offer_of(choosy, "slot1")
    choosy.exit(ended)
    choosy.feed(ev.OutputStored(ended.key))
    choosy.feed(ev.JobsGranted(call.request_id, vacate=(WANTED,)))
    assert choosy.outcome(ended) is Outcome.EXITED
    assert choosy.doing("slot2") == ["Claimed/Busy"]


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
    bench.run(job := a_run(1, 1))
    bench.pass_time(56)
    bench.feed(ev.PayloadExited(job.key, None, 15))
    report = next(report for report in bench.reports() if report.outcome)
    assert (report.outcome, report.hold) == (Outcome.EVICTED, JobHold("it ran too long", 7))


def test_batch_job_preempts_other_job_on_bologna_server() -> None:
    bench = PilotBench(2, 4000, slots=slots_under(SHIPPED / "bologna.conf"))
    bench.run(other := a_run(1, 1))
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
