"""What a pilot asks, read from the wire: what is faulty is told with its place."""

from __future__ import annotations

import pytest

from pilotage.errors import InvalidInputError
from pilotage.v1 import matcher_service_pb2
from pilotage_server.rpc.convert_matching import MOST_SLOTS, work_request_from_wire


def a_request(*names: str) -> matcher_service_pb2.RequestJobsRequest:
    """Return a request for slots of these names."""
    return matcher_service_pb2.RequestJobsRequest(
        request_id="r1", slots=[matcher_service_pb2.SlotOffer(name=name) for name in names]
    )


def test_more_slots_than_one_call_may_offer_are_refused_before_they_are_looked_at() -> None:
    with pytest.raises(InvalidInputError, match=f"offers {MOST_SLOTS + 1}") as refused:
        work_request_from_wire(a_request(*[""] * (MOST_SLOTS + 1)))
    assert [violation.where for violation in refused.value.violations] == ["slots"]


def test_two_slots_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="two slots have the name slot1"):
        work_request_from_wire(a_request("slot1", "slot2", "slot1"))


def test_every_fault_of_every_slot_is_told_with_its_place() -> None:
    request = a_request("slot1", " ")
    request.slots[0].cpu_power = -1.0
    with pytest.raises(InvalidInputError) as refused:
        work_request_from_wire(request)
    assert [violation.where for violation in refused.value.violations] == ["slots[0].cpu_power", "slots[1].name"]
