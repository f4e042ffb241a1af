"""Pilots that came back empty, in the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlmodel import Session

from pilotage.resource_tree import QueueId
from pilotage_server.core.empty_returns import EmptyPilot
from pilotage_server.storage import bulk
from pilotage_server.storage.tables.conditions import EMPTY, UNREPORTED

_EMPTY = f"SELECT site, ce, queue, registered, ended FROM pilots WHERE {EMPTY} AND ended >= ?"  # noqa: S608 - a constant
_HAS_RUN = f"""(jobs_ended > 0
    OR EXISTS (SELECT 1 FROM attempts WHERE pilot_stamp = stamp AND started IS NOT NULL AND {UNREPORTED}))"""  # noqa: S608 - a constant
_HAS_RUN_ANY = f"SELECT 1 FROM pilots WHERE stamp = ? AND {_HAS_RUN}"  # noqa: S608 - a constant
# From the newest pilot on, for as a rule it is one of the first.
_PROVEN = f"""SELECT registered FROM pilots WHERE site = ? AND ce = ? AND queue = ? AND registered >= ?
    AND NOT {EMPTY} AND {_HAS_RUN}
    ORDER BY registered DESC LIMIT 1"""  # noqa: S608 - constants


def load_empty_pilots(
    session: Session, since: datetime, queues: Collection[QueueId]
) -> Mapping[QueueId, Sequence[EmptyPilot]]:
    """Return the pilots of these queues that have come back empty since then."""
    wanted = {(queue.site, queue.ce, queue.queue): queue for queue in queues}
    found: dict[QueueId, list[EmptyPilot]] = defaultdict(list)
    for *place, registered, ended in bulk.rows(session, _EMPTY, bulk.moment(session, since)):
        if (queue := wanted.get(tuple(place))) is not None:
            found[queue].append(EmptyPilot(bulk.time_of(registered), bulk.time_of(ended)))
    return found


def load_proven(session: Session, queue: QueueId, since: datetime) -> datetime | None:
    """Return when the last pilot of a queue was registered that has run a job; None = none has that came since then."""
    rows = bulk.rows(session, _PROVEN, queue.site, queue.ce, queue.queue, bulk.moment(session, since))
    return bulk.time_of(rows[0][0]) if rows else None


def has_run_any(session: Session, stamp: str) -> bool:
    """Return whether a pilot has run a job, or runs one."""
    return bool(bulk.rows(session, _HAS_RUN_ANY, stamp))
