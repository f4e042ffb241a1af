"""Pilots whose connection to the broker broke, and those of which the broker should forget what they told."""

from __future__ import annotations

from collections.abc import Iterable

from pilotage_server.core.pilots import ALIVE, OVER, PilotState
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.pilots import change_pilots, load_pilots
from pilotage_server.storage.slots import remove_slots


def connections_lost(unit: Unit, _world: World, stamps: Iterable[str]) -> tuple[str, ...]:
    """Take pilots for lost whose last will was heard, and return which; one that is heard again lives again.

    Their leases go on: only a connection is known to have ended, and the jobs may still run.
    """
    alive = [pilot.stamp for pilot in load_pilots(unit.session, stamps).values() if pilot.state in ALIVE]
    values = {"state": PilotState.LOST.value, "reason": "its connection broke (its last will)", "ended": unit.now}
    change_pilots(unit.session, alive, values)
    remove_slots(unit.session, alive)
    return tuple(alive)


def stamps_over(unit: Unit, _world: World, stamps: Iterable[str]) -> tuple[str, ...]:
    """Return those of the stamps that have ended, or that nobody knows."""
    asked = sorted(set(stamps))
    pilots = load_pilots(unit.session, asked)
    return tuple(stamp for stamp in asked if stamp not in pilots or pilots[stamp].state in OVER)
