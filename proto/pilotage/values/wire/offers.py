"""Offered slots, their ads, and orders to vacate ↔ wire."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from pilotage.errors import InvalidInputError, Violation
from pilotage.rpc.wire import LONGEST_S, length_from_wire, text_from_wire
from pilotage.v1 import matcher_service_pb2
from pilotage.values.amounts import Amounts
from pilotage.values.offers import AdPart, OccupiedSlot, SlotOffer, VacateOrder, check_part
from pilotage.values.wire.accounts import account_from_wire, account_to_wire, owner_from_wire, owner_to_wire
from pilotage.values.wire.amounts import amounts_from_wire, amounts_to_wire
from pilotage.values.wire.fields import Fields, all_from_wire, job_id_from_wire, name_from_wire
from pilotage.values.wire.isolation import LEVELS, isolation_from_wire

_KEY = re.compile(r"[0-9a-f]{64}")
_NONE: frozenset[int] = frozenset()

LONGEST_PLAIN_NAME = 127
"""Bytes; the length of a text of up to so many takes one byte on the wire (Protocol Buffers, "Encoding")."""


def slot_offer_to_wire(offer: SlotOffer) -> matcher_service_pb2.SlotOffer:
    """Return the message of a slot that a pilot offers."""
    return matcher_service_pb2.SlotOffer(
        name=offer.name,
        free=amounts_to_wire(offer.free),
        partitionable=offer.partitionable,
        time_left_s=offer.time_left.total_seconds() if offer.time_left is not None else None,
        cpu_power=offer.cpu_power,
        max_jobs=offer.max_jobs,
        declined_task_queues=sorted(offer.declined_task_queues),
        ad_parts=offer.ad_parts,
        ad_changes=offer.ad_changes,
        claim=account_to_wire(offer.claim) if offer.claim is not None else None,
        occupied=_occupied_to_wire(offer.occupied) if offer.occupied is not None else None,
        job_ad_wanted=offer.job_ad_wanted,
        ahead=offer.ahead,
        isolation=offer.isolation.value,
        bound_to=owner_to_wire(offer.bound_to) if offer.bound_to is not None else None,
        has_containers=offer.has_containers,
    )


def slot_offer_from_wire(message: matcher_service_pb2.SlotOffer) -> SlotOffer:
    """Return the slot that a pilot offers; raises InvalidInputError with every fault."""
    if not _is_plainly_valid(message):
        _check(message)
    free, declined, parts = message.free, message.declined_task_queues, message.ad_parts
    return SlotOffer(
        message.name,
        Amounts(free.cpus, free.memory_mib, free.disk_mib, free.gpus),
        partitionable=message.partitionable,
        time_left=timedelta(seconds=message.time_left_s) if message.HasField("time_left_s") else None,
        cpu_power=message.cpu_power,
        max_jobs=message.max_jobs,
        declined_task_queues=frozenset(declined) if declined else _NONE,
        ad_parts=tuple(parts) if parts else (),
        ad_changes=message.ad_changes,
        claim=account_from_wire(message.claim) if message.HasField("claim") else None,
        occupied=_occupied_from_wire(message.occupied) if message.HasField("occupied") else None,
        job_ad_wanted=message.job_ad_wanted,
        ahead=message.ahead,
        isolation=LEVELS[message.isolation],
        bound_to=owner_from_wire(message.bound_to) if message.HasField("bound_to") else None,
        has_containers=message.has_containers,
    )


def _is_plainly_valid(message: matcher_service_pb2.SlotOffer) -> bool:
    """Check a slot quickly: true for nearly all valid ones; `_check` is the complete check."""
    free = message.free
    return (
        is_plain_name(message.name)
        and free.cpus >= 0
        and free.memory_mib >= 0
        and free.disk_mib >= 0
        and free.gpus >= 0
        and message.max_jobs >= 0
        and message.ahead >= 0
        and 0.0 <= message.cpu_power < math.inf
        and 0.0 <= message.time_left_s <= LONGEST_S
        and message.isolation in LEVELS
        and not (message.ad_parts or message.ad_changes or message.HasField("occupied"))
    )


def is_plain_name(name: str) -> bool:
    """Whether a name is valid and takes one byte per character on the wire, after a two-byte header."""
    return 0 < len(name) <= LONGEST_PLAIN_NAME and name.isascii() and name.isprintable() and not name.isspace()


def _check(message: matcher_service_pb2.SlotOffer) -> None:
    """Raise InvalidInputError with every fault of a slot."""
    fields = Fields(message)
    fields("name", name_from_wire)
    fields("free", amounts_from_wire)
    fields.if_set("time_left_s", length_from_wire)
    fields.amount("cpu_power")
    fields.count("max_jobs")
    fields("ad_parts", lambda keys: all_from_wire(keys, _part_key))
    fields.text("ad_changes")
    fields.if_set("occupied", _occupied_from_wire)
    fields.count("ahead")
    fields("isolation", isolation_from_wire)
    fields.done()


def _part_key(text: str) -> str:
    if not _KEY.fullmatch(text):
        raise InvalidInputError(Violation("", "is not the key of a part (64 hex digits)"))
    return text


def _occupied_to_wire(occupied: OccupiedSlot) -> matcher_service_pb2.Occupied:
    return matcher_service_pb2.Occupied(
        job_id=occupied.job_id, attempt=occupied.attempt, current_rank=occupied.rank, ordered=occupied.ordered
    )


def _occupied_from_wire(message: matcher_service_pb2.Occupied) -> OccupiedSlot:
    fields = Fields(message)
    occupied = OccupiedSlot(
        job_id=fields("job_id", job_id_from_wire),
        attempt=fields.count("attempt"),
        rank=fields.number("current_rank"),
        ordered=message.ordered,
    )
    fields.done()
    return occupied


def ad_part_to_wire(part: AdPart) -> matcher_service_pb2.AdPart:
    """Return the message of a part of slots' ads."""
    return matcher_service_pb2.AdPart(key=part.key, text=part.text)


def ad_part_from_wire(message: matcher_service_pb2.AdPart) -> AdPart:
    """Return a part of slots' ads, checked against its key."""
    check_part(message.key, message.text)
    return AdPart(message.key, text_from_wire(message.text))


def vacate_to_wire(order: VacateOrder) -> matcher_service_pb2.Vacate:
    """Return the message of an order to vacate."""
    return matcher_service_pb2.Vacate(slot=order.slot, reason=order.reason, by_rank=order.by_rank)


def vacate_from_wire(message: matcher_service_pb2.Vacate) -> VacateOrder:
    """Return an order to vacate."""
    return VacateOrder(message.slot, message.reason, message.by_rank)
