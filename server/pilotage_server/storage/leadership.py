"""Leadership of agents in the database: one row for each agent, and one for each of its replicas."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlmodel import Session

from pilotage.values.leadership import AgentStatus, Leadership, ServedQueues
from pilotage_server.core.leadership import AgentReplica, LeadershipTerm
from pilotage_server.storage.database import sql

_TAKE = """
    INSERT INTO turns (agent, holder, place, until, serves_json) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (agent) DO UPDATE SET holder = excluded.holder, place = excluded.place, until = excluded.until,
        serves_json = excluded.serves_json
    WHERE turns.holder = excluded.holder OR turns.until <= ?
    RETURNING holder
"""
_FIND = "SELECT agent, holder, place, until, serves_json FROM turns WHERE agent = ?"
_UNTIL = "SELECT agent, holder, place, until, serves_json FROM turns WHERE until > ?"
_ENDS = "SELECT agent, until FROM turns WHERE until > ?"
_GIVE_BACK = "DELETE FROM turns WHERE agent = ? AND holder = ?"


def take(session: Session, wanted: LeadershipTerm, now: datetime) -> bool:
    """Store a term of leadership; False = another replica is the leader, and nothing changes."""
    until, over = sql.column_time(session, wanted.until), sql.column_time(session, now)
    leadership = wanted.leadership
    values = (leadership.agent, leadership.holder, wanted.host, until, _serves_json(wanted.serves, wanted.bounds))
    return bool(sql.rows(session, _TAKE, *values, over))


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
    agent, holder, host, until, serves_json = row
    return LeadershipTerm(Leadership(agent, holder), host, sql.utc_time(until), *_serves_from_json(serves_json))


def _serves_json(serves: ServedQueues, bounds: Sequence[str]) -> str:
    served = {"patterns": serves.patterns, "ce_types": serves.ce_types, "bounds": bounds}
    return json.dumps(served, sort_keys=True)


def _serves_from_json(text: str) -> tuple[ServedQueues, tuple[str, ...]]:
    serves = {name: tuple(values) for name, values in json.loads(text).items()}
    return ServedQueues(serves["patterns"], serves["ce_types"]), serves["bounds"]


_REPORTED = (
    "place, owner, last_seen, due, serves_json, version, last_cycle, last_success, failures, last_error, error_time"
)
_SAVE_REPLICA = f"""
    INSERT INTO agents (agent, holder, since, {_REPORTED}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (agent, holder) DO UPDATE SET ended = NULL,
        {", ".join(f"{name} = excluded.{name}" for name in _REPORTED.split(", "))}
"""  # noqa: S608 - names of columns
_LOAD_REPLICAS = f"SELECT agent, holder, since, {_REPORTED}, ended FROM agents ORDER BY agent, since"  # noqa: S608
_END_REPLICA = "UPDATE agents SET ended = ? WHERE agent = ? AND holder = ?"
_DELETE_REPLICAS = "DELETE FROM agents WHERE due < ? AND (ended IS NULL OR ended < ?)"


def save_replica(session: Session, replica: AgentReplica) -> None:
    """Store what a replica has reported; one that had ended runs again."""
    times = (
        time and sql.column_time(session, time)
        for time in (
            replica.since,
            replica.last_seen,
            replica.due,
            replica.status.last_cycle,
            replica.status.last_success,
            replica.status.last_error_time,
        )
    )
    since, last_seen, due, last_cycle, last_success, error_time = times
    sql.execute(
        session,
        _SAVE_REPLICA,
        replica.leadership.agent,
        replica.leadership.holder,
        since,
        replica.host,
        replica.owner,
        last_seen,
        due,
        _serves_json(replica.serves, replica.bounds),
        replica.status.version,
        last_cycle,
        last_success,
        replica.status.failures,
        replica.status.last_error,
        error_time,
    )


def end_replica(session: Session, leadership: Leadership, now: datetime) -> None:
    """Record that a replica has ended in order."""
    sql.execute(session, _END_REPLICA, sql.column_time(session, now), leadership.agent, leadership.holder)


def load_replicas(session: Session) -> tuple[AgentReplica, ...]:
    """Return all replicas, also ended ones, by agent and first call."""
    return tuple(map(_replica, sql.rows(session, _LOAD_REPLICAS)))


def delete_replicas(session: Session, before: datetime) -> int:
    """Remove the replicas that ended, or fell silent, before then; return how many."""
    limit = sql.column_time(session, before)
    return sql.execute(session, _DELETE_REPLICAS, limit, limit)


def _replica(row: Sequence[Any]) -> AgentReplica:
    agent, holder, since, host, owner, last_seen, due, serves_json, version = row[:9]
    last_cycle, last_success, failures, last_error, error_time, ended = row[9:]
    serves, bounds = _serves_from_json(serves_json)
    return AgentReplica(
        Leadership(agent, holder),
        host,
        owner,
        sql.utc_time(since),
        sql.utc_time(last_seen),
        sql.utc_time(due),
        serves,
        bounds,
        AgentStatus(
            version,
            last_cycle and sql.utc_time(last_cycle),
            last_success and sql.utc_time(last_success),
            failures,
            last_error,
            error_time and sql.utc_time(error_time),
        ),
        ended and sql.utc_time(ended),
    )
