"""Wire ↔ domain for ShareService: shares, priority factors, quotas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from google.protobuf.message import Message

from pilotage.errors import InvalidInputError, Violation
from pilotage.faults import Faults
from pilotage.quotas import LARGEST, Quota
from pilotage.v1 import matcher_service_pb2, share_service_pb2
from pilotage.wire import quota_from_wire, quota_to_wire, text_from_wire, time_to_wire
from pilotage_server.core.accounting import Account, GroupId
from pilotage_server.core.shares import AccountShare, GroupShare, Shares
from pilotage_server.rpc.convert_values import not_too_many

LONGEST_NAME = 200
"""Characters of the name of a VO, a group or an owner: databases do not take keys of any length."""

Key = TypeVar("Key")
Value = TypeVar("Value")


def shares_to_wire(shares: Shares) -> share_service_pb2.ListSharesResponse:
    """Return the message of shares."""
    return share_service_pb2.ListSharesResponse(
        groups=map(_group_to_wire, shares.groups),
        accounts=map(_account_to_wire, shares.accounts),
        time=time_to_wire(shares.time),
        half_life_s=shares.half_life.total_seconds(),
        pie_cores=shares.pie,
        surplus_accepted=shares.surplus_accepted,
    )


def _group_to_wire(share: GroupShare) -> share_service_pb2.GroupShare:
    return share_service_pb2.GroupShare(
        vo=share.group.vo,
        group=share.group.name,
        quota=quota_to_wire(share.quota),
        quota_is_set=share.quota_is_set,
        used_core_s=share.core_s,
        cores=share.cores,
        used_part=share.used_part,
        entitled_part=share.entitled_part,
        entitled_cores=share.entitled_cores,
        waiting=share.waiting,
    )


def _account_to_wire(share: AccountShare) -> share_service_pb2.AccountShare:
    account = share.account
    return share_service_pb2.AccountShare(
        account=matcher_service_pb2.Account(vo=account.vo, group=account.group, owner=account.owner),
        priority_factor=share.factor,
        priority_factor_is_set=share.factor_is_set,
        used_core_s=share.use.core_s,
        cores=share.use.cores,
        user_priority=share.user_priority,
        waiting=share.waiting,
    )


def factors_from_wire(messages: Sequence[share_service_pb2.PriorityFactor]) -> dict[Account, float | None]:
    """Return the factors by account, None = the default again; each account is named once."""
    return _by_key(messages, _factor)


def quotas_from_wire(messages: Sequence[share_service_pb2.GroupQuota]) -> dict[GroupId, Quota | None]:
    """Return the quotas by group, None = the default again; each group is named once."""
    return _by_key(messages, _quota)


def _by_key(messages: Sequence[Message], take: Callable[[Any], tuple[Key, Value]]) -> dict[Key, Value]:
    not_too_many(messages)
    faults, found = Faults(), dict[Key, Value]()
    for place, message in enumerate(messages):
        with faults.within(f"[{place}]"):
            key, value = take(message)
            faults.unless(key not in found, f"[{place}]", f"{key} is named twice")
            found[key] = value
    faults.raise_any()
    return found


def _factor(message: share_service_pb2.PriorityFactor) -> tuple[Account, float | None]:
    named = message.account
    faults = Faults()
    for name in ("vo", "group", "owner"):
        with faults.within(f"account.{name}"):
            _check_name(getattr(named, name), may_be_empty=name == "group")
    if message.HasField("factor"):
        why = f"{message.factor} is not greater than 0 and at most {LARGEST:.0e}"
        faults.unless(0 < message.factor <= LARGEST, "factor", why)
    faults.raise_any()
    return Account(named.vo, named.group, named.owner), message.factor if message.HasField("factor") else None


def _quota(message: share_service_pb2.GroupQuota) -> tuple[GroupId, Quota | None]:
    faults = Faults()
    quota = None
    with faults.within("vo"):
        _check_name(message.vo, may_be_empty=False)
    with faults.within("group"):
        _check_name(message.group, may_be_empty=True)
    if message.HasField("quota"):
        with faults.within("quota"):
            quota = quota_from_wire(message.quota)
    faults.raise_any()
    return GroupId(message.vo, message.group), quota


def _check_name(name: str, *, may_be_empty: bool) -> None:
    text_from_wire(name)
    if not name and not may_be_empty:
        raise InvalidInputError(Violation("", "is empty"))
    if len(name) > LONGEST_NAME:
        raise InvalidInputError(Violation("", f"is longer than {LONGEST_NAME} characters"))
