"""Leadership of agents in the database: one row for each agent."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlmodel import Session

from pilotage.values.leadership import Leadership
from pilotage_server.core.leadership import LeadershipTerm
from pilotage_server.storage.database import sql

_TAKE = """
    INSERT INTO turns (agent, holder, place, until) VALUES (?, ?, ?, ?)
    ON CONFLICT (agent) DO UPDATE SET holder = excluded.holder, place = excluded.place, until = excluded.until
    WHERE turns.holder = excluded.holder OR turns.until <= ?
    RETURNING holder
"""
_FIND = "SELECT holder, place, until FROM turns WHERE agent = ?"
_ACTING = "SELECT agent FROM turns WHERE until > ?"
_ENDS = "SELECT agent, until FROM turns WHERE until > ?"
_GIVE_BACK = "DELETE FROM turns WHERE agent = ? AND holder = ?"


def take(session: Session, wanted: LeadershipTerm, now: datetime) -> bool:
    """Store a term of leadership; False = another replica is the leader, and nothing changes."""
    until, over = sql.column_time(session, wanted.until), sql.column_time(session, now)
    leadership = wanted.leadership
    return bool(sql.rows(session, _TAKE, leadership.agent, leadership.holder, wanted.host, until, over))


def find(session: Session, agent: str) -> LeadershipTerm | None:
    """Return the last term of an agent, which may be over; None = there is none."""
    return _found(agent, sql.rows(session, _FIND, agent))


def lock(session: Session, agent: str) -> LeadershipTerm | None:
    """Return the same and lock it until the transaction ends."""
    return _found(agent, sql.rows(session, f"{_FIND} FOR UPDATE", agent))


def active_agents(session: Session, now: datetime) -> frozenset[str]:
    """Return the agents that have a leader now."""
    return frozenset(agent for (agent,) in sql.rows(session, _ACTING, sql.column_time(session, now)))


def leadership_ends(session: Session, since: datetime) -> dict[str, datetime]:
    """Return when the last term of each agent ends, or has ended since then; an agent that was stopped has none."""
    return {agent: sql.utc_time(until) for agent, until in sql.rows(session, _ENDS, sql.column_time(session, since))}


def release(session: Session, leadership: Leadership) -> None:
    """Remove the term of this replica."""
    sql.execute(session, _GIVE_BACK, leadership.agent, leadership.holder)


def _found(agent: str, rows: Sequence[tuple[Any, ...]]) -> LeadershipTerm | None:
    return next(
        (LeadershipTerm(Leadership(agent, holder), host, sql.utc_time(until)) for holder, host, until in rows), None
    )
