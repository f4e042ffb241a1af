"""Wire ↔ domain for circuit breakers. On the wire a breaker is a *throttle*, a location is a *place*."""

from __future__ import annotations

from pilotage.rpc.wire import time_to_wire
from pilotage.v1 import resource_service_pb2
from pilotage.values.wire.fields import Fields, reason_from_wire
from pilotage_server.core.health.black_holes import Location, LocationLevel
from pilotage_server.core.health.throttles import HoldOrder, Throttle


def closed_by_from_wire(message: resource_service_pb2.HoldPlaceRequest, owner: str) -> HoldOrder:
    """Return an operator's order to close a location; raises InvalidInputError with all faults of the request."""
    fields = Fields(message)
    fields.faults.unless(bool(message.reason.strip()), "reason", "is missing: a place is closed for a reason")
    closed = HoldOrder(
        fields("place", location_from_wire), fields("reason", _stripped_reason), owner, fields.time("until")
    )
    fields.done()
    return closed


def _stripped_reason(reason: str) -> str:
    return reason_from_wire(reason).strip()


def location_from_wire(message: resource_service_pb2.Place) -> Location:
    """Return the location; raises InvalidInputError unless it is a site, a queue or a node."""
    fields = Fields(message)
    site, ce, queue, node = (fields.text(name) for name in ("site", "ce", "queue", "node"))
    fields.faults.unless(bool(message.site), "site", "is missing")
    fields.faults.unless(bool(message.ce) == bool(message.queue), "queue", "is named together with its CE")
    fields.faults.unless(not (message.node and message.queue), "node", "is named with its site alone")
    fields.done()
    if node:
        return Location(LocationLevel.NODE, site, node=node)
    return Location(LocationLevel.QUEUE, site, ce, queue) if queue else Location(LocationLevel.SITE, site)


def throttle_to_wire(throttle: Throttle) -> resource_service_pb2.Throttle:
    """Return the message of a circuit breaker."""
    _, site, ce, queue, node = throttle.location
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
