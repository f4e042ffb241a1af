"""Holds: operators close and open locations."""

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
from support.grid import LONG, NODE, QUEUE, Grid, a_pilot, grid, open_breaker, open_breakers, review_health
from support.jobs import an_operator
from support.virtual_clock import VirtualClock

__all__ = ["grid"]

pytestmark = pytest.mark.any_database


def hold_of_node(site: str, node: str) -> HoldOrder:
    return HoldOrder(Location(LocationLevel.NODE, site, node=node), "broken", "olga")


def test_held_location_stays_closed_until_opened(grid: Grid, clock: VirtualClock) -> None:
    held = HoldOrder(Location(LocationLevel.QUEUE, "cern", "CE01", "Long"), "broken cooling", "olga")
    grid.write(lambda transaction, state: hold_place(transaction, state, an_operator(), held))
    clock.advance(days=30)
    assert not a_pilot(grid).claim()
    (shown,) = open_breakers(grid)
    assert (shown.location, shown.state.value, shown.by, shown.reason) == (QUEUE, "held", "olga", "broken cooling")
    grid.write(lambda transaction, state: open_place(transaction, state, an_operator("otto"), QUEUE))
    assert len(a_pilot(grid).claim()) == 1
    assert [(throttle.state.value, throttle.by) for throttle in open_breakers(grid)] == [("opened", "otto")]


def test_location_is_probed_with_single_jobs_after_hold(grid: Grid, clock: VirtualClock) -> None:
    held = HoldOrder(NODE, "new disk", "olga", clock() + timedelta(hours=1))
    grid.write(lambda transaction, state: hold_place(transaction, state, an_operator(), held))
    clock.advance(minutes=59)
    assert not a_pilot(grid).claim()
    clock.advance(minutes=1)
    assert len(a_pilot(grid).claim()) == 1
    assert not a_pilot(grid).claim()


def test_opened_location_is_not_throttled_for_an_interval(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, LONG, "CERN/ce01/other")
    grid.submit(count=50)
    watch, fine, hole = HealthWatch(), a_pilot(grid, "fine"), a_pilot(grid)
    review_health(grid, watch)
    fine.report(fine.take(), Outcome.EXITED, exit_code=0, wall_s=9)
    for _ in range(6):
        hole.report(hole.take(), Outcome.EXITED, exit_code=1, wall_s=1)
    assert [change.new and change.new.location for change in review_health(grid, watch)] == [NODE]
    open_breaker(grid)
    grid.write(lambda transaction, state: open_place(transaction, state, an_operator("olga"), NODE))
    assert review_health(grid, watch) == []
    clock.advance(minutes=10)
    (removal,) = review_health(grid, watch)
    assert removal.new is None
    assert grid.write(lambda transaction, state: store_changes(transaction, state, [removal])) == [removal]
    assert open_breakers(grid) == []


@pytest.mark.parametrize(
    "location", [Location(LocationLevel.SITE, "CERM"), Location(LocationLevel.QUEUE, "CERN", "ce01", "lon")]
)
def test_unknown_location_is_refused_with_nearest_name(grid: Grid, location: Location) -> None:
    with pytest.raises(InvalidInputError, match=r"did you mean (CERN|long)"):
        grid.write(
            lambda transaction, state: hold_place(
                transaction, state, an_operator(), HoldOrder(location, "broken", "olga")
            )
        )


def test_node_name_ignores_letter_case(grid: Grid) -> None:
    pilot = a_pilot(grid, "Node17.cern.ch")
    held = grid.write(
        lambda transaction, state: hold_place(transaction, state, an_operator(), hold_of_node("cern", "NODE17.CERN.CH"))
    )
    assert held.warnings == ()
    assert str(held.throttle.location) == "CERN/node17.cern.ch"
    assert not pilot.claim()
    grid.write(
        lambda transaction, state: open_place(
            transaction, state, an_operator(), Location(LocationLevel.NODE, "Cern", node="node17.CERN.ch")
        )
    )
    assert len(pilot.claim()) == 1


def test_unreported_node_is_held_with_warning(grid: Grid) -> None:
    a_pilot(grid, "node17")
    held = grid.write(
        lambda transaction, state: hold_place(transaction, state, an_operator(), hold_of_node("CERN", "node71"))
    )
    warning = "no pilot has reported a node node71 at CERN; did you mean node17?; it is held for when one comes"
    assert held.warnings == (warning,)
    assert not a_pilot(grid, "node71").claim()


def test_ce_name_is_refused_as_node(grid: Grid) -> None:
    with pytest.raises(InvalidInputError, match="CERN/ce01 is a CE and no node; name one of its queues"):
        grid.write(
            lambda transaction, state: hold_place(transaction, state, an_operator(), hold_of_node("CERN", "CE01"))
        )
    assert open_breakers(grid) == []


def test_hold_with_end_in_the_past_is_refused(grid: Grid, clock: VirtualClock) -> None:
    with pytest.raises(InvalidInputError, match="has passed"):
        grid.write(
            lambda transaction, state: hold_place(
                transaction, state, an_operator(), HoldOrder(NODE, "broken", "olga", clock())
            )
        )


def test_opening_open_location_is_an_error(grid: Grid) -> None:
    with pytest.raises(NotFoundError, match="node CERN/n1"):
        grid.write(lambda transaction, state: open_place(transaction, state, an_operator("olga"), NODE))


def test_demand_shows_held_queue_until_hold_ends(grid: Grid, clock: VirtualClock) -> None:
    queue = next(iter(grid.state.tree.queues))
    open_breaker(grid, QUEUE)
    site = HoldOrder(Location(LocationLevel.SITE, "CERN"), "power cut", "olga", clock() + timedelta(hours=1))
    grid.write(lambda transaction, state: hold_place(transaction, state, an_operator(), site))
    (supply,) = grid.read(lambda transaction, state: get_demand(transaction, state, [queue])).supplies
    assert (supply.held, supply.throttled.split(":")[0]) == (True, "site CERN is held by olga")
    clock.advance(hours=1)
    (supply,) = grid.read(lambda transaction, state: get_demand(transaction, state, [queue])).supplies
    assert not supply.held


def test_location_opens_after_hold_when_watch_is_off(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=Rules(health=HealthRules(watch=False)))
    grid.submit(count=50)
    watch = HealthWatch()
    for_an_hour = HoldOrder(NODE, "new disk", "olga", clock() + timedelta(hours=1))
    held = grid.write(lambda transaction, state: hold_place(transaction, state, an_operator(), for_an_hour))
    clock.advance(minutes=59)
    assert review_health(grid, watch) == []
    clock.advance(minutes=1)
    (change,) = review_health(grid, watch)
    assert change.old == held.throttle
    grid.write(lambda transaction, state: store_changes(transaction, state, [change]))
    pilots = a_pilot(grid), a_pilot(grid)
    assert [len(pilot.claim()) for pilot in pilots] == [1, 1]
