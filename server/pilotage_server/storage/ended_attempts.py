"""What the feed says of attempts that have ended, and which of those that run have lasted: the evidence on places."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlmodel import Session

from pilotage.resource_tree import QueueId
from pilotage_server.core.accounting import Account
from pilotage_server.core.evidence import FAILURES, OUTLASTS_BY, Attempts, Running, Wanted
from pilotage_server.core.health import Spot
from pilotage_server.storage import bulk
from pilotage_server.storage.tables.conditions import UNREPORTED

_SPOT = "site, ce, queue, node, charged_vo, charged_group, charged_owner"
_FAILURES = ", ".join(f"'{cause}'" for cause in sorted(FAILURES))
_FAILURE = f"SELECT 1 FROM job_events WHERE id > ? AND id <= ? AND cause IN ({_FAILURES}) LIMIT 1"  # noqa: S608
_ENDED = f"""
    SELECT {_SPOT}, trial, is_failure, count(*), max(matched), max(wall_s) FROM (
        SELECT {_SPOT}, trial, attempts.matched AS matched, attempts.wall_s AS wall_s, CASE
            WHEN attempts.outcome = 'start failed' THEN 1
            WHEN (attempts.outcome = 'exited' OR plugged) AND attempts.wall_s < ?
                AND (coalesce(attempts.exit_code, -1) <> 0 OR coalesce(attempts.signal, 0) <> 0) THEN 1
            ELSE 0 END AS is_failure
        FROM job_events JOIN attempts
            ON attempts.job_id = job_events.job_id AND attempts.attempt = job_events.attempt
        WHERE job_events.id > ? AND job_events.id <= ? AND (
            job_events.cause = 'plugged'
            OR job_events.cause IN ('done', {_FAILURES}) AND job_events.from_state <> 'RACING'
                AND attempts.outcome IN ('exited', 'start failed', 'limit exceeded') AND NOT plugged
        )
    ) AS ended
    GROUP BY {_SPOT}, trial, is_failure
"""  # noqa: S608 - names of columns
_RUNNING = f"""
    SELECT {_SPOT}, trial, min(begun),
        sum(CASE WHEN begun <= ? THEN 1 ELSE 0 END), max(CASE WHEN begun <= ? THEN matched END)
    FROM (
        SELECT {_SPOT}, trial, matched, CASE WHEN started > matched THEN started ELSE matched END AS begun
        FROM attempts WHERE {UNREPORTED} AND ended IS NULL AND NOT plugged AND started <= ? AND matched <= ?
            AND (trial OR site = ANY(?) OR charged_owner = ANY(?))
    ) AS running
    GROUP BY {_SPOT}, trial
"""  # noqa: S608


def has_failures(session: Session, after: int, up_to: int) -> bool:
    """Whether any attempt has failed in this part of the feed."""
    return bool(bulk.rows(session, _FAILURE, after, up_to))


def load_ended(session: Session, after: int, up_to: int, fast: timedelta) -> list[Attempts]:
    """Return the attempts that have ended by themselves in this part of the feed: those that did alike together.

    A failure counts when it happens: not again when its plug is over, nor when the copies have failed as well that the
    job was left to.
    """
    return list(map(_ended, bulk.rows(session, _ENDED, fast.total_seconds(), after, up_to)))


def load_running(session: Session, fast: timedelta, now: datetime, wanted: Wanted) -> list[Running]:
    """Return the trials and the `wanted` attempts that have begun to run; they have lasted if for as long as `fast`.

    A node's clock makes it no longer.
    """
    lasted, begun = (bulk.moment(session, now - least) for least in (fast, OUTLASTS_BY))
    values = lasted, lasted, begun, begun, sorted(wanted.sites), sorted(wanted.owners)
    return [_running(row, now) for row in bulk.rows(session, _RUNNING, *values)]


def _running(row: Sequence[Any], now: datetime) -> Running:
    *spot, trial, begun, count, matched = row
    where, longest = _spot(spot), now - bulk.time_of(begun)
    lasted = Attempts(where, False, count, bulk.time_of(matched), longest, bool(trial)) if count else None
    return Running(where, longest, lasted)


def _ended(row: Sequence[Any]) -> Attempts:
    *spot, trial, failed, count, matched, longest_s = row
    longest = timedelta(seconds=longest_s)
    return Attempts(_spot(spot), bool(failed), count, bulk.time_of(matched), longest, bool(trial))


def _spot(row: Sequence[Any]) -> Spot:
    site, ce, queue, node, vo, group, owner = row
    return Spot(QueueId(site, ce, queue), node, Account(vo, group, owner))
