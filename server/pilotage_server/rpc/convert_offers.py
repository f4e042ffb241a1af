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


def slot_offer_from_wire(message: matcher_service_pb2.SlotOffer) -> SlotOffer:
    """Return a slot that a pilot offers."""
    if not _is_sound(message):
        _check(message)
    free = message.free
    return SlotOffer(
        name=message.name,
        free=Amounts(free.cpus, free.memory_mib, free.disk_mib, free.gpus),
        partitionable=message.partitionable,
        time_left=timedelta(seconds=message.time_left_s) if message.HasField("time_left_s") else None,
        cpu_power=message.cpu_power,
        max_jobs=message.max_jobs,
        declined_task_queues=frozenset(message.declined_task_queues),
        ad_parts=tuple(message.ad_parts),
        ad_changes=message.ad_changes,
        claim=_account(message.claim) if message.HasField("claim") else None,
        occupied=_occupied(message.occupied) if message.HasField("occupied") else None,
        job_ad_wanted=message.job_ad_wanted,
        ahead=message.ahead,
    )


def _is_sound(message: matcher_service_pb2.SlotOffer) -> bool:
    """Whether a look is enough to see that a slot has no fault, as with nearly all; `_check` tells for sure."""
    free, name = message.free, message.name
    return (
        name.isascii()
        and name.isprintable()
        and not name.isspace()
        and min(free.cpus, free.memory_mib, free.disk_mib, free.gpus, message.max_jobs, message.ahead) >= 0
        and 0.0 <= message.cpu_power < math.inf
        and 0.0 <= message.time_left_s <= LONGEST_S
        and not (message.ad_parts or message.ad_changes or message.HasField("occupied"))
        and name != ""
    )


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
