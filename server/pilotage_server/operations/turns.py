"""Copies of agents take their turns, and what only the copy may change that has it is refused to the others."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from pilotage.errors import TurnLostError
from pilotage_server.core.turns import Turn, TurnHad
from pilotage_server.storage import turns as stored
from pilotage_server.storage.engine import Unit


@dataclass(frozen=True, slots=True)
class TurnAnswer:
    """Whether the copy that asked has the turn; where the copy runs that has it ("" = none), and for how long still."""

    taken: bool
    place: str
    left: timedelta


def take_turn(unit: Unit, turn: Turn, length: timedelta, place: str) -> TurnAnswer:
    """Let a copy have its agent's turn for so long from now, unless another has it."""
    if stored.take(unit.session, TurnHad(turn, place, unit.now + length), unit.now):
        return TurnAnswer(True, place, length)
    had = stored.find(unit.session, turn.agent)
    return TurnAnswer(False, had.place, had.left(unit.now)) if had else TurnAnswer(False, "", timedelta(0))


def give_back_turn(unit: Unit, turn: Turn) -> None:
    """Let another copy have the turn at once."""
    stored.give_back(unit.session, turn)


def hold_turn(unit: Unit, turn: Turn | None) -> None:
    """Keep the turn for a copy until the transaction has ended, so that what it changes is changed in its turn.

    None = whoever calls is no copy of an agent.

    Raises
    ------
    TurnLostError
        The copy does not have the turn.
    """
    if turn is None:
        return
    _check(unit, turn, stored.hold(unit.session, turn.agent))


def check_turn(unit: Unit, turn: Turn) -> None:
    """Raise TurnLostError where a copy does not have the turn now; it may have it no more when it is answered."""
    _check(unit, turn, stored.find(unit.session, turn.agent))


def _check(unit: Unit, turn: Turn, had: TurnHad | None) -> None:
    if had is None or had.turn != turn or not had.left(unit.now):
        raise TurnLostError(turn.agent)
