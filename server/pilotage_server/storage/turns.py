"""The turns of agents in the database: one row an agent."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlmodel import Session

from pilotage_server.core.turns import Turn, TurnHad
from pilotage_server.storage import bulk

_TAKE = """
    INSERT INTO turns (agent, holder, place, until) VALUES (?, ?, ?, ?)
    ON CONFLICT (agent) DO UPDATE SET holder = excluded.holder, place = excluded.place, until = excluded.until
    WHERE turns.holder = excluded.holder OR turns.until <= ?
    RETURNING holder
"""
_FIND = "SELECT holder, place, until FROM turns WHERE agent = ?"
_ACTING = "SELECT agent FROM turns WHERE until > ?"
_GIVE_BACK = "DELETE FROM turns WHERE agent = ? AND holder = ?"


def take(session: Session, wanted: TurnHad, now: datetime) -> bool:
    """Store that a copy has the turn; False = another has it, and nothing is stored."""
    until, over = bulk.moment(session, wanted.until), bulk.moment(session, now)
    turn = wanted.turn
    return bool(bulk.rows(session, _TAKE, turn.agent, turn.holder, wanted.place, until, over))


def find(session: Session, agent: str) -> TurnHad | None:
    """Return the turn of an agent, also one that is over; None = nobody has it."""
    return _found(agent, bulk.rows(session, _FIND, agent))


def hold(session: Session, agent: str) -> TurnHad | None:
    """Return the same, and let nobody else take the turn until this transaction has ended."""
    return _found(agent, bulk.rows(session, f"{_FIND} FOR UPDATE", agent))


def acting(session: Session, now: datetime) -> frozenset[str]:
    """Return the agents of which a copy has the turn."""
    return frozenset(agent for (agent,) in bulk.rows(session, _ACTING, bulk.moment(session, now)))


def give_back(session: Session, turn: Turn) -> None:
    """Let nobody have the turn, if this copy has it."""
    bulk.once(session, _GIVE_BACK, turn.agent, turn.holder)


def _found(agent: str, rows: Sequence[tuple[Any, ...]]) -> TurnHad | None:
    return next((TurnHad(Turn(agent, holder), place, bulk.time_of(until)) for holder, place, until in rows), None)
