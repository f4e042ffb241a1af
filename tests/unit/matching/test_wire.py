"""Requests and reports of pilots, converted from messages; faults are named with their locations."""

from __future__ import annotations

from itertools import product

import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from pilotage.errors import InvalidInputError
from pilotage.rpc.wire import time_from_wire
from pilotage.v1 import jobs_pb2, matcher_service_pb2, values_pb2
from pilotage.values.wire.offers import slot_offer_from_wire
from pilotage_server.rpc.matching.wire import (
    MAX_AD_CHARACTERS,
    MAX_SLOTS,
    job_report_from_wire,
    work_request_from_wire,
)

Slot = matcher_service_pb2.SlotOffer

DISTINCT_SLOTS = (
    Slot(),
    Slot(free=values_pb2.Amounts(cpus=1, memory_mib=2000)),
    Slot(free=values_pb2.Amounts(cpus=1, memory_mib=2001)),
    Slot(partitionable=True),
    Slot(time_left_s=0.0),
    Slot(time_left_s=60.0),
    Slot(cpu_power=11.5),
    Slot(max_jobs=3),
    Slot(declined_task_queues=[4, 5]),
    Slot(ad_parts=["ab" * 32]),
    Slot(ad_changes="[X = 1]"),
    Slot(claim=matcher_service_pb2.Account(vo="sky", owner="alice")),
    Slot(occupied=matcher_service_pb2.Occupied(job_id=7, attempt=1, current_rank=2.0)),
    Slot(job_ad_wanted=True),
    Slot(ahead=2),
)
"""Slots without a name, each different from all others."""


def a_request(*names: str) -> matcher_service_pb2.RequestJobsRequest:
    """Return a request for slots of these names."""
    return matcher_service_pb2.RequestJobsRequest(
        request_id="r1", slots=[matcher_service_pb2.SlotOffer(name=name) for name in names]
    )


def test_too_many_slots_are_refused() -> None:
    with pytest.raises(InvalidInputError, match=f"offers {MAX_SLOTS + 1}") as refused:
        work_request_from_wire(a_request(*[""] * (MAX_SLOTS + 1)))
    assert [violation.where for violation in refused.value.violations] == ["slots"]


def test_too_much_text_of_slot_ads_is_refused() -> None:
    request = a_request("slot1", "slot2")
    request.slots[0].ad_changes = "x" * (MAX_AD_CHARACTERS // 2)
    request.ad_parts.add(text="y" * (MAX_AD_CHARACTERS // 2 + 1))
    with pytest.raises(InvalidInputError, match=f"have ads of {MAX_AD_CHARACTERS + 1}"):
        work_request_from_wire(request)


def test_duplicate_slot_names_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="two slots have the name slot1"):
        work_request_from_wire(a_request("slot1", "slot2", "slot1"))


def test_names_every_fault_with_its_location() -> None:
    request = a_request("slot1", " ")
    request.slots[0].cpu_power = -1.0
    with pytest.raises(InvalidInputError) as refused:
        work_request_from_wire(request)
    assert [violation.where for violation in refused.value.violations] == ["slots[0].cpu_power", "slots[1].name"]


@pytest.mark.parametrize("spaces", [0, 1, 121, 122])
@pytest.mark.parametrize("letter", ["n", "ö"])
def test_slots_in_one_request_are_converted_independently(spaces: int, letter: str) -> None:
    request = matcher_service_pb2.RequestJobsRequest(request_id="r1")
    for number, template in product(range(2), DISTINCT_SLOTS):
        slot = request.slots.add()
        slot.CopyFrom(template)
        slot.name = f"{letter}{len(request.slots):02}-{number}{' ' * spaces}x"
    assert work_request_from_wire(request).slots == tuple(map(slot_offer_from_wire, request.slots))


def test_names_faults_of_equal_slots_individually() -> None:
    request = a_request("slot1", "slot2")
    for slot in request.slots:
        slot.max_jobs = -1
    with pytest.raises(InvalidInputError) as refused:
        work_request_from_wire(request)
    assert [violation.where for violation in refused.value.violations] == ["slots[0].max_jobs", "slots[1].max_jobs"]


@pytest.mark.parametrize("nanos", [0, 999, 1000, 999_999_999])
@pytest.mark.parametrize("seconds", [-62_135_596_800, -1, 0, 1_795_196_877, 253_402_300_799])
def test_times_of_a_report_are_converted(seconds: int, nanos: int) -> None:
    time = Timestamp(seconds=seconds, nanos=nanos)
    report = job_report_from_wire(
        jobs_pb2.JobReport(job_id=1, state=jobs_pb2.JOB_STATE_RUNNING, started=time, ended=time)
    )
    assert report.started == report.ended == time_from_wire(time)


@pytest.mark.parametrize("time", [Timestamp(seconds=253_402_300_800), Timestamp(nanos=1_000_000_000)])
def test_names_invalid_time_with_its_location(time: Timestamp) -> None:
    with pytest.raises(InvalidInputError) as refused:
        job_report_from_wire(jobs_pb2.JobReport(job_id=1, state=jobs_pb2.JOB_STATE_RUNNING, ended=time))
    assert [violation.where for violation in refused.value.violations] == ["ended"]
