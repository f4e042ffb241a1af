"""Retention: removes expired rows and files. Each call is one short transaction, repeated until it returns 0."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from itertools import islice

from pilotage_server.core.accounting.fair_share import fading_time
from pilotage_server.operations.attempts.tails import remove_old_tails
from pilotage_server.operations.jobs.notifications import give_up_old_notifications, remove_closed_subscriptions
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import accounting, leadership, resources, routing, task_queues
from pilotage_server.storage.blobs.base import FileStore
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.events import lock_feed
from pilotage_server.storage.identity import audit
from pilotage_server.storage.identity.revocations import delete_expired_revocations
from pilotage_server.storage.races import delete_over
from pilotage_server.storage.requests import delete_answers
from pilotage_server.storage.retention import (
    delete_ended_jobs,
    delete_ended_pilots,
    delete_unused_uploads,
    unnamed_checksums,
)

PREFIXES = tuple(f"{number:02x}" for number in range(256))
"""First two digits of checksums: a sweep of the file store handles one prefix at a time."""


def remove_finished(transaction: Transaction, state: ServerState) -> int:
    """Remove a batch of old finished jobs with events, attempts and outputs; return how many."""
    kept = state.rules.retention
    return delete_ended_jobs(transaction.session, transaction.now - kept.finished_jobs, kept.batch)


def remove_ended_pilots(transaction: Transaction, state: ServerState) -> int:
    """Remove a batch of pilots that ended as long ago as they are kept; return how many."""
    kept = state.rules.retention
    return delete_ended_pilots(transaction.session, transaction.now - kept.pilots, kept.batch)


def remove_gone_agents(transaction: Transaction, state: ServerState) -> int:
    """Remove the replicas of agents that ended or fell silent long ago; return how many."""
    return leadership.delete_replicas(transaction.session, transaction.now - state.rules.retention.agents)


def remove_old_audit(transaction: Transaction, state: ServerState) -> int:
    """Remove a batch of old entries of the audit; return how many."""
    kept = state.rules.retention
    return audit.delete_entries(transaction.session, transaction.now - kept.audit, kept.batch)


def remove_idle_task_queues(transaction: Transaction, state: ServerState) -> int:
    """Remove a batch of task queues without live jobs; return how many. New jobs create them again."""
    idle = task_queues.delete_idle(
        transaction.session, transaction.now - state.rules.pool_grace, state.rules.retention.batch
    )
    transaction.after_commit(partial(state.remove_task_queues, idle))
    return len(idle)


def remove_old_trees(transaction: Transaction, state: ServerState) -> int:
    """Remove trees that were replaced as long ago as finished jobs are kept; return how many."""
    return resources.delete_superseded(transaction.session, transaction.now - state.rules.retention.finished_jobs)


def remove_past_downtimes(transaction: Transaction, _state: ServerState) -> int:
    """Remove the downtimes that are over; return how many. The audit still has them."""
    return resources.delete_past_downtimes(transaction.session, transaction.now)


def remove_faded_uses(transaction: Transaction, state: ServerState) -> int:
    """Remove a batch of use of accounts that has decayed to nothing; return how many."""
    before = transaction.now - fading_time(state.rules.sharing.half_life)
    lock_feed(transaction.session)  # the same lock order as charges of accounts
    accounts = accounting.delete_faded(transaction.session, before, state.rules.retention.batch)
    transaction.after_commit(partial(state.remove_accounts, accounts))
    return len(accounts)


def remove_old_uploads(transaction: Transaction, state: ServerState) -> int:
    """Remove a batch of old uploads that no job uses; return how many."""
    kept = state.rules.retention
    return delete_unused_uploads(transaction.session, transaction.now - kept.uploads, kept.batch)


def remove_race_sets(transaction: Transaction, state: ServerState) -> int:
    """Remove a batch of race sets without live jobs; return how many."""
    return delete_over(transaction.session, transaction.now - state.rules.pool_grace, state.rules.retention.batch)


def remove_gone_routers(transaction: Transaction, state: ServerState) -> int:
    """Remove routers without routed jobs that were last seen as long ago as finished jobs are kept; return how many.

    A router with routed jobs stays: they must be ended or given up first.
    """
    return routing.delete_gone(transaction.session, transaction.now - state.rules.retention.finished_jobs)


def remove_expired_revocations(transaction: Transaction, _state: ServerState) -> int:
    """Remove the revocations of tokens that have expired; return how many."""
    return delete_expired_revocations(transaction.session, transaction.now)


def remove_old_requests(transaction: Transaction, state: ServerState) -> int:
    """Remove a batch of stored answers that are too old to be repeated; return how many."""
    kept = state.rules.retention
    return delete_answers(transaction.session, transaction.now - kept.requests, kept.batch)


REMOVALS: tuple[Callable[[Transaction, ServerState], int], ...] = (
    remove_finished,
    remove_ended_pilots,
    remove_gone_agents,
    remove_old_audit,
    remove_idle_task_queues,
    remove_old_trees,
    remove_past_downtimes,
    remove_faded_uses,
    remove_old_uploads,
    remove_race_sets,
    remove_gone_routers,
    remove_expired_revocations,
    remove_old_requests,
    remove_old_tails,
    give_up_old_notifications,
    remove_closed_subscriptions,
)
"""All functions that remove rows, or end what is too old; each returns the number of them."""


SWEPT_AT_ONCE = 200
"""Contents that one step of a sweep looks at; a step is not interrupted when the server stops."""


def oldest_kept(transaction: Transaction, state: ServerState) -> datetime:
    """Return the time before which a content was put that no row needs to refer to."""
    return transaction.now - state.rules.retention.uploads


def sweep_files(database: Database, store: FileStore, listing: Iterator[str], before: datetime) -> int:
    """Look at the next contents of a listing of old ones, and remove those that no row refers to.

    Returns how many it has looked at; 0 = the listing is over. A new content has no row yet, so only old ones are
    removed, unless they are put again meanwhile. Leftovers of crashes between store and database go in the same way.
    No transaction is open while the store works, which may be slow.
    """
    checksums = [*islice(listing, SWEPT_AT_ONCE)]
    if checksums:
        unnamed = database.read(lambda transaction: unnamed_checksums(transaction.session, checksums))
        for checksum in sorted(unnamed):
            store.remove(checksum, before)
    return len(checksums)
