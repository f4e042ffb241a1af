"""Wire ↔ domain for offered slots: their ads and claims in, orders to vacate out."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from pilotage.errors import InvalidInputError, Violation
from pilotage.v1 import matcher_service_pb2
from pilotage.wire import LONGEST_S, length_from_wire, text_from_wire
from pilotage_server.core.accounting import Account
from pilotage_server.core.ad_parts import check_part
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.preemption import Vacate
from pilotage_server.core.slots import Occupied, SlotOffer
from pilotage_server.operations.slot_offers import AdPartText
from pilotage_server.rpc.convert_values import Fields, amounts_from_wire, each, job_id_from_wire, name_from_wire

_KEY = re.compile(r"[0-9a-f]{64}")
_NONE: frozenset[int] = frozenset()

_SHORT = 127
_SHORT_HEAD = 2
"""A text of so many bytes has a head of so many: its field's key and its length (Protocol Buffers, "Encoding")."""


class OfferReader:
    """Reads the slots of one call: what many have in common, which is all but their names, is read once."""

    def __init__(self) -> None:
        self._kinds: dict[bytes, SlotOffer] = {}

    def __call__(self, message: matcher_service_pb2.SlotOffer) -> SlotOffer:
        """Return a slot that a pilot offers; raises InvalidInputError with every fault of it."""
        name, written = message.name, message.SerializeToString()
        # The first field is the name, but nobody promises that it is the first to be written.
        if not (_is_plain(name) and written.startswith(name.encode(), _SHORT_HEAD)):
            return slot_offer_from_wire(message)
        kind = written[_SHORT_HEAD + len(name) :]
        alike = self._kinds.get(kind)
        if alike is not None:
            return SlotOffer(name, *alike[1:])
        offer = self._kinds[kind] = slot_offer_from_wire(message)
        return offer


def slot_offer_from_wire(message: matcher_service_pb2.SlotOffer) -> SlotOffer:
    """Return a slot that a pilot offers; raises InvalidInputError with every fault of it."""
    if not _is_sound(message):
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
        claim=_account(message.claim) if message.HasField("claim") else None,
        occupied=_occupied(message.occupied) if message.HasField("occupied") else None,
        job_ad_wanted=message.job_ad_wanted,
        ahead=message.ahead,
    )


def _is_sound(message: matcher_service_pb2.SlotOffer) -> bool:
    """Whether a look is enough to see that a slot has no fault, as with nearly all; `_check` tells for sure."""
    free = message.free
    return (
        _is_plain(message.name)
        and free.cpus >= 0
        and free.memory_mib >= 0
        and free.disk_mib >= 0
        and free.gpus >= 0
        and message.max_jobs >= 0
        and message.ahead >= 0
        and 0.0 <= message.cpu_power < math.inf
        and 0.0 <= message.time_left_s <= LONGEST_S
        and not (message.ad_parts or message.ad_changes or message.HasField("occupied"))
    )


def _is_plain(name: str) -> bool:
    """Whether a name is without fault, and written on the wire in a byte a character after a head of two."""
    return 0 < len(name) <= _SHORT and name.isascii() and name.isprintable() and not name.isspace()


def _check(message: matcher_service_pb2.SlotOffer) -> None:
    """Raise InvalidInputError with every fault of a slot."""
    fields = Fields(message)
    fields("name", name_from_wire)
    fields("free", amounts_from_wire)
    fields.if_set("time_left_s", length_from_wire)
    fields.amount("cpu_power")
    fields.count("max_jobs")
    fields("ad_parts", lambda keys: each(keys, _key))
    fields.text("ad_changes")
    fields.if_set("occupied", _occupied)
    fields.count("ahead")
    fields.done()


def ad_part_from_wire(message: matcher_service_pb2.AdPart) -> AdPartText:
    """Return a part of slots' ads; it is that of its key."""
    check_part(message.key, message.text)
    return AdPartText(message.key, text_from_wire(message.text))


def vacate_to_wire(vacate: Vacate) -> matcher_service_pb2.Vacate:
    """Return an order to vacate."""
    return matcher_service_pb2.Vacate(slot=vacate.slot, reason=vacate.reason, by_rank=vacate.by_rank)


def _key(text: str) -> str:
    if not _KEY.fullmatch(text):
        raise InvalidInputError(Violation("", "is not the key of a part (64 hex digits)"))
    return text


def _account(message: matcher_service_pb2.Account) -> Account:
    return Account(message.vo, message.group, message.owner)


def _occupied(message: matcher_service_pb2.Occupied) -> Occupied:
    fields = Fields(message)
    occupied = Occupied(
        job_id=fields("job_id", job_id_from_wire),
        attempt=fields.count("attempt"),
        rank=fields.number("current_rank"),
        ordered=message.ordered,
    )
    fields.done()
    return occupied
