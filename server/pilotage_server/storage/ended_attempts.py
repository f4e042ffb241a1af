"""What the feed says of attempts that have ended, and which of those that run have lasted: the evidence on places."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import Session

from pilotage.resource_tree import QueueId
from pilotage_server.core.accounting import Account
from pilotage_server.core.health import Attempts, Spot
from pilotage_server.storage import bulk
from pilotage_server.storage.tables.conditions import UNREPORTED

_SPOT = "site, ce, queue, node, charged_vo, charged_group, charged_owner"
_FAILURE = "SELECT 1 FROM job_events WHERE id > ? AND id <= ? AND cause IN ('failed', 'start failed') LIMIT 1"
_ENDED = f"""
    SELECT {_SPOT}, is_failure, count(*), max(matched), max(wall_s) FROM (
        SELECT {_SPOT}, attempts.matched AS matched, attempts.wall_s AS wall_s, CASE
            WHEN attempts.outcome = 'start failed' THEN 1
            WHEN attempts.outcome = 'exited' AND attempts.wall_s < ?
                AND (coalesce(attempts.exit_code, -1) <> 0 OR coalesce(attempts.signal, 0) <> 0) THEN 1
            ELSE 0 END AS is_failure
        FROM job_events JOIN attempts
            ON attempts.job_id = job_events.job_id AND attempts.attempt = job_events.attempt
        WHERE job_events.id > ? AND job_events.id <= ?
            AND job_events.cause IN ('done', 'failed', 'start failed', 'attempts exhausted')
            AND attempts.outcome IN ('exited', 'start failed', 'limit exceeded')
    ) AS ended
    GROUP BY {_SPOT}, is_failure
"""  # noqa: S608 - names of columns
_RUNNING = f"""
    SELECT {_SPOT}, 0, count(*), max(matched), min(CASE WHEN started > matched THEN started ELSE matched END)
    FROM attempts WHERE {UNREPORTED} AND ended IS NULL AND started <= ? AND matched <= ? GROUP BY {_SPOT}
"""  # noqa: S608


def has_failures(session: Session, after: int, up_to: int) -> bool:
    """Whether any attempt has failed in this part of the feed."""
    return bool(bulk.rows(session, _FAILURE, after, up_to))


def load_ended(session: Session, after: int, up_to: int, fast: timedelta) -> list[Attempts]:
    """Return the attempts that have ended by themselves in this part of the feed: those that did alike together."""
    rows = bulk.rows(session, _ENDED, fast.total_seconds(), after, up_to)
    return [_attempts(row, timedelta(seconds=longest_s)) for *row, longest_s in rows]


def load_running(session: Session, least: timedelta, now: datetime) -> list[Attempts]:
    """Return the attempts that run, and have done so for as long as `least`; a node's clock makes it no longer."""
    begun = bulk.moment(session, now - least)
    rows = bulk.rows(session, _RUNNING, begun, begun)
    return [_attempts(row, now - bulk.time_of(started)) for *row, started in rows]


def _attempts(row: Sequence[Any], longest: timedelta) -> Attempts:
    site, ce, queue, node, vo, group, owner, failed, count, matched = row
    spot = Spot(QueueId(site, ce, queue), node, Account(vo, group, owner))
    return Attempts(spot, bool(failed), count, bulk.time_of(matched), longest)
