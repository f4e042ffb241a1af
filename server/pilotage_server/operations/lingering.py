"""Jobs whose last attempt was taken from its pilot: a match may have them again once that attempt is surely over."""

from __future__ import annotations

from collections.abc import Iterable

from pilotage_server.operations.arrivals import arrive
from pilotage_server.operations.world import World
from pilotage_server.storage import lingering
from pilotage_server.storage.engine import Unit


def attempts_over(unit: Unit, world: World, job_ids: Iterable[int]) -> None:
    """Take note that the last attempts of these jobs linger no more, for their pilots have said how they ended."""
    arrive(unit, world, lingering.let_go(unit.session, job_ids))


def pilots_over(unit: Unit, world: World, stamps: Iterable[str]) -> None:
    """Take note that nothing lingers at these pilots, for they are no more."""
    attempts_over(unit, world, lingering.lock_of_pilots(unit.session, stamps))


def leases_over(unit: Unit, world: World, most: int) -> int:
    """Let go at most so many jobs whose last lease has ended by now; return how many."""
    lapsed = lingering.lock_lapsed(unit.session, unit.now, most)
    attempts_over(unit, world, lapsed)
    return len(lapsed)
