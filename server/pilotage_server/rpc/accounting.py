"""ShareService: use, shares, priority factors and quotas, and sums of what ended attempts have used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import date
from typing import Any, TypeVar

from google.protobuf.message import Message

from pilotage.accounts import LARGEST, Quota
from pilotage.errors import Faults, InvalidInputError, Violation
from pilotage.rpc.wire import enum_from_wire, quota_from_wire, quota_to_wire, text_from_wire, time_to_wire
from pilotage.v1 import share_service_pb2, share_service_pb2_grpc
from pilotage.values.accounts import Account, GroupId
from pilotage.values.wire.accounts import account_to_wire
from pilotage.values.wire.fields import Fields, all_from_wire
from pilotage_server.core.accounting.shares import AccountShare, GroupShare, Shares
from pilotage_server.core.accounting.usage_sums import UsageKey, UsageQuery, UsageSum
from pilotage_server.operations.accounting.shares import list_shares, set_shares
from pilotage_server.operations.accounting.usage_sums import list_usage
from pilotage_server.operations.server_state import ServerState
from pilotage_server.rpc.framework.calls import caller
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.rpc.framework.wire_values import check_count
from pilotage_server.storage.database.transaction import Transaction

MAX_NAME_LENGTH = 200
"""Limit of the characters in the name of a VO, a group or an owner: databases limit the length of keys."""

Key = TypeVar("Key")
Value = TypeVar("Value")


def shares_to_wire(shares: Shares) -> share_service_pb2.ListSharesResponse:
    """Return the message of shares."""
    return share_service_pb2.ListSharesResponse(
        groups=map(_group_to_wire, shares.groups),
        accounts=map(_account_to_wire, shares.accounts),
        time=time_to_wire(shares.time),
        half_life_s=shares.half_life.total_seconds(),
        pie_cores=shares.pool_size,
        surplus_accepted=shares.surplus_accepted,
        group_sort_expression=shares.group_sort_expression,
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
        sort_value=share.sort_value,
        goes_last=share.goes_last,
    )


def _account_to_wire(share: AccountShare) -> share_service_pb2.AccountShare:
    account = share.account
    return share_service_pb2.AccountShare(
        account=account_to_wire(account),
        priority_factor=share.factor,
        priority_factor_is_set=share.factor_is_set,
        used_core_s=share.use.core_s,
        cores=share.use.cores,
        user_priority=share.user_priority,
        waiting=share.waiting,
    )


def usage_query_from_wire(message: share_service_pb2.ListUsageRequest) -> UsageQuery:
    """Return the query of sums."""
    fields = Fields(message)
    query = UsageQuery(
        since=fields("since", _day),
        until=fields("until", _day),
        vo=fields.text("vo"),
        groups=fields("groups", _names),
        owners=fields("owners", _names),
        sites=fields("sites", _names),
        by=fields("by", lambda keys: all_from_wire(keys, _usage_key)),
    )
    fields.faults.unless(len(set(message.by)) == len(message.by), "by", "names a key twice")
    fields.done()
    return query


def _day(text: str) -> str:
    try:
        return text and date.fromisoformat(text).isoformat()
    except ValueError:
        raise InvalidInputError(Violation("", f'"{text[:80]}" is not a day, such as 2026-11-26')) from None


def _names(names: Sequence[str]) -> frozenset[str]:
    check_count(names)
    return frozenset(all_from_wire(names, text_from_wire))


def _usage_key(number: int) -> UsageKey:
    name = enum_from_wire(share_service_pb2.UsageKey, number)
    if not name:
        raise InvalidInputError(Violation("", "is missing"))
    return UsageKey[name]


def usage_sum_to_wire(keys: Sequence[str], found: UsageSum) -> share_service_pb2.UsageSum:
    """Return the message of a sum."""
    return share_service_pb2.UsageSum(keys=keys, **asdict(found))


def factors_from_wire(messages: Sequence[share_service_pb2.PriorityFactor]) -> dict[Account, float | None]:
    """Return the factors by account, None = back to the default; an account may occur once."""
    return _by_key(messages, _factor)


def quotas_from_wire(messages: Sequence[share_service_pb2.GroupQuota]) -> dict[GroupId, Quota | None]:
    """Return the quotas by group, None = back to the default; a group may occur once."""
    return _by_key(messages, _quota)


def _by_key(messages: Sequence[Message], read: Callable[[Any], tuple[Key, Value]]) -> dict[Key, Value]:
    check_count(messages)
    faults, found = Faults(), dict[Key, Value]()
    for index, message in enumerate(messages):
        with faults.within(f"[{index}]"):
            key, value = read(message)
            faults.unless(key not in found, f"[{index}]", f"{key} is named twice")
            found[key] = value
    faults.raise_any()
    return found


def _factor(message: share_service_pb2.PriorityFactor) -> tuple[Account, float | None]:
    account = message.account
    faults = Faults()
    for name in ("vo", "group", "owner"):
        with faults.within(f"account.{name}"):
            _check_name(getattr(account, name), may_be_empty=name == "group")
    if message.HasField("factor"):
        why = f"{message.factor} is not greater than 0 and at most {LARGEST:.0e}"
        faults.unless(0 < message.factor <= LARGEST, "factor", why)
    faults.raise_any()
    return Account(account.vo, account.group, account.owner), message.factor if message.HasField("factor") else None


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
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidInputError(Violation("", f"is longer than {MAX_NAME_LENGTH} characters"))


class ShareServicer(share_service_pb2_grpc.ShareServiceServicer):
    """Shows shares and sums of use, and sets priority factors and quotas."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def ListShares(
        self, request: share_service_pb2.ListSharesRequest, context: Any
    ) -> share_service_pb2.ListSharesResponse:
        identity = caller()
        fields = Fields(request)
        vo = fields.text("vo")
        fields.done()
        return await self._transactions.read(
            lambda transaction, state: shares_to_wire(list_shares(transaction, state, identity, vo))
        )

    async def ListUsage(
        self, request: share_service_pb2.ListUsageRequest, context: Any
    ) -> share_service_pb2.ListUsageResponse:
        identity, query = caller(), usage_query_from_wire(request)
        sums = await self._transactions.read(lambda transaction, _: list_usage(transaction, identity, query))
        return share_service_pb2.ListUsageResponse(sums=[usage_sum_to_wire(*each) for each in sums])

    async def SetShares(
        self, request: share_service_pb2.SetSharesRequest, context: Any
    ) -> share_service_pb2.SetSharesResponse:
        identity, fields = caller(), Fields(request)
        factors = fields("priority_factors", factors_from_wire)
        quotas = fields("group_quotas", quotas_from_wire)
        fields.done()

        def set_them(transaction: Transaction, state: ServerState) -> share_service_pb2.SetSharesResponse:
            set_shares(transaction, state, identity, factors, quotas)
            return share_service_pb2.SetSharesResponse()

        return await self._transactions.once(
            identity, "SetShares", request, share_service_pb2.SetSharesResponse, set_them
        )
