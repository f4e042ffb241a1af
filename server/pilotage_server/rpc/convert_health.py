"""Wire ↔ domain for the throttles of places."""

from __future__ import annotations

from pilotage.v1 import resource_service_pb2
from pilotage.wire import time_to_wire
from pilotage_server.core.health import Level, Place
from pilotage_server.core.throttles import ClosedBy, Throttle
from pilotage_server.rpc.convert_values import Fields, reason_from_wire


def closed_by_from_wire(message: resource_service_pb2.HoldPlaceRequest, owner: str) -> ClosedBy:
    """Return which place an operator closes; raises InvalidInputError with every fault of the request."""
    fields = Fields(message)
    fields.faults.unless(bool(message.reason.strip()), "reason", "is missing: a place is closed for a reason")
    closed = ClosedBy(
        fields("place", place_from_wire), fields("reason", reason_from_wire).strip(), owner, fields.time("until")
    )
    fields.done()
    return closed


def place_from_wire(message: resource_service_pb2.Place) -> Place:
    """Return the place of a message; raises InvalidInputError for what is no site, queue or node."""
    fields = Fields(message)
    site, ce, queue, node = (fields.text(name) for name in ("site", "ce", "queue", "node"))
    fields.faults.unless(bool(message.site), "site", "is missing")
    fields.faults.unless(bool(message.ce) == bool(message.queue), "queue", "is named together with its CE")
    fields.faults.unless(not (message.node and message.queue), "node", "is named with its site alone")
    fields.done()
    if node:
        return Place(Level.NODE, site, node=node)
    return Place(Level.QUEUE, site, ce, queue) if queue else Place(Level.SITE, site)


def throttle_to_wire(throttle: Throttle) -> resource_service_pb2.Throttle:
    """Return the message of a throttle."""
    _, site, ce, queue, node = throttle.place
    return resource_service_pb2.Throttle(
        place=resource_service_pb2.Place(site=site, ce=ce, queue=queue, node=node),
        state=throttle.state.value,
        since=time_to_wire(throttle.since),
        reason=throttle.reason,
        by=throttle.by,
        failures=throttle.failures,
        ends=throttle.ends,
        proofs=throttle.proofs,
        next_trial=time_to_wire(throttle.next_trial),
    )
