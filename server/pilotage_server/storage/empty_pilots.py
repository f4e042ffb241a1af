"""Pilots that came back empty, in the database."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from datetime import datetime

from sqlmodel import Session

from pilotage.resource_tree import QueueId
from pilotage_server.core.empty_returns import EmptyPilot
from pilotage_server.storage import bulk
from pilotage_server.storage.tables.conditions import EMPTY, UNREPORTED

_EMPTY = f"SELECT site, ce, queue, registered, ended FROM pilots WHERE {EMPTY} AND ended >= ?"  # noqa: S608 - a constant
# From the newest pilot on, for as a rule it is one of the first.
_PROVEN = f"""SELECT registered FROM pilots WHERE site = ? AND ce = ? AND queue = ? AND NOT {EMPTY} AND (jobs_ended > 0
    OR EXISTS (SELECT 1 FROM attempts WHERE pilot_stamp = stamp AND started IS NOT NULL AND {UNREPORTED}))
    ORDER BY registered DESC LIMIT 1"""  # noqa: S608 - constants


def load_empty_pilots(session: Session, since: datetime) -> Mapping[QueueId, Sequence[EmptyPilot]]:
    """Return the pilots that have come back empty since then, by queue."""
    found: dict[QueueId, list[EmptyPilot]] = defaultdict(list)
    for site, ce, queue, registered, ended in bulk.rows(session, _EMPTY, bulk.moment(session, since)):
        pilot = EmptyPilot(bulk.time_of(registered), bulk.time_of(ended))
        found[QueueId(site, ce, queue)].append(pilot)
    return found


def load_proven(session: Session, queue: QueueId) -> datetime | None:
    """Return when the last pilot of a queue was registered that has run a job; None = none has."""
    rows = bulk.rows(session, _PROVEN, queue.site, queue.ce, queue.queue)
    return bulk.time_of(rows[0][0]) if rows else None
