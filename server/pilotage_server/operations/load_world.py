"""A server's memory, made from the database at its start, and made to agree with it again later."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta

from pilotage_server.core.accounting import Account
from pilotage_server.core.fair_share import Use, accrued
from pilotage_server.core.feed_positions import OthersEvents
from pilotage_server.core.rules import Rules
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.core.throttles import closed_places
from pilotage_server.core.waiting import Head, Told
from pilotage_server.operations.bans import load_bans
from pilotage_server.operations.catch_up import catch_up
from pilotage_server.operations.following import follow
from pilotage_server.operations.pools import load_mappings
from pilotage_server.operations.shares import refresh_pie, take_set_shares
from pilotage_server.operations.tree_loading import load_tree_in_force
from pilotage_server.operations.world import World
from pilotage_server.storage import attempts, bulk, task_queues, usage
from pilotage_server.storage.attempts import Metered
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.events import feed_bounds
from pilotage_server.storage.first_waiting import read_heads
from pilotage_server.storage.significant_attributes import load_significant
from pilotage_server.storage.throttles import load_throttles
from pilotage_server.storage.trees import version_in_force

_MOST_COUNTED = 1000
"""So many jobs of a task queue are counted while somebody waits for the answer."""

ASSUMED = 1_000_000
"""So many more are assumed where not all were counted: were it too few, matches would come to a false end of them."""


def load_world(unit: Unit, rules: Rules) -> World:
    """Return what a server holds in memory, as the database has it now; costs what the task queues cost, not the jobs.

    Where more jobs wait than are counted here, they are left to `count_uncounted`.
    """
    tree = load_tree_in_force(unit)
    world = World(
        rules=rules,
        tree=tree,
        mappings=load_mappings(unit, tree),
        bans=load_bans(unit),
        throttles=closed_places(load_throttles(unit.session)),
        significant=load_significant(unit.session),
        others=_others(unit),
    )
    take_set_shares(unit, world)
    known = task_queues.load_live_task_queues(unit.session)
    counts = _count_some(unit, [task_queue.id for task_queue in known])
    heads = read_heads(unit.session, counts)
    for task_queue in known:
        _take_in(world, task_queue, counts.get(task_queue.id, 0), heads.get(task_queue.id))
    world.shares.load(_uses(unit, rules).items())
    refresh_pie(unit, world)
    return world


def refresh_world(unit: Unit, world: World, before: Mapping[int, Told] | None = None) -> None:
    """Take in what there is, waits and runs as the database has it now, whatever was missed of other servers.

    Where more jobs wait than were known, those who wait for jobs are told. `before` is what was told of the task
    queues before this transaction began (None = as it is now, with nobody else at work).
    """
    follow(unit, world)
    catch_up(unit, world)
    take_set_shares(unit, world)
    with world.lock:
        told = world.waiting.snapshot() if before is None else before
    known = task_queues.load_live_task_queues(unit.session)
    counts = task_queues.count_waiting(unit.session, but_for=_under_way(told.values()))
    heads = read_heads(unit.session, counts)
    with world.lock:
        waiting = {each: (count, heads.get(each)) for each, count in counts.items()}
        more = world.waiting.agree(told, known, waiting)
    refresh_uses(unit, world)
    for task_queue_id, count in more.items():
        world.tell_enqueued(task_queue_id, count)


def refresh_uses(unit: Unit, world: World) -> None:
    """Take in what the accounts have used, and what runs for them on all servers."""
    uses = _uses(unit, world.rules)
    with world.lock:
        world.shares.load(uses.items())


def share_doubts(world: World) -> None:
    """Let those task queues be counted of which more or fewer jobs may be known than wait.

    Most of them seem empty. Another server's match that was in the way may have failed, and what it has told may have
    been seen in the database before. Were nothing known to wait while something does, nobody would look; a server that
    is alone should know better, but has nobody else who would. Where too many are known, pilots come in vain.
    """
    with world.lock:
        doubted, world.waiting.doubted = world.waiting.doubted, set()
        world.uncounted |= doubted


def count_uncounted(unit: Unit, world: World, before: Mapping[int, Told]) -> None:
    """Count the jobs of the task queues of which it is not known how many wait, as far as these have just been quiet.

    `before` is what was told of them before this transaction began. Where more wait than were known, those who wait
    for jobs are told.
    """
    version_in_force(unit.session)  # from here on the snapshot is fixed, in SQLite too
    follow(unit, world)
    with world.lock:
        now = world.waiting.snapshot(world.uncounted)
        quiet = {each for each, told in now.items() if told.is_all_since(before.get(each))}
    counts = task_queues.count_waiting(unit.session, quiet, but_for=_under_way(now[each] for each in quiet))
    with world.lock:
        world.uncounted -= world.waiting.recount(now, {each: counts.get(each, 0) for each in quiet})
        world.uncounted &= world.waiting.ids()
    for task_queue_id, count in counts.items():
        more = count - max(0, now[task_queue_id].waiting)
        if more > 0:
            world.tell_enqueued(task_queue_id, more)


def _under_way(told: Iterable[Told]) -> frozenset[int]:
    return frozenset[int]().union(*(each.under_way for each in told))


def _others(unit: Unit) -> OthersEvents | None:
    is_shared = not bulk.is_sqlite(unit.session)
    return OthersEvents(feed_bounds(unit.session)[1]) if is_shared else None


def _count_some(unit: Unit, ids: Collection[int]) -> dict[int, int]:
    return task_queues.count_some(unit.session, ids, _MOST_COUNTED)


def _take_in(world: World, task_queue: TaskQueue, count: int, head: Head | None = None) -> None:
    """Take in a task queue of which some jobs were counted; of so many as are counted at most there may be more."""
    is_all = count < _MOST_COUNTED
    world.waiting.take_in(task_queue, count, head, assumed=0 if is_all else ASSUMED)
    if not is_all:
        world.uncounted.add(task_queue.id)


def learn_task_queues(unit: Unit, world: World) -> None:
    """Read the task queues that the memory has only heard of; to be done before anything is written."""
    with world.lock:
        unknown = world.waiting.unknown()
    if not unknown:
        return
    found = task_queues.load_task_queues(unit.session, unknown)
    counts = _count_some(unit, unknown)
    with world.lock:
        for task_queue in found:
            _take_in(world, task_queue, counts.get(task_queue.id, 0))
        world.waiting.asked(unknown)
        world.uncounted |= unknown  # what is there already may be told after this


def learn_heads(unit: Unit, world: World) -> None:
    """Read who is first in the task queues of which the memory does not know it, for a match that goes job by job."""
    with world.lock:
        headless = world.waiting.headless()
    if not headless:
        return
    heads = read_heads(unit.session, headless)
    with world.lock:
        for task_queue_id in headless:
            _renew(world, task_queue_id, heads.get(task_queue_id))


def _renew(world: World, task_queue_id: int, head: Head | None) -> None:
    if head is not None:
        world.waiting.renew_head(task_queue_id, head)


def _uses(unit: Unit, rules: Rules) -> dict[Account, Use]:
    """Return what every account has used: what has ended, as stored, and what runs, as it has accrued."""
    half_life = rules.sharing.half_life
    uses = {account: use.up_to(unit.now, half_life) for account, use in usage.load_uses(unit.session).items()}
    running: dict[Account, list[Metered]] = defaultdict(list)
    for metered in attempts.load_metered(unit.session):
        running[metered.account].append(metered)
    for account, alike in running.items():
        before = uses.get(account, Use(0.0, unit.now))
        core_s = math.fsum(_used(each, unit.now, half_life) for each in alike)
        cores = math.fsum(each.weight * each.runs for each in alike)
        uses[account] = Use(before.core_s + core_s, unit.now, cores, sum(each.runs for each in alike))
    return uses


def _used(metered: Metered, now: datetime, half_life: timedelta) -> float:
    """Return the core seconds, decayed, that runs have used since their meters were started."""
    return accrued(metered.weight * metered.runs, max(0.0, (now - metered.since).total_seconds()), half_life)
