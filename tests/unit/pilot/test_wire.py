"""Conversion of the pilot's requests, heartbeats and reports, and of the server's answers."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from pilotage.v1 import jobs_pb2, matcher_service_pb2
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey, JobHold, Outcome
from pilotage.values.offers import AdPart, OccupiedSlot, SlotOffer, VacateOrder
from pilotage_pilot.core.events import HeartbeatAnswered, JobsGranted, NodeAttributes
from pilotage_pilot.core.instructions import RequestJobs, SendHeartbeat, Slot
from pilotage_pilot.core.model import Now, Report, ReportedState
from pilotage_pilot.core.slots.states import Activity, SlotState
from pilotage_pilot.link.base import NodeDescription
from pilotage_pilot.link.convert import (
    answered_from_wire,
    granted_from_wire,
    heartbeat_to_wire,
    report_to_wire,
    request_to_wire,
)

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)
KEY = AttemptKey(7, 2)
SIZE = Amounts(1, 2000, 10_000)
NODE = NodeDescription("node1", SIZE, attributes={"Policy": "/etc/policy.conf"})


def a_request(offer: SlotOffer, **more: object) -> matcher_service_pb2.RequestJobsRequest:
    return request_to_wire(RequestJobs("r", (offer,), (), 20.0, **more))  # type: ignore[arg-type]


def a_match(job_ad: str = "") -> matcher_service_pb2.Match:
    description = jobs_pb2.JobDescription(executable="/bin/true")
    return matcher_service_pb2.Match(job_id=7, attempt=2, slot="slot2", description=description, job_ad=job_ad)


def test_offer_has_ad_parts_and_changes() -> None:
    offer = SlotOffer("slot2", SIZE, ad_parts=("k1", "k2"), ad_changes="[State = 1]", job_ad_wanted=True)
    request = a_request(offer, ad_parts=(AdPart("k2", "[Start = true]"),), node_attributes_version=4)
    slot = request.slots[0]
    assert (slot.partitionable, list(slot.ad_parts), slot.ad_changes) == (False, ["k1", "k2"], "[State = 1]")
    assert slot.job_ad_wanted
    assert not slot.HasField("claim")
    assert not slot.HasField("occupied")
    assert [(part.key, part.text) for part in request.ad_parts] == [("k2", "[Start = true]")]
    assert request.node_attributes_version == 4


def test_offer_of_occupied_slot_has_claim_and_running_job() -> None:
    claim = Account("lhcb", "user", "ann")
    slot = a_request(SlotOffer("slot2", SIZE, claim=claim, occupied=OccupiedSlot(*KEY, 0.5, ordered=True))).slots[0]
    assert slot.claim == matcher_service_pb2.Account(vo="lhcb", group="user", owner="ann")
    assert slot.occupied == matcher_service_pb2.Occupied(job_id=7, attempt=2, current_rank=0.5, ordered=True)


def test_heartbeat_has_slots_with_times_ads_and_loads() -> None:
    since, since_state = (Now(NOON + timedelta(hours=hours), 5.0) for hours in (1, 0))
    busy = (SlotState.CLAIMED, Activity.BUSY)
    slot = Slot("slot2", *busy, SIZE, Amounts(), since, since_state, KEY, ad="[A = 1]", readings={"LoadAvg": 0.25})
    beat = SendHeartbeat("r", (), (), (slot,), False, node_attributes_version=3, settable=("OnlyMulticore",))
    message = heartbeat_to_wire(beat, NODE)
    assert message.node_attributes_version == 3
    assert list(message.node.settable_attributes) == ["OnlyMulticore"]
    assert message.node.attributes["Policy"].text == "/etc/policy.conf"
    sent = message.node.slots[0]
    assert (sent.state, sent.activity, sent.job_id, sent.attempt, sent.ad) == ("Claimed", "Busy", 7, 2, "[A = 1]")
    assert sent.since.ToDatetime(UTC) - sent.since_state.ToDatetime(UTC) == timedelta(hours=1)
    assert sent.load == sent.attributes["LoadAvg"].number == 0.25


def test_report_carries_hold_request_of_slot() -> None:
    report = Report(KEY, ReportedState.DONE, Outcome.EVICTED, hold=JobHold("too large", 42))
    assert report_to_wire(report).hold == jobs_pb2.HoldWish(reason="too large", subcode=42)
    assert not report_to_wire(Report(KEY, ReportedState.RUNNING)).HasField("hold")


def test_report_of_plugged_job_is_running_with_exit_code() -> None:
    message = report_to_wire(Report(KEY, ReportedState.PLUGGED, exit_code=1, wall_s=3.0))
    assert (message.state, message.plugged, message.exit_code) == (jobs_pb2.JOB_STATE_RUNNING, True, 1)
    assert message.outcome == jobs_pb2.OUTCOME_UNSPECIFIED
    assert not report_to_wire(Report(KEY, ReportedState.RUNNING)).plugged


def test_answer_has_vacate_orders_and_node_attributes() -> None:
    message = matcher_service_pb2.RequestJobsResponse(
        vacate=[matcher_service_pb2.Vacate(slot="slot2", reason="a better job", by_rank=True)],
        ad_parts_wanted=["k1"],
        node_attributes=matcher_service_pb2.NodeAttributes(version=5, expressions={"OnlyMulticore": "true"}),
        matches=[a_match(job_ad="[Owner = 1]")],
    )
    granted = granted_from_wire("r", message)
    assert granted.vacate == (VacateOrder("slot2", "a better job", by_rank=True),)
    assert granted.ad_parts_wanted == ("k1",)
    assert granted.node_attributes == NodeAttributes(5, {"OnlyMulticore": "true"})
    assert [job.job_ad for job in granted.jobs] == ["[Owner = 1]"]


def test_jobs_of_one_array_have_their_own_numbers() -> None:
    matches = [a_match(), a_match()]
    for number, match in enumerate(matches):
        match.description.environment.update({"MINE": "x", "PILOTAGE_JOB_ID": str(number)})
    jobs = granted_from_wire("r", matcher_service_pb2.RequestJobsResponse(matches=matches)).jobs
    environments = [job.description.environment for job in jobs]
    assert environments == [{"MINE": "x", "PILOTAGE_JOB_ID": "0"}, {"MINE": "x", "PILOTAGE_JOB_ID": "1"}]


def test_unreadable_job_does_not_affect_other_jobs_of_answer() -> None:
    duplicates = [jobs_pb2.InputFile(name="data0", checksum="ab" * 32, size=1)] * 2
    bad = a_match()
    bad.description.input_files.extend(duplicates)
    bad.job_id = 8
    first, second = granted_from_wire("r", matcher_service_pb2.RequestJobsResponse(matches=[bad, a_match()])).jobs
    assert (first.key, first.slot) == (AttemptKey(8, 2), "slot2")
    assert "input_files[1]" in first.fault
    assert "two files data0" in first.fault
    assert (second.key, second.fault, second.description.executable) == (KEY, "", "/bin/true")


def test_fault_of_unreadable_job_is_truncated() -> None:
    bad = a_match()
    bad.description.input_files.extend(jobs_pb2.InputFile(name="../" + "x" * 1000) for _ in range(100))
    (job,) = granted_from_wire("r", matcher_service_pb2.RequestJobsResponse(matches=[bad])).jobs
    assert 1000 < len(job.fault) < 1100


def test_empty_node_attributes_differ_from_absent_ones() -> None:
    nothing_set = matcher_service_pb2.ReportStateResponse(node_attributes=matcher_service_pb2.NodeAttributes(version=6))
    assert answered_from_wire("r", nothing_set).node_attributes == NodeAttributes(6, {})
    assert answered_from_wire("r", matcher_service_pb2.ReportStateResponse()).node_attributes is None


def test_empty_answer_is_read_as_no_change() -> None:
    assert granted_from_wire("r", matcher_service_pb2.RequestJobsResponse()) == JobsGranted("r")
    assert answered_from_wire("r", matcher_service_pb2.ReportStateResponse()) == HeartbeatAnswered("r")
    assert granted_from_wire("r", matcher_service_pb2.RequestJobsResponse(matches=[a_match()])).jobs[0].job_ad == ""
