"""What running limits count, in the database: one row a limit, changed by whoever gives or ends leases.

Rows are taken in the order of their keys, so that two transactions never wait for each other in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sqlmodel import Session

from pilotage_server.storage import bulk

_READ = "SELECT key, running FROM running_counts WHERE key = ANY(?)"
_LOCK = "SELECT running FROM running_counts WHERE key = ? FOR UPDATE"
_ADD = (
    "INSERT INTO running_counts (key, running) VALUES (?, ?)"
    " ON CONFLICT (key) DO UPDATE SET running = running_counts.running + excluded.running"
)
_TAKE = f"{_ADD} WHERE running_counts.running + excluded.running <= ?"
_SET = (
    "INSERT INTO running_counts (key, running) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET running = excluded.running"
)


def read_counts(session: Session, keys: Iterable[str]) -> dict[str, int]:
    """Return how many jobs are counted under each key; one that has never counted any is left out."""
    return dict(bulk.rows(session, _READ, sorted(keys)))


def lock_counts(session: Session, keys: Iterable[str]) -> None:
    """Let nobody else change these counts until the transaction ends."""
    for key in sorted(keys):
        bulk.rows(session, _LOCK, key)


def add(session: Session, key: str, by: int) -> int:
    """Count `by` more jobs, fewer where it is negative, and return how many there are now."""
    ((running,),) = bulk.rows(session, f"{_ADD} RETURNING running", key, by)
    return int(running)


def take(session: Session, key: str, by: int, at_most: int) -> int | None:
    """Count `by` more jobs and return how many there are now; None = there would be more than `at_most`."""
    taken = bulk.rows(session, f"{_TAKE} RETURNING running", key, by, at_most)
    return int(taken[0][0]) if taken else None


def set_counts(session: Session, counts: Mapping[str, int]) -> None:
    """Let these be the counts."""
    bulk.many(session, _SET, sorted(counts.items()))
