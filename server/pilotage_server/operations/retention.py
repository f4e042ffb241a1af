"""What is past its time goes, batch by batch; each call is one short transaction, to be repeated until it has none."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from pilotage_server.core.fair_share import faded
from pilotage_server.operations.world import World
from pilotage_server.storage import routers, task_queues, trees, usage
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.events import lock_feed
from pilotage_server.storage.file_store import FileStore
from pilotage_server.storage.leftovers import (
    delete_ended_jobs,
    delete_ended_pilots,
    delete_unused_uploads,
    unnamed_checksums,
)
from pilotage_server.storage.race_sets import delete_over
from pilotage_server.storage.requests import delete_answers

PREFIXES = tuple(f"{number:02x}" for number in range(256))
"""First two digits of checksums: the portions in which a store of files is swept."""


def remove_finished(unit: Unit, world: World) -> int:
    """Remove a batch of jobs that ended too long ago, with events, attempts and outputs; return how many."""
    kept = world.rules.retention
    return delete_ended_jobs(unit.session, unit.now - kept.finished_jobs, kept.batch)


def remove_ended_pilots(unit: Unit, world: World) -> int:
    """Remove a batch of pilots that have been over as long as finished jobs are kept; return how many."""
    kept = world.rules.retention
    return delete_ended_pilots(unit.session, unit.now - kept.finished_jobs, kept.batch)


def remove_idle_task_queues(unit: Unit, world: World) -> int:
    """Remove a batch of task queues that no live job is in; return how many. Jobs that come make them anew."""
    idle = task_queues.delete_idle(unit.session, unit.now - world.rules.pool_grace, world.rules.retention.batch)
    unit.after_commit(partial(world.forget, idle))
    return len(idle)


def remove_old_trees(unit: Unit, world: World) -> int:
    """Remove the trees that have been out of force as long as finished jobs are kept; return how many."""
    return trees.delete_superseded(unit.session, unit.now - world.rules.retention.finished_jobs)


def remove_faded_uses(unit: Unit, world: World) -> int:
    """Remove a batch of what accounts used so long ago that it counts no more; return how many."""
    before = unit.now - faded(world.rules.sharing.half_life)
    lock_feed(unit.session)  # as whoever charges an account does
    accounts = usage.delete_faded(unit.session, before, world.rules.retention.batch)
    unit.after_commit(partial(world.forget_uses, accounts))
    return len(accounts)


def remove_old_uploads(unit: Unit, world: World) -> int:
    """Remove a batch of uploads that no job has brought for too long; return how many."""
    kept = world.rules.retention
    return delete_unused_uploads(unit.session, unit.now - kept.uploads, kept.batch)


def remove_race_sets(unit: Unit, world: World) -> int:
    """Remove a batch of sets of which no job that may be repeated is alive; return how many."""
    return delete_over(unit.session, unit.now - world.rules.pool_grace, world.rules.retention.batch)


def remove_gone_routers(unit: Unit, world: World) -> int:
    """Remove what routers told that have been away as long as finished jobs are kept and left nothing; return how many.

    One with copies stays, however long it is away: they are to be brought to an end, or given up.
    """
    return routers.delete_gone(unit.session, unit.now - world.rules.retention.finished_jobs)


def remove_old_requests(unit: Unit, world: World) -> int:
    """Remove a batch of answers to requests that nobody will repeat any more; return how many."""
    kept = world.rules.retention
    return delete_answers(unit.session, unit.now - kept.requests, kept.batch)


REMOVALS: tuple[Callable[[Unit, World], int], ...] = (
    remove_finished,
    remove_ended_pilots,
    remove_idle_task_queues,
    remove_old_trees,
    remove_faded_uses,
    remove_old_uploads,
    remove_race_sets,
    remove_gone_routers,
    remove_old_requests,
)
"""All that removes rows; each returns how many it removed, 0 = there is nothing left for it."""


def sweep_files(unit: Unit, world: World, store: FileStore, prefix: str) -> int:
    """Remove the contents of one portion of the store that no row names and that are old; return how many.

    A content that has just come has no row yet, which is why only old ones go (`Retention.uploads`). Also what
    a crash left between disk and database goes this way.
    """
    before = unit.now - world.rules.retention.uploads
    unnamed = unnamed_checksums(unit.session, store.list(prefix, before))
    removed = sum(store.remove(checksum, before) for checksum in sorted(unnamed))
    return removed + (store.sweep_unfinished(before) if prefix == PREFIXES[0] else 0)
