"""The server state: loaded from the database at the start, and compared with the database again later.

At the start, jobs move to other task queues when running limits refer to other attributes than before.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from pilotage.values.accounts import Account
from pilotage_server.core.accounting.fair_share import Use, accrued
from pilotage_server.core.health.throttles import tripped_locations
from pilotage_server.core.jobs.record import FeedCursor
from pilotage_server.core.queueing.index import CountSnapshot
from pilotage_server.core.queueing.task_queue import TaskQueue, redescribed
from pilotage_server.core.rules import Rules
from pilotage_server.operations.accounting.shares import load_overrides, refresh_pool_size
from pilotage_server.operations.queueing.counting import add_task_queue, count_up_to_limit
from pilotage_server.operations.queueing.placement import TaskQueueFinder, key_names
from pilotage_server.operations.resources.bans import load_bans
from pilotage_server.operations.resources.pools import load_mappings
from pilotage_server.operations.resources.tree import load_active_tree
from pilotage_server.operations.revocations import load_snapshot
from pilotage_server.operations.server_state import ServerState
from pilotage_server.operations.startup.sync import sync_events, sync_resources
from pilotage_server.storage import accounting, attempts, task_queues
from pilotage_server.storage import task_queues as stored
from pilotage_server.storage.attempts import Metered
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.events import feed_bounds
from pilotage_server.storage.health import load_throttles
from pilotage_server.storage.resources import active_tree_version
from pilotage_server.storage.submission.templates import load_descriptions
from pilotage_server.storage.task_queues import load_significant, read_heads


def load_state(transaction: Transaction, rules: Rules) -> ServerState:
    """Return the server state from the database; the cost depends on the task queues, not on the jobs.

    Task queues with more waiting jobs than are counted here are left to `count_pending`.
    """
    tree = load_active_tree(transaction)
    state = ServerState(
        rules=rules,
        tree=tree,
        mappings=load_mappings(transaction, tree),
        bans=load_bans(transaction),
        revocations=load_snapshot(transaction),
        throttles=tripped_locations(load_throttles(transaction.session)),
        significant_attributes=load_significant(transaction.session),
        feed_cursor=None if sql.is_sqlite(transaction.session) else FeedCursor(feed_bounds(transaction.session)[1]),
    )
    load_overrides(transaction, state)
    known = task_queues.load_live_task_queues(transaction.session)
    counts = count_up_to_limit(transaction, [task_queue.id for task_queue in known])
    heads = read_heads(transaction.session, counts)
    for task_queue in known:
        add_task_queue(state, task_queue, counts.get(task_queue.id, 0), heads.get(task_queue.id))
    state.shares.load(_uses(transaction, rules).items())
    refresh_pool_size(transaction, state)
    return state


def refresh_state(
    transaction: Transaction, state: ServerState, before: Mapping[int, CountSnapshot] | None = None
) -> None:
    """Bring tree, pools, waiting jobs and running jobs up to the database, whatever other servers have done.

    Listeners are notified where more jobs wait than were known. `before` is a snapshot of the counts from before this
    transaction (None = as they are now; only valid while nothing else changes them).
    """
    sync_events(transaction, state)
    sync_resources(transaction, state)
    load_overrides(transaction, state)
    with state.lock:
        snapshot = state.waiting.snapshot() if before is None else before
    known = task_queues.load_live_task_queues(transaction.session)
    counts = task_queues.count_waiting(transaction.session, but_for=_under_way(snapshot.values()))
    heads = read_heads(transaction.session, counts)
    with state.lock:
        waiting = {each: (count, heads.get(each)) for each, count in counts.items()}
        more = state.waiting.sync(snapshot, known, waiting)
    refresh_uses(transaction, state)
    for task_queue_id, count in more.items():
        state.publish_waiting(task_queue_id, count)


def refresh_uses(transaction: Transaction, state: ServerState) -> None:
    """Load the use of the accounts and their running jobs on all servers."""
    uses = _uses(transaction, state.rules)
    with state.lock:
        state.shares.load(uses.items())


def queue_recounts(state: ServerState) -> None:
    """Queue a recount of the task queues whose counts are doubtful.

    Most of them seem empty: a conflicting match of another server may have failed, or the database may have shown its
    effect before its event. An undercount would leave jobs unmatched; an overcount wakes pilots for nothing.
    """
    with state.lock:
        doubted, state.waiting.stale_counts = state.waiting.stale_counts, set()
        state.pending_counts |= doubted


def count_pending(transaction: Transaction, state: ServerState, before: Mapping[int, CountSnapshot]) -> None:
    """Count the waiting jobs of the task queues in `pending_counts` that have not changed since `before`.

    `before` is a snapshot of their counts from before this transaction. Listeners are notified where more jobs wait
    than were known.
    """
    active_tree_version(transaction.session)  # any query: from here on the snapshot is fixed, in SQLite too
    sync_events(transaction, state)
    with state.lock:
        now = state.waiting.snapshot(state.pending_counts)
        quiet = {each for each, count_then in now.items() if count_then.is_settled_since(before.get(each))}
    counts = task_queues.count_waiting(transaction.session, quiet, but_for=_under_way(now[each] for each in quiet))
    with state.lock:
        state.pending_counts -= state.waiting.apply_counts(now, {each: counts.get(each, 0) for each in quiet})
        state.pending_counts &= state.waiting.ids()
    for task_queue_id, count in counts.items():
        more = count - max(0, now[task_queue_id].waiting)
        if more > 0:
            state.publish_waiting(task_queue_id, more)


def _under_way(snapshots: Iterable[CountSnapshot]) -> frozenset[int]:
    return frozenset[int]().union(*(each.claimed for each in snapshots))


def _uses(transaction: Transaction, rules: Rules) -> dict[Account, Use]:
    """Return the use of every account: the stored use of ended attempts, and the accrued use of running ones."""
    half_life = rules.sharing.half_life
    uses = {
        account: use.up_to(transaction.now, half_life)
        for account, use in accounting.load_uses(transaction.session).items()
    }
    running: dict[Account, list[Metered]] = defaultdict(list)
    for metered in attempts.load_metered(transaction.session):
        running[metered.account].append(metered)
    for account, alike in running.items():
        before = uses.get(account, Use(0.0, transaction.now))
        core_s = math.fsum(_used(each, transaction.now, half_life) for each in alike)
        cores = math.fsum(each.weight * each.runs for each in alike)
        uses[account] = Use(before.core_s + core_s, transaction.now, cores, sum(each.runs for each in alike))
    return uses


def _used(metered: Metered, now: datetime, half_life: timedelta) -> float:
    """Return the decayed core seconds of running attempts since their charging began."""
    return accrued(metered.weight * metered.runs, max(0.0, (now - metered.since).total_seconds()), half_life)


def rekey_for_limits(transaction: Transaction, state: ServerState) -> int:
    """Move live jobs to the task queues that follow from the present limits; return how many task queues changed.

    Call it once at the start of a server: limits change with its settings only. Jobs with a lease move too, because
    limits count them. Descriptions are read once for each array.
    """
    if not state.rules.key_attributes():
        return 0
    names = key_names(transaction, state)
    live = stored.load_live_task_queues(transaction.session)
    task_queues = TaskQueueFinder(transaction, state)
    changed = sum(_rekey(transaction, task_queues, task_queue, names) for task_queue in live)
    if changed:
        # before the commit, unlike everywhere else: a server whose first transaction fails does not start
        refresh_state(transaction, state)
    return changed


def _rekey(
    transaction: Transaction, task_queues: TaskQueueFinder, task_queue: TaskQueue, names: frozenset[str]
) -> bool:
    templates = stored.templates_of(transaction.session, task_queue.id)
    moved = False
    for template_id, description in load_descriptions(transaction.session, templates).items():
        traits = redescribed(task_queue.traits, description, names)
        if traits == task_queue.traits:
            continue
        after = task_queues.id_of(traits)
        if after != task_queue.id:
            stored.move_live_jobs(transaction.session, task_queue.id, template_id, after)
            moved = True
    return moved
