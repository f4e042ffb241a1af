"""What operators order of places, on every database: holding and opening."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.errors import InvalidInputError, NotFoundError
from pilotage.values.attempts import Outcome
from pilotage_server.core.health.black_holes import HealthRules, Location, LocationLevel
from pilotage_server.core.health.throttles import HoldOrder
from pilotage_server.core.rules import Rules
from pilotage_server.operations.health import HealthWatch, hold_place, open_place, store_changes
from pilotage_server.operations.matching.demand import get_demand
from pilotage_server.storage.database.engine import Database
from support.grid import LONG, NODE, QUEUE, Grid, a_pilot, grid, known, look, throttled
from support.virtual_clock import VirtualClock

__all__ = ["grid"]

pytestmark = pytest.mark.any_database


def a_hold(site: str, node: str) -> HoldOrder:
    return HoldOrder(Location(LocationLevel.NODE, site, node=node), "broken", "olga")


def test_an_operator_holds_a_place_until_he_opens_it(grid: Grid, clock: VirtualClock) -> None:
    held = HoldOrder(Location(LocationLevel.QUEUE, "cern", "CE01", "Long"), "broken cooling", "olga")
    grid.write(lambda transaction, state: hold_place(transaction, state, held))
    clock.advance(days=30)
    assert not a_pilot(grid).claim()
    (shown,) = known(grid)
    assert (shown.location, shown.state.value, shown.by, shown.reason) == (QUEUE, "held", "olga", "broken cooling")
    grid.write(lambda transaction, state: open_place(transaction, state, QUEUE, "otto"))
    assert len(a_pilot(grid).claim()) == 1
    assert [(each.state.value, each.by) for each in known(grid)] == [("opened", "otto")]


def test_a_place_that_was_held_for_a_while_is_tried_with_single_jobs(grid: Grid, clock: VirtualClock) -> None:
    held = HoldOrder(NODE, "new disk", "olga", clock() + timedelta(hours=1))
    grid.write(lambda transaction, state: hold_place(transaction, state, held))
    clock.advance(minutes=59)
    assert not a_pilot(grid).claim()
    clock.advance(minutes=1)
    assert len(a_pilot(grid).claim()) == 1
    assert not a_pilot(grid).claim()


def test_a_place_that_an_operator_opened_is_left_alone_for_an_interval(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, LONG, "CERN/ce01/other")
    grid.submit(count=50)
    watch, fine, hole = HealthWatch(), a_pilot(grid, "fine"), a_pilot(grid)
    look(grid, watch)
    fine.report(fine.take(), Outcome.EXITED, exit_code=0, wall_s=9)
    for _ in range(6):
        hole.report(hole.take(), Outcome.EXITED, exit_code=1, wall_s=1)
    assert [change.new and change.new.location for change in look(grid, watch)] == [NODE]
    throttled(grid)
    grid.write(lambda transaction, state: open_place(transaction, state, NODE, "olga"))
    assert look(grid, watch) == []
    clock.advance(minutes=10)
    (forgotten,) = look(grid, watch)
    assert forgotten.new is None
    assert grid.write(lambda transaction, state: store_changes(transaction, state, [forgotten])) == [forgotten]
    assert known(grid) == []


@pytest.mark.parametrize(
    "place", [Location(LocationLevel.SITE, "CERM"), Location(LocationLevel.QUEUE, "CERN", "ce01", "lon")]
)
def test_a_place_that_the_tree_does_not_have_is_refused_with_the_nearest(grid: Grid, place: Location) -> None:
    with pytest.raises(InvalidInputError, match="the nearest name there is"):
        grid.write(lambda transaction, state: hold_place(transaction, state, HoldOrder(place, "broken", "olga")))


def test_a_node_is_held_in_whichever_letter_case_it_is_named(grid: Grid) -> None:
    pilot = a_pilot(grid, "Node17.cern.ch")
    held = grid.write(lambda transaction, state: hold_place(transaction, state, a_hold("cern", "NODE17.CERN.CH")))
    assert held.warnings == ()
    assert str(held.throttle.location) == "CERN/node17.cern.ch"
    assert not pilot.claim()
    grid.write(
        lambda transaction, state: open_place(
            transaction, state, Location(LocationLevel.NODE, "Cern", node="node17.CERN.ch"), "olga"
        )
    )
    assert len(pilot.claim()) == 1


def test_a_node_of_which_no_pilot_has_told_is_held_with_a_warning(grid: Grid) -> None:
    a_pilot(grid, "node17")
    held = grid.write(lambda transaction, state: hold_place(transaction, state, a_hold("CERN", "node71")))
    told = (
        "no pilot has reported a node node71 at CERN; the nearest name there is node17; it is held for when one comes"
    )
    assert held.warnings == (told,)
    assert not a_pilot(grid, "node71").claim()


def test_a_ce_is_not_taken_for_a_node(grid: Grid) -> None:
    with pytest.raises(InvalidInputError, match="CERN/ce01 is a CE and no node; name one of its queues"):
        grid.write(lambda transaction, state: hold_place(transaction, state, a_hold("CERN", "CE01")))
    assert known(grid) == []


def test_an_end_in_the_past_is_refused(grid: Grid, clock: VirtualClock) -> None:
    with pytest.raises(InvalidInputError, match="has passed"):
        grid.write(
            lambda transaction, state: hold_place(transaction, state, HoldOrder(NODE, "broken", "olga", clock()))
        )


def test_what_is_open_is_not_opened(grid: Grid) -> None:
    with pytest.raises(NotFoundError, match="node CERN/n1"):
        grid.write(lambda transaction, state: open_place(transaction, state, NODE, "olga"))


def test_site_directors_hear_that_a_queue_is_held_until_its_end_has_come(grid: Grid, clock: VirtualClock) -> None:
    queue = next(iter(grid.state.tree.queues))
    throttled(grid, QUEUE)
    site = HoldOrder(Location(LocationLevel.SITE, "CERN"), "power cut", "olga", clock() + timedelta(hours=1))
    grid.write(lambda transaction, state: hold_place(transaction, state, site))
    (supply,) = grid.read(lambda transaction, state: get_demand(transaction, state, [queue])).supplies
    assert (supply.held, supply.throttled.split(":")[0]) == (True, "site CERN is held by olga")
    clock.advance(hours=1)
    (supply,) = grid.read(lambda transaction, state: get_demand(transaction, state, [queue])).supplies
    assert not supply.held


def test_where_nobody_watches_a_place_is_open_when_its_hold_ends(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=Rules(health=HealthRules(watch=False)))
    grid.submit(count=50)
    watch = HealthWatch()
    for_an_hour = HoldOrder(NODE, "new disk", "olga", clock() + timedelta(hours=1))
    held = grid.write(lambda transaction, state: hold_place(transaction, state, for_an_hour))
    clock.advance(minutes=59)
    assert look(grid, watch) == []
    clock.advance(minutes=1)
    (change,) = look(grid, watch)
    assert change.old == held.throttle
    grid.write(lambda transaction, state: store_changes(transaction, state, [change]))
    pilots = a_pilot(grid), a_pilot(grid)
    assert [len(pilot.claim()) for pilot in pilots] == [1, 1]
