"""What is past its time goes, batch by batch; each call is one short transaction, to be repeated until it has none."""

from __future__ import annotations

from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.file_store import FileStore
from pilotage_server.storage.leftovers import delete_ended_jobs, delete_unused_uploads, unnamed_checksums
from pilotage_server.storage.requests import delete_answers

PREFIXES = tuple(f"{number:02x}" for number in range(256))
"""First two digits of checksums: the portions in which a store of files is swept."""


def remove_finished(unit: Unit, world: World) -> int:
    """Remove a batch of jobs that ended too long ago, with events, attempts and outputs; return how many."""
    kept = world.rules.retention
    return delete_ended_jobs(unit.session, unit.now - kept.finished_jobs, kept.batch)


def remove_old_uploads(unit: Unit, world: World) -> int:
    """Remove a batch of uploads that no job has brought for too long; return how many."""
    kept = world.rules.retention
    return delete_unused_uploads(unit.session, unit.now - kept.uploads, kept.batch)


def remove_old_requests(unit: Unit, world: World) -> int:
    """Remove a batch of answers to requests that nobody will repeat any more; return how many."""
    kept = world.rules.retention
    return delete_answers(unit.session, unit.now - kept.requests, kept.batch)


def sweep_files(unit: Unit, world: World, store: FileStore, prefix: str) -> int:
    """Remove the contents of one portion of the store that no row names and that are old; return how many.

    A content that has just come has no row yet, which is why only old ones go (`Retention.uploads`). Also what
    a crash left between disk and database goes this way.
    """
    before = unit.now - world.rules.retention.uploads
    unnamed = unnamed_checksums(unit.session, store.list(prefix, before))
    removed = sum(store.remove(checksum, before) for checksum in sorted(unnamed))
    return removed + (store.sweep_unfinished(before) if prefix == PREFIXES[0] else 0)
