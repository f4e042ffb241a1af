"""Operations on shares: display, operators' overrides, the pool size; equal on all servers of one database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial

from pilotage.accounts import Quota
from pilotage.values.accounts import Account, GroupId
from pilotage_server.core.accounting.fair_share import ShareOverrides
from pilotage_server.core.accounting.shares import Shares, compute_shares
from pilotage_server.core.audit import AuditKind, cut, line_difference
from pilotage_server.core.identity import Identity
from pilotage_server.core.pilots.slot_listing import pool_size
from pilotage_server.operations.audit import record_change
from pilotage_server.operations.resources.pools import visible_vo
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import accounting as stored
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.pilots import load_slots


def list_shares(transaction: Transaction, state: ServerState, identity: Identity, vo: str = "") -> Shares:
    """Return the shares of `vo`, or all that the caller may see.

    Raises
    ------
    PermissionDeniedError
        When a user asks for the shares of another VO.
    """
    shown = visible_vo(identity, vo)
    _set_pool_size(state, _pool_cores(transaction, state))
    waiting: Counter[Account] = Counter()
    with state.lock:
        for each in state.waiting.waiting():
            waiting[each.task_queue.account] += each.count
        shares = compute_shares(state.shares, waiting, transaction.now)
    return shares if shown is None else shares.of_vo(shown)


def set_shares(
    transaction: Transaction,
    state: ServerState,
    identity: Identity,
    factors: Mapping[Account, float | None],
    quotas: Mapping[GroupId, Quota | None],
) -> None:
    """Set priority factors and group quotas, all of them or none; None = use the settings again."""
    before = stored.load_set_shares(transaction.session)
    for account in sorted(factors):  # in one order, so that two transactions never deadlock
        stored.store_factor(transaction.session, account, factors[account])
    for group in sorted(quotas):
        stored.store_quota(transaction.session, group, quotas[group])
    transaction.after_commit(partial(_set_pool_size, state, _pool_cores(transaction, state)))
    after = stored.load_set_shares(transaction.session)
    transaction.after_commit(partial(_set_overrides, state, after))
    changed = line_difference(_described(before), _described(after))
    subject = ", ".join(map(str, (*sorted(factors), *sorted(quotas))))
    record_change(transaction, identity, AuditKind.SHARES, cut(subject), difference=changed)


def _described(shares: ShareOverrides) -> Iterator[str]:
    for account, factor in sorted(shares.factors.items()):
        yield f"{account}: factor {factor:g}"
    for group, quota in sorted(shares.quotas.items()):
        yield f"{group}: quota {quota}"


def load_overrides(transaction: Transaction, state: ServerState) -> None:
    """Apply what operators have set, on this server or on another."""
    _set_overrides(state, stored.load_set_shares(transaction.session))


def refresh_pool_size(transaction: Transaction, state: ServerState) -> None:
    """Compute the pool size again, if any quota is a part of it; pilots come and go."""
    if state.shares.settings.needs_pool_size():
        _set_pool_size(state, _pool_cores(transaction, state))


def take_unsorted_groups(state: ServerState) -> dict[GroupId, str]:
    """Return the groups, each once, for which the operators' order has turned out to be no number, with the reason."""
    with state.lock:
        return state.shares.group_order.take_faults()


def _pool_cores(transaction: Transaction, state: ServerState) -> float:
    return pool_size(load_slots(transaction.session), state.rules.sharing.machine_constraint, transaction.now)


def _set_pool_size(state: ServerState, pool_size: float) -> None:
    with state.lock:
        before = state.shares.settings
        state.shares.settings = replace(before, pool_size=pool_size)
    if pool_size > before.pool_size and before.needs_pool_size() and not before.rules.group_accept_surplus:
        state.publish_access_change()  # a larger pool raises quotas: jobs that they barred may go now


def _set_overrides(state: ServerState, set_shares: ShareOverrides) -> None:
    with state.lock:
        before = state.shares.settings
        state.shares.settings = replace(before, operators=set_shares)
    if before.operators != set_shares:
        state.publish_access_change()  # a quota may have barred jobs that slots wait for
