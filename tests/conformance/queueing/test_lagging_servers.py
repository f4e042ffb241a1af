"""A server that has not seen yet what another one did to the tree: it sends no pilot away for that."""

from __future__ import annotations

from pilotage_server.operations.attempts.pilot_calls import DrainPilot
from pilotage_server.operations.startup.sync import sync_resources
from pilotage_server.storage.database.engine import Database
from support.grid import LONG, Grid, Pilot, a_tree
from support.virtual_clock import VirtualClock

NEW = "CERN/ce01/new"


def test_a_pilot_of_a_queue_that_is_new_waits_for_a_server_that_has_not_seen_it(
    database: Database, clock: VirtualClock
) -> None:
    late, newer = Grid(database, clock), Grid(database, clock)
    newer.put(a_tree(LONG, NEW))
    pilot = Pilot(late, newer.start_pilot(NEW).identity)

    assert pilot.ask().commands == ()
    assert pilot.beat().commands == ()


def test_a_pilot_of_a_queue_that_is_gone_is_sent_away_once_the_server_has_seen_it(
    database: Database, clock: VirtualClock
) -> None:
    late, newer = Grid(database, clock), Grid(database, clock)
    pilot = late.start_pilot(LONG)
    newer.put(a_tree(NEW))
    assert pilot.beat().commands == ()

    late.read(sync_resources)

    (command,) = pilot.beat().commands
    assert isinstance(command, DrainPilot)
