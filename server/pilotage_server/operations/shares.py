"""Shares: shown to those who have them, set by operators, the same for all servers on one database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from pilotage.quotas import Quota
from pilotage_server.core.accounting import Account, GroupId
from pilotage_server.core.identity import Identity
from pilotage_server.core.pie import pie_of
from pilotage_server.core.share_settings import SetShares
from pilotage_server.core.shares import Shares, shares_at
from pilotage_server.operations.pool_views import visible_vo
from pilotage_server.operations.world import World
from pilotage_server.storage import shares as stored
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.slots import load_slots


def list_shares(unit: Unit, world: World, identity: Identity, vo: str = "") -> Shares:
    """Return the shares of `vo`, or all that the caller may see.

    Raises
    ------
    PermissionDeniedError
        When a user asks for the shares of another VO than his own.
    """
    shown = visible_vo(identity, vo)
    _know_pie(world, _pie(unit, world))
    waiting: Counter[Account] = Counter()
    with world.lock:
        for each in world.waiting.waiting():
            waiting[each.task_queue.account] += each.count
        shares = shares_at(world.shares, waiting, unit.now)
    return shares if shown is None else shares.of_vo(shown)


def set_shares(
    unit: Unit, world: World, factors: Mapping[Account, float | None], quotas: Mapping[GroupId, Quota | None]
) -> None:
    """Set priority factors and group quotas, all of them or none; None = as the settings say again."""
    for account in sorted(factors):  # in one order, so that two transactions never wait for each other in a circle
        stored.store_factor(unit.session, account, factors[account])
    for group in sorted(quotas):
        stored.store_quota(unit.session, group, quotas[group])
    unit.after_commit(partial(_know_pie, world, _pie(unit, world)))
    unit.after_commit(partial(_take, world, stored.load_set_shares(unit.session)))


def take_set_shares(unit: Unit, world: World) -> None:
    """Go by what operators have set, on this server or on another."""
    _take(world, stored.load_set_shares(unit.session))


def refresh_pie(unit: Unit, world: World) -> None:
    """Count anew what quotas are parts of, where any is; pilots come and go."""
    if world.shares.settings.needs_pie():
        _know_pie(world, _pie(unit, world))


def _pie(unit: Unit, world: World) -> float:
    return pie_of(load_slots(unit.session), world.rules.sharing.machine_constraint, unit.now)


def _know_pie(world: World, pie: float) -> None:
    with world.lock:
        before = world.shares.settings
        world.shares.settings = replace(before, pie=pie)
    if pie > before.pie and before.needs_pie() and not before.rules.group_accept_surplus:
        world.reach_changed()  # parts of more are more: what they barred may go now


def _take(world: World, set_shares: SetShares) -> None:
    with world.lock:
        before = world.shares.settings
        world.shares.settings = replace(before, operators=set_shares)
    if before.operators != set_shares:
        world.reach_changed()  # a quota may have barred jobs that slots wait for
