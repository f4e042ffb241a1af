"""A server's memory, made from the database at its start, and made to agree with it again later."""

from __future__ import annotations

import math
from collections import defaultdict
from datetime import datetime

from pilotage_server.core.accounting import Account
from pilotage_server.core.fair_share import Use, accrued
from pilotage_server.core.leases import AttemptRecord
from pilotage_server.core.rules import Rules
from pilotage_server.core.waiting import Head
from pilotage_server.operations.catch_up import catch_up
from pilotage_server.operations.pools import load_mappings
from pilotage_server.operations.shares import refresh_pie, take_set_shares
from pilotage_server.operations.tree_loading import load_tree_in_force
from pilotage_server.operations.world import World
from pilotage_server.storage import attempts, task_queues, usage
from pilotage_server.storage.bans import load_bans
from pilotage_server.storage.engine import Unit


def load_world(unit: Unit, rules: Rules) -> World:
    """Return what a server holds in memory, as the database has it now."""
    tree = load_tree_in_force(unit)
    world = World(
        rules=rules,
        tree=tree,
        mappings=load_mappings(unit, tree),
        bans=tuple(record.ban for record in load_bans(unit.session, unit.now)),
    )
    refresh_world(unit, world)
    refresh_pie(unit, world)
    return world


def refresh_world(unit: Unit, world: World) -> None:
    """Take in what there is, waits and runs as the database has it now, for other servers change that too.

    Where more jobs wait than were known, those who wait for jobs are told.
    """
    catch_up(unit, world)
    take_set_shares(unit, world)
    with world.lock:
        before = world.waiting.snapshot()
    known = task_queues.load_live_task_queues(unit.session)
    counts = task_queues.count_waiting(unit.session)
    heads = task_queues.read_heads(unit.session, counts)
    uses = _uses(unit, world.rules)
    with world.lock:
        waiting = {each: (count, heads.get(each)) for each, count in counts.items()}
        more = world.waiting.agree(before, known, waiting)
        world.shares.load(uses.items())
    for task_queue_id, count in more.items():
        world.tell_enqueued(task_queue_id, count)


def freshen_waiting(unit: Unit, world: World) -> None:
    """Read what the memory knows that it does not know of the waiting jobs; to be done before anything is written."""
    with world.lock:
        unknown, headless = world.waiting.unknown(), world.waiting.headless()
    if not unknown and not headless:
        return
    found = task_queues.load_task_queues(unit.session, unknown)
    counts = task_queues.count_waiting(unit.session, unknown) if unknown else {}
    heads = task_queues.read_heads(unit.session, unknown | headless)
    with world.lock:
        for task_queue in found:
            world.waiting.take_in(task_queue, counts.get(task_queue.id, 0))
        world.waiting.asked(unknown)
        for task_queue_id in headless | counts.keys():
            _renew(world, task_queue_id, heads.get(task_queue_id))


def _renew(world: World, task_queue_id: int, head: Head | None) -> None:
    if head is not None:
        world.waiting.renew_head(task_queue_id, head)


def _uses(unit: Unit, rules: Rules) -> dict[Account, Use]:
    """Return what every account has used: what has ended, as stored, and what runs, as it has accrued."""
    half_life = rules.sharing.half_life
    uses = {account: use.up_to(unit.now, half_life) for account, use in usage.load_uses(unit.session).items()}
    running: dict[Account, list[AttemptRecord]] = defaultdict(list)
    for attempt in attempts.load_metered(unit.session):
        running[attempt.account].append(attempt)
    for account, runs in running.items():
        before = uses.get(account, Use(0.0, unit.now))
        core_s = math.fsum(accrued(run.weight, _metered_s(run, unit.now), half_life) for run in runs)
        cores = math.fsum(run.weight for run in runs)
        uses[account] = Use(before.core_s + core_s, unit.now, cores, len(runs))
    return uses


def _metered_s(attempt: AttemptRecord, now: datetime) -> float:
    assert attempt.metered is not None, "an attempt that is metered says since when"
    return max(0.0, (now - attempt.metered).total_seconds())
