"""Wire ↔ domain for offered slots: their ads and claims in, orders to vacate out."""

from __future__ import annotations

import re

from pilotage.errors import InvalidInputError, Violation
from pilotage.v1 import matcher_service_pb2
from pilotage.wire import length_from_wire, text_from_wire
from pilotage_server.core.accounting import Account
from pilotage_server.core.ad_parts import check_part
from pilotage_server.core.preemption import Vacate
from pilotage_server.core.slots import Occupied, SlotOffer
from pilotage_server.operations.slot_offers import AdPartText
from pilotage_server.rpc.convert_values import Fields, amounts_from_wire, each, job_id_from_wire, name_from_wire

_KEY = re.compile(r"[0-9a-f]{64}")


def slot_offer_from_wire(message: matcher_service_pb2.SlotOffer) -> SlotOffer:
    """Return a slot that a pilot offers."""
    fields = Fields(message)
    offer = SlotOffer(
        name=fields("name", name_from_wire),
        free=fields("free", amounts_from_wire),
        partitionable=message.partitionable,
        time_left=fields.if_set("time_left_s", length_from_wire),
        cpu_power=fields.amount("cpu_power"),
        max_jobs=fields.count("max_jobs"),
        declined_task_queues=frozenset(message.declined_task_queues),
        ad_parts=fields("ad_parts", lambda keys: each(keys, _key)),
        ad_changes=fields.text("ad_changes"),
        claim=fields.if_set("claim", _account),
        occupied=fields.if_set("occupied", _occupied),
        job_ad_wanted=message.job_ad_wanted,
        ahead=fields.count("ahead"),
    )
    fields.done()
    return offer


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
