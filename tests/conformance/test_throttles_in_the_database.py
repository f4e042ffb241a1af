"""Throttles on every database: what attempts tell of places, trials that are claimed once, what operators order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest

from pilotage.errors import InvalidInputError, NotFoundError
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.evidence import Attempts, Running
from pilotage_server.core.health import BlackHole, HealthRules, Level, Place
from pilotage_server.core.jobs import JobState
from pilotage_server.core.reports import NodeState, Outcome
from pilotage_server.core.rules import Rules
from pilotage_server.core.throttles import Change, ClosedBy, Throttle, throttle
from pilotage_server.operations.chances import Chance, Chances
from pilotage_server.operations.demand import get_demand
from pilotage_server.operations.health import HealthWatch, hold_place, list_health, open_place, store_changes
from pilotage_server.storage.ended_attempts import has_failures, load_ended, load_running
from pilotage_server.storage.engine import Database, Unit
from pilotage_server.storage.events import feed_bounds
from support.grid import LONG, Grid, Pilot, a_slot, an_idle_slot
from support.virtual_clock import VirtualClock

NODE = Place(Level.NODE, "CERN", node="n1")
QUEUE = Place(Level.QUEUE, "CERN", "ce01", "long")
FAST = timedelta(minutes=1)


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    grid = Grid(database, clock)
    grid.submit(count=50)
    return grid


def a_pilot(grid: Grid, node: str = "n1") -> Pilot:
    pilot = grid.start_pilot()
    pilot.beat(node=NodeState(node, Amounts(1)))
    return pilot


def throttled(grid: Grid, place: Place = NODE) -> Throttle:
    """Let a place be found out as a server would."""

    def store(unit: Unit) -> Throttle:
        found = throttle(BlackHole(place, 6, 7), HealthRules(), unit.now)
        (made,) = store_changes(unit, grid.world, [Change(None, found)])
        assert made.new is not None
        return made.new

    return grid.database.write(store)


def a_hold(site: str, node: str) -> ClosedBy:
    return ClosedBy(Place(Level.NODE, site, node=node), "broken", "olga")


def known(grid: Grid) -> list[Throttle]:
    return list(grid.read(lambda unit, _: list_health(unit)))


def ended(grid: Grid, after: int = 0) -> list[tuple[str, bool, int]]:
    def read(unit: Unit) -> list[Attempts]:
        _, newest = feed_bounds(unit.session)
        found = load_ended(unit.session, after, newest, FAST)
        assert has_failures(unit.session, after, newest) or not any(each.failed for each in found)
        return found

    return sorted((each.spot.node, each.failed, each.number) for each in grid.database.read(read))


def running(grid: Grid) -> list[Running]:
    return grid.read(lambda unit, _: load_running(unit.session, FAST, unit.now))


def look(grid: Grid, watch: HealthWatch) -> list[Change]:
    """Let a server look, and go on from that though nothing is stored."""
    found = grid.read(watch.look)
    watch.keep(found)
    return list(found.changes)


def test_attempts_that_did_alike_at_a_node_are_told_together(grid: Grid) -> None:
    pilot, other = a_pilot(grid), a_pilot(grid, "n2")
    for _ in range(2):
        pilot.report(pilot.take(), Outcome.EXITED, exit_code=1, wall_s=3)
    pilot.report(pilot.take(), Outcome.START_FAILED, reason="no space left")
    pilot.report(pilot.take(), Outcome.EXITED, exit_code=0, wall_s=3)
    other.report(other.take(), Outcome.EXITED, exit_code=1, wall_s=61)
    assert ended(grid) == [("n1", False, 1), ("n1", True, 3), ("n2", False, 1)]


def test_what_ends_for_other_reasons_tells_nothing_of_its_place(grid: Grid) -> None:
    pilot = a_pilot(grid)
    pilot.report(pilot.take(), Outcome.EVICTED, reason="its owner came back")
    pilot.report(pilot.take(), Outcome.DECLINED, reason="START has changed")
    match = pilot.take()
    pilot.start(match)
    grid.glidein_ended(pilot)
    assert ended(grid) == []


def test_a_payload_that_is_plugged_has_failed_there_and_then_and_not_again_at_its_end(
    grid: Grid, clock: VirtualClock
) -> None:
    pilot = a_pilot(grid)
    match = pilot.take()
    pilot.start(match)
    failed: dict[str, Any] = {"exit_code": 1, "wall_s": 3}
    pilot.report(match, state=JobState.RUNNING, plugged=True, **failed)
    pilot.report(match, state=JobState.RUNNING, plugged=True, **failed)
    job = grid.job(match.job_id)
    assert (job.state, job.reason) == (JobState.RUNNING, "exit code 1 after 3 s: its slot is kept for a while")
    assert ended(grid) == [("n1", True, 1)]
    clock.advance(minutes=5)
    assert running(grid) == []
    pilot.report(match, Outcome.EXITED, **failed)
    job = grid.job(match.job_id)
    assert (job.state, job.reason, job.wall_clock) == (JobState.FAILED, "exit code 1", timedelta(seconds=3))
    assert ended(grid) == [("n1", True, 1)]


def test_output_that_could_not_be_stored_says_nothing_of_the_place(grid: Grid) -> None:
    pilot = a_pilot(grid)
    match = pilot.take()
    pilot.report(match, Outcome.OUTPUT_LOST, reason="it could not be stored: the server's disk is full", wall_s=3)
    assert grid.history(match.job_id) == [(1, "output lost")]
    assert grid.job(match.job_id).state is JobState.WAITING
    assert ended(grid) == []


def test_a_start_that_failed_as_the_last_attempt_of_its_job_is_a_failure(
    database: Database, clock: VirtualClock
) -> None:
    grid = Grid(database, clock, rules=Rules(attempt_limit=1))
    (job,) = grid.submit()
    pilot = a_pilot(grid)
    pilot.report(pilot.take(), Outcome.START_FAILED, reason="no space left")
    assert grid.job(job).state is JobState.FAILED
    assert ended(grid) == [("n1", True, 1)]


def test_a_signal_is_a_failure(grid: Grid) -> None:
    pilot = a_pilot(grid)
    pilot.report(pilot.take(), Outcome.EXITED, signal=11, wall_s=0.1)
    assert ended(grid) == [("n1", True, 1)]


def test_a_job_counts_as_lasting_as_soon_as_it_has_run_for_so_long(grid: Grid, clock: VirtualClock) -> None:
    pilot = a_pilot(grid)
    pilot.start(pilot.take())
    clock.advance(seconds=59)
    (young,) = running(grid)
    assert (young.spot.node, young.longest, young.lasted) == ("n1", timedelta(seconds=59), None)
    clock.advance(seconds=1)
    (old,) = running(grid)
    assert old.lasted == Attempts(old.spot, False, 1, clock() - FAST, FAST)


def test_a_node_whose_clock_is_behind_does_not_make_its_jobs_older(grid: Grid, clock: VirtualClock) -> None:
    pilot = a_pilot(grid)
    match = pilot.take()
    pilot.report(match, state=JobState.RUNNING, started=clock() - timedelta(minutes=4))
    assert running(grid) == []
    clock.advance(minutes=2)
    (each,) = running(grid)
    assert each.longest == timedelta(minutes=2)


def test_of_those_that_run_at_a_node_the_oldest_is_told_and_how_many_have_lasted(
    grid: Grid, clock: VirtualClock
) -> None:
    for pilot in (a_pilot(grid), a_pilot(grid), a_pilot(grid)):
        pilot.start(pilot.take())
        clock.advance(seconds=40)
    (each,) = running(grid)
    assert each.longest == timedelta(minutes=2)
    assert each.lasted is not None
    assert (each.lasted.number, each.lasted.matched) == (2, clock() - timedelta(seconds=80))


def test_a_throttle_comes_back_as_it_was_stored_and_servers_that_start_know_it(grid: Grid) -> None:
    new = throttled(grid)
    assert known(grid) == [new]
    assert grid.world.throttles == grid.restarted().world.throttles == {NODE: new}


def test_of_two_servers_that_find_the_same_one_throttles_it(grid: Grid) -> None:
    first = throttled(grid)
    again = Change(None, throttle(BlackHole(NODE, 60, 70), HealthRules(), grid.clock()))
    assert grid.write(lambda unit, world: store_changes(unit, world, [again])) == []
    assert known(grid) == [first]


def test_a_trial_is_had_once_by_whichever_server_is_asked(grid: Grid, clock: VirtualClock) -> None:
    throttled(grid)
    other = grid.restarted()
    here, there = a_pilot(grid), a_pilot(other)
    assert not here.claim()
    assert not there.claim()
    clock.advance(seconds=100)
    assert len(there.claim()) == 1
    assert not here.claim()
    assert not there.claim()


def test_of_pilots_that_ask_at_the_same_time_one_has_the_trial(grid: Grid, clock: VirtualClock) -> None:
    throttled(grid)
    clock.advance(seconds=100)
    pilots = [a_pilot(each) for each in (grid, *(grid.restarted() for _ in range(5)))]
    ready = Barrier(len(pilots))

    def ask(pilot: Pilot) -> list[int]:
        ready.wait()
        return pilot.claim()

    with ThreadPoolExecutor(len(pilots)) as threads:
        assert sorted(map(len, threads.map(ask, pilots))) == [0, 0, 0, 0, 0, 1]


def test_what_a_server_hands_out_that_has_not_heard_of_the_throttle_is_no_trial(
    grid: Grid, clock: VirtualClock
) -> None:
    other, watch = grid.restarted(), HealthWatch()
    look(grid, watch)
    throttled(grid)
    unheard, tried = a_pilot(other), a_pilot(grid)
    clock.advance(seconds=100)
    trial, stray = tried.take(), unheard.take()
    unheard.report(stray, Outcome.EXITED, exit_code=0, wall_s=1)
    assert look(grid, watch) == []
    tried.report(trial, Outcome.EXITED, exit_code=0, wall_s=1)
    (change,) = look(grid, watch)
    assert change.new is not None
    assert change.new.proofs == 1


def test_a_trial_that_lasts_is_told_apart_from_what_else_runs_there(grid: Grid, clock: VirtualClock) -> None:
    before = a_pilot(grid)
    before.start(before.take())
    throttled(grid)
    clock.advance(seconds=100)
    tried = a_pilot(grid)
    tried.start(tried.take())
    clock.advance(seconds=60)
    lasted = [each.lasted for each in running(grid) if each.lasted is not None]
    assert sorted((each.trial, each.number) for each in lasted) == [(False, 1), (True, 1)]


def test_a_node_in_a_throttled_queue_needs_a_trial_of_both(grid: Grid, clock: VirtualClock) -> None:
    throttled(grid, QUEUE)
    clock.advance(seconds=50)
    throttled(grid)
    clock.advance(seconds=60)  # the queue's trial is due, the node's is not
    assert not a_pilot(grid).claim()
    assert len(a_pilot(grid, "n2").claim()) == 1


def test_what_one_server_does_others_know_after_their_next_look(grid: Grid) -> None:
    other, watch = grid.restarted(), HealthWatch()
    woken: list[str] = []
    other.world.on_reach_changed.append(lambda: woken.append("now"))
    throttled(grid)
    look(other, watch)
    assert set(other.world.throttles) == {NODE}
    grid.write(lambda unit, world: open_place(unit, world, NODE, "olga"))
    look(other, watch)
    assert not other.world.throttles
    assert woken == ["now"]
    assert len(a_pilot(other).claim()) == 1


def test_a_look_whose_changes_were_not_stored_is_made_again_with_all_that_it_saw(grid: Grid) -> None:
    watch, fine, hole = HealthWatch(), a_pilot(grid, "fine"), a_pilot(grid)
    look(grid, watch)
    fine.report(fine.take(), Outcome.EXITED, exit_code=0, wall_s=9)
    for _ in range(6):
        hole.report(hole.take(), Outcome.EXITED, exit_code=1, wall_s=1)
    lost = grid.read(watch.look)
    assert [change.new and change.new.place for change in lost.changes] == [NODE]
    assert grid.read(watch.look) == lost
    watch.keep(lost)
    hole.report(hole.take(), Outcome.EXITED, exit_code=1, wall_s=1)
    (change,) = grid.read(watch.look).changes
    assert change.new is not None
    assert (change.new.failures, change.new.ends) == (7, 7)


def test_pilots_that_wait_in_a_throttled_queue_are_not_told_of_new_jobs(grid: Grid) -> None:
    chances, credential = Chances(grid.world, grid.clock), a_pilot(grid).identity.pilot
    assert credential is not None
    (waiting,) = grid.world.waiting.waiting()
    throttled(grid, QUEUE)
    assert chances.of(waiting.task_queue, credential, [a_slot()]) is Chance.NONE
    assert chances.at_best(waiting.task_queue, credential, [a_slot()]) is Chance.NONE
    grid.write(lambda unit, world: open_place(unit, world, QUEUE, "olga"))
    assert chances.of(waiting.task_queue, credential, [a_slot()]) is Chance.FREE_SLOT


def test_an_operator_holds_a_place_until_he_opens_it(grid: Grid, clock: VirtualClock) -> None:
    held = ClosedBy(Place(Level.QUEUE, "cern", "CE01", "Long"), "broken cooling", "olga")
    grid.write(lambda unit, world: hold_place(unit, world, held))
    clock.advance(days=30)
    assert not a_pilot(grid).claim()
    (shown,) = known(grid)
    assert (shown.place, shown.state.value, shown.by, shown.reason) == (QUEUE, "held", "olga", "broken cooling")
    grid.write(lambda unit, world: open_place(unit, world, QUEUE, "otto"))
    assert len(a_pilot(grid).claim()) == 1
    assert [(each.state.value, each.by) for each in known(grid)] == [("opened", "otto")]


def test_a_place_that_was_held_for_a_while_is_tried_with_single_jobs(grid: Grid, clock: VirtualClock) -> None:
    held = ClosedBy(NODE, "new disk", "olga", clock() + timedelta(hours=1))
    grid.write(lambda unit, world: hold_place(unit, world, held))
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
    assert [change.new and change.new.place for change in look(grid, watch)] == [NODE]
    throttled(grid)
    grid.write(lambda unit, world: open_place(unit, world, NODE, "olga"))
    assert look(grid, watch) == []
    clock.advance(minutes=10)
    (forgotten,) = look(grid, watch)
    assert forgotten.new is None
    assert grid.write(lambda unit, world: store_changes(unit, world, [forgotten])) == [forgotten]
    assert known(grid) == []


@pytest.mark.parametrize("place", [Place(Level.SITE, "CERM"), Place(Level.QUEUE, "CERN", "ce01", "lon")])
def test_a_place_that_the_tree_does_not_have_is_refused_with_the_nearest(grid: Grid, place: Place) -> None:
    with pytest.raises(InvalidInputError, match="the nearest name there is"):
        grid.write(lambda unit, world: hold_place(unit, world, ClosedBy(place, "broken", "olga")))


def test_a_node_is_held_in_whichever_letter_case_it_is_named(grid: Grid) -> None:
    pilot = a_pilot(grid, "Node17.cern.ch")
    held = grid.write(lambda unit, world: hold_place(unit, world, a_hold("cern", "NODE17.CERN.CH")))
    assert held.warnings == ()
    assert str(held.throttle.place) == "CERN/node17.cern.ch"
    assert not pilot.claim()
    grid.write(lambda unit, world: open_place(unit, world, Place(Level.NODE, "Cern", node="node17.CERN.ch"), "olga"))
    assert len(pilot.claim()) == 1


def test_a_node_of_which_no_pilot_has_told_is_held_with_a_warning(grid: Grid) -> None:
    a_pilot(grid, "node17")
    held = grid.write(lambda unit, world: hold_place(unit, world, a_hold("CERN", "node71")))
    told = "no pilot has told of a node node71 at CERN; the nearest name there is node17; it is held for when one comes"
    assert held.warnings == (told,)
    assert not a_pilot(grid, "node71").claim()


def test_a_ce_is_not_taken_for_a_node(grid: Grid) -> None:
    with pytest.raises(InvalidInputError, match="CERN/ce01 is a CE and no node; name one of its queues"):
        grid.write(lambda unit, world: hold_place(unit, world, a_hold("CERN", "CE01")))
    assert known(grid) == []


def test_an_end_in_the_past_is_refused(grid: Grid, clock: VirtualClock) -> None:
    with pytest.raises(InvalidInputError, match="has passed"):
        grid.write(lambda unit, world: hold_place(unit, world, ClosedBy(NODE, "broken", "olga", clock())))


def test_what_is_open_is_not_opened(grid: Grid) -> None:
    with pytest.raises(NotFoundError, match="node CERN/n1"):
        grid.write(lambda unit, world: open_place(unit, world, NODE, "olga"))


def test_site_directors_hear_that_a_queue_is_throttled(grid: Grid) -> None:
    a_pilot(grid)
    queue = next(iter(grid.world.tree.queues))
    throttled(grid, QUEUE)
    (supply,) = grid.read(lambda unit, world: get_demand(unit, world, [queue])).supplies
    assert supply.throttled.startswith("queue CERN/ce01/long is throttled: 6 of 7 attempts")
    assert not supply.held


def test_site_directors_hear_that_a_queue_is_held_until_its_end_has_come(grid: Grid, clock: VirtualClock) -> None:
    queue = next(iter(grid.world.tree.queues))
    throttled(grid, QUEUE)
    site = ClosedBy(Place(Level.SITE, "CERN"), "power cut", "olga", clock() + timedelta(hours=1))
    grid.write(lambda unit, world: hold_place(unit, world, site))
    (supply,) = grid.read(lambda unit, world: get_demand(unit, world, [queue])).supplies
    assert (supply.held, supply.throttled.split(":")[0]) == (True, "site CERN is held by olga")
    clock.advance(hours=1)
    (supply,) = grid.read(lambda unit, world: get_demand(unit, world, [queue])).supplies
    assert not supply.held


def test_idle_slots_of_a_throttled_node_are_no_supply(grid: Grid) -> None:
    for node in ("n1", "n2"):
        grid.start_pilot().show(an_idle_slot(), name=node)
    queue = next(iter(grid.world.tree.queues))

    def idle() -> int:
        (supply,) = grid.read(lambda unit, world: get_demand(unit, world, [queue])).supplies
        return sum(each.count for each in supply.idle)

    assert idle() == 2
    throttled(grid)
    assert idle() == 1
    throttled(grid, QUEUE)
    assert idle() == 0


def test_a_change_is_not_stored_over_a_trial_that_another_server_has_begun(grid: Grid, clock: VirtualClock) -> None:
    old = throttled(grid)
    clock.advance(seconds=100)
    assert len(a_pilot(grid).claim()) == 1
    judged = Change(old, replace(old, proofs=1, next_trial=clock()))
    assert grid.write(lambda unit, world: store_changes(unit, world, [judged])) == []
    (there,) = known(grid)
    assert there.next_trial == clock() + timedelta(minutes=2)
    again = Change(there, replace(there, proofs=1, next_trial=None))
    assert grid.write(lambda unit, world: store_changes(unit, world, [again])) == [again]
    assert again.new is not None
    last = Change(again.new, replace(again.new, proofs=2))
    assert grid.write(lambda unit, world: store_changes(unit, world, [last])) == [last]


def test_where_nobody_watches_a_place_is_open_when_its_hold_ends(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=Rules(health=HealthRules(watch=False)))
    grid.submit(count=50)
    watch = HealthWatch()
    for_an_hour = ClosedBy(NODE, "new disk", "olga", clock() + timedelta(hours=1))
    held = grid.write(lambda unit, world: hold_place(unit, world, for_an_hour))
    clock.advance(minutes=59)
    assert look(grid, watch) == []
    clock.advance(minutes=1)
    (change,) = look(grid, watch)
    assert change.old == held.throttle
    grid.write(lambda unit, world: store_changes(unit, world, [change]))
    pilots = a_pilot(grid), a_pilot(grid)
    assert [len(pilot.claim()) for pilot in pilots] == [1, 1]


def test_where_nobody_watches_any_more_what_was_throttled_is_opened(database: Database, clock: VirtualClock) -> None:
    throttled(Grid(database, clock))
    (change,) = look(Grid(database, clock, rules=Rules(health=HealthRules(watch=False))), HealthWatch())
    assert change.new is not None
    assert (change.new.state.value, change.new.reason) == ("opened", "nobody looks for black holes")


def test_where_nobody_watches_nothing_is_throttled(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=Rules(health=HealthRules(watch=False)))
    grid.submit(count=50)
    watch, fine, hole = HealthWatch(), a_pilot(grid, "fine"), a_pilot(grid)
    look(grid, watch)
    fine.report(fine.take(), Outcome.EXITED, exit_code=0, wall_s=9)
    for _ in range(9):
        hole.report(hole.take(), Outcome.EXITED, exit_code=1, wall_s=1)
    assert look(grid, watch) == []
