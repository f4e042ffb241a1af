"""Leadership of agents in the database: one row for each agent."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlmodel import Session

from pilotage.values.leadership import Leadership, ServedQueues
from pilotage_server.core.leadership import LeadershipTerm
from pilotage_server.storage.database import sql

_COLUMNS = "agent, holder, place, until, serves_json, release, succeeded, fault"
_TAKE = f"""
    INSERT INTO turns ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (agent) DO UPDATE SET holder = excluded.holder, place = excluded.place, until = excluded.until,
        serves_json = excluded.serves_json, release = excluded.release, succeeded = excluded.succeeded,
        fault = excluded.fault
    WHERE turns.holder = excluded.holder OR turns.until <= ?
    RETURNING holder
"""  # noqa: S608 - of constants only
_FIND = f"SELECT {_COLUMNS} FROM turns WHERE agent = ?"  # noqa: S608 - of constants only
_UNTIL = f"SELECT {_COLUMNS} FROM turns WHERE until > ?"  # noqa: S608 - of constants only
_ENDS = "SELECT agent, until FROM turns WHERE until > ?"
_GIVE_BACK = "DELETE FROM turns WHERE agent = ? AND holder = ?"


def take(session: Session, wanted: LeadershipTerm, now: datetime) -> bool:
    """Store a term of leadership; False = another replica is the leader, and nothing changes."""
    until, over = sql.column_time(session, wanted.until), sql.column_time(session, now)
    leadership = wanted.leadership
    serves = {"patterns": wanted.serves.patterns, "ce_types": wanted.serves.ce_types, "bounds": wanted.bounds}
    values = (leadership.agent, leadership.holder, wanted.host, until, json.dumps(serves, sort_keys=True))
    succeeded = None if wanted.succeeded is None else sql.column_time(session, wanted.succeeded)
    return bool(sql.rows(session, _TAKE, *values, wanted.release, succeeded, wanted.fault, over))


def find(session: Session, agent: str) -> LeadershipTerm | None:
    """Return the last term of an agent, which may be over; None = there is none."""
    return next(map(_term, sql.rows(session, _FIND, agent)), None)


def lock(session: Session, agent: str) -> LeadershipTerm | None:
    """Return the same and lock it until the transaction ends."""
    return next(map(_term, sql.rows(session, f"{_FIND} FOR UPDATE", agent)), None)


def active_terms(session: Session, now: datetime) -> tuple[LeadershipTerm, ...]:
    """Return the terms of the present leaders."""
    return terms_until(session, now)


def terms_until(session: Session, since: datetime) -> tuple[LeadershipTerm, ...]:
    """Return the last term of each agent that ends, or has ended, since then; an agent that was stopped has none."""
    return tuple(map(_term, sql.rows(session, _UNTIL, sql.column_time(session, since))))


def active_agents(session: Session, now: datetime) -> frozenset[str]:
    """Return the agents that have a leader now."""
    return frozenset(term.leadership.agent for term in active_terms(session, now))


def leadership_ends(session: Session, since: datetime) -> dict[str, datetime]:
    """Return when the last term of each agent ends, or has ended since then; an agent that was stopped has none."""
    return {agent: sql.utc_time(until) for agent, until in sql.rows(session, _ENDS, sql.column_time(session, since))}


def release(session: Session, leadership: Leadership) -> None:
    """Remove the term of this replica."""
    sql.execute(session, _GIVE_BACK, leadership.agent, leadership.holder)


def _term(row: Sequence[Any]) -> LeadershipTerm:
    agent, holder, host, until, serves_json, release, succeeded, fault = row
    serves = {name: tuple(values) for name, values in json.loads(serves_json).items()}
    served = ServedQueues(serves["patterns"], serves["ce_types"])
    return LeadershipTerm(
        Leadership(agent, holder),
        host,
        sql.utc_time(until),
        served,
        serves["bounds"],
        release,
        None if succeeded is None else sql.utc_time(succeeded),
        fault,
    )
