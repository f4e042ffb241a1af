"""Sync: bring the server state up to the changes of other servers on the same database.

Changes of waiting jobs come from the feed, so that the cost depends on what the others do. Tree, pools, bans and
significant attributes are read again when their versions differ. Changes that the feed does not have, such as a tree
that moves jobs to other task queues, are found by the full count of `loading.refresh_state`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pilotage_server.core.queueing.waiting_jobs import QueueHead
from pilotage_server.core.resources.mappings import PoolMappings
from pilotage_server.core.resources.tree import ActiveTree
from pilotage_server.operations.accounting.limits import refresh_counts
from pilotage_server.operations.cooperative import cooperative
from pilotage_server.operations.resources.bans import load_bans
from pilotage_server.operations.resources.pools import active_mappings, replace_mappings
from pilotage_server.operations.resources.tree import activate_tree, load_active_tree
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.events import QueueChange, feed_bounds, queue_changes_in
from pilotage_server.storage.pools import load_pools, pools_version
from pilotage_server.storage.resources import active_tree_version
from pilotage_server.storage.task_queues import load_significant


def sync_resources(transaction: Transaction, state: ServerState) -> None:
    """Sync tree, pools, bans and significant attributes; what has the same version is not read again."""
    stamp = pools_version(transaction.session)
    with state.lock:
        tree, bans, is_new = state.tree, state.bans, stamp != state.pools_version
    if active_tree_version(transaction.session) != tree.version:
        tree = load_active_tree(transaction, cooperative)
    stored_bans = load_bans(transaction)
    significant = load_significant(transaction.session)
    with state.lock:
        # Changes that this server has made since the query stay.
        same_access = tree is state.tree and (stored_bans == bans or state.bans is not bans)
        state.significant_attributes |= significant
        if state.bans is bans:
            state.bans = stored_bans
    if is_new:
        same_access &= _sync_mappings(transaction, state, tree)
        state.pools_version = stamp
    activate_tree(state, tree)
    if not same_access:
        state.publish_access_change()


def _sync_mappings(transaction: Transaction, state: ServerState, tree: ActiveTree) -> bool:
    """Sync the mappings by `tree`; return whether all pools may run on the same queues as before."""
    with state.lock:
        known = {mapping.pool_id: mapping for mapping in state.mappings.all()}
    mappings = active_mappings(state, tree, load_pools(transaction.session, cooperative), cooperative)
    changed = [mapping for mapping in mappings if known.get(mapping.pool_id) is not mapping]
    gone = known.keys() - {mapping.pool_id for mapping in mappings}
    if any(mapping.tree_version < tree.version for mapping in known.values()):  # then all of them change
        replace_mappings(state, tree, PoolMappings(cooperative(mappings)))
    else:
        with state.lock:
            state.mappings.put(changed)
    with state.lock:
        state.mappings.remove(known[pool_id] for pool_id in gone)
    return all(each.pool_id in known and each.queues.is_same(known[each.pool_id].queues) for each in changed)


def sync_events(transaction: Transaction, state: ServerState) -> int:
    """Apply the events of other servers since the last time; return how many events that were, of any kind."""
    if state.feed_cursor is None:
        return 0
    with state.sync_lock:  # or two background tasks could apply the same events
        _, newest = feed_bounds(transaction.session)
        ranges = state.feed_cursor.unread_ranges(newest)
        changes = queue_changes_in(transaction.session, ranges) if ranges else []
        _apply_changes(state, changes)
        refresh_counts(transaction, state)
        state.feed_cursor.advance(newest)
    return sum(last - first + 1 for first, last in ranges)


def _apply_changes(state: ServerState, changes: Iterable[QueueChange]) -> None:
    joined: dict[int, list[QueueHead]] = defaultdict(list)
    left: dict[int, list[int]] = defaultdict(list)
    for change in changes:
        if change.came:
            joined[change.task_queue_id].append(QueueHead(change.priority, change.job_id))
        else:
            left[change.task_queue_id].append(change.job_id)
    for task_queue_id, heads in joined.items():
        first = min(heads, key=lambda head: head.order)
        state.add_waiting(task_queue_id, first.job_id, first.priority, len(heads))
    with state.lock:
        for task_queue_id, job_ids in left.items():
            state.waiting.remove_jobs(task_queue_id, job_ids)
