"""Throttles on every database: trials that are claimed once, what servers hear of one another, what directors hear."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from threading import Barrier

from pilotage.values.attempts import Outcome
from pilotage_server.core.health.black_holes import BlackHole, HealthRules
from pilotage_server.core.health.throttles import ThrottleChange, new_throttle
from pilotage_server.core.rules import Rules
from pilotage_server.operations.health import HealthWatch, open_place, store_changes
from pilotage_server.operations.matching.demand import get_demand
from pilotage_server.operations.matching.idle_pilots import PossibleSlots, ServerMatchEstimator
from pilotage_server.storage.database.engine import Database
from support.grid import NODE, QUEUE, Grid, Pilot, a_pilot, a_slot, an_idle_slot, grid, known, look, running, throttled
from support.virtual_clock import VirtualClock

__all__ = ["grid"]


def test_a_throttle_comes_back_as_it_was_stored_and_servers_that_start_know_it(grid: Grid) -> None:
    new = throttled(grid)
    assert known(grid) == [new]
    assert grid.state.throttles == grid.restarted().state.throttles == {NODE: new}


def test_of_two_servers_that_find_the_same_one_throttles_it(grid: Grid) -> None:
    first = throttled(grid)
    again = ThrottleChange(None, new_throttle(BlackHole(NODE, 60, 70), HealthRules(), grid.clock()))
    assert grid.write(lambda transaction, state: store_changes(transaction, state, [again])) == []
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
    other.state.access_listeners.append(lambda: woken.append("now"))
    throttled(grid)
    look(other, watch)
    assert set(other.state.throttles) == {NODE}
    grid.write(lambda transaction, state: open_place(transaction, state, NODE, "olga"))
    look(other, watch)
    assert not other.state.throttles
    assert woken == ["now"]
    assert len(a_pilot(other).claim()) == 1


def test_a_look_whose_changes_were_not_stored_is_made_again_with_all_that_it_saw(grid: Grid) -> None:
    watch, fine, hole = HealthWatch(), a_pilot(grid, "fine"), a_pilot(grid)
    look(grid, watch)
    fine.report(fine.take(), Outcome.EXITED, exit_code=0, wall_s=9)
    for _ in range(6):
        hole.report(hole.take(), Outcome.EXITED, exit_code=1, wall_s=1)
    lost = grid.read(watch.review)
    assert [change.new and change.new.location for change in lost.changes] == [NODE]
    assert grid.read(watch.review) == lost
    watch.commit(lost)
    hole.report(hole.take(), Outcome.EXITED, exit_code=1, wall_s=1)
    (change,) = grid.read(watch.review).changes
    assert change.new is not None
    assert (change.new.failures, change.new.ends) == (7, 7)


def test_pilots_that_wait_in_a_throttled_queue_are_not_told_of_new_jobs(grid: Grid) -> None:
    chances, credential = ServerMatchEstimator(grid.state, grid.clock), a_pilot(grid).identity.pilot
    assert credential is not None
    (waiting,) = grid.state.waiting.waiting()
    throttled(grid, QUEUE)
    assert chances.of(waiting.task_queue, credential, [a_slot()]) is PossibleSlots.NONE
    assert chances.upper_bound(waiting.task_queue, credential, [a_slot()]) is PossibleSlots.NONE
    grid.write(lambda transaction, state: open_place(transaction, state, QUEUE, "olga"))
    assert chances.of(waiting.task_queue, credential, [a_slot()]) is PossibleSlots.FREE_SLOT


def test_site_directors_hear_that_a_queue_is_throttled(grid: Grid) -> None:
    a_pilot(grid)
    queue = next(iter(grid.state.tree.queues))
    throttled(grid, QUEUE)
    (supply,) = grid.read(lambda transaction, state: get_demand(transaction, state, [queue])).supplies
    assert supply.throttled.startswith("queue CERN/ce01/long is throttled: 6 of 7 attempts")
    assert not supply.held


def test_idle_slots_of_a_throttled_node_are_no_supply(grid: Grid) -> None:
    for node in ("n1", "n2"):
        grid.start_pilot().show(an_idle_slot(), name=node)
    queue = next(iter(grid.state.tree.queues))

    def idle() -> int:
        (supply,) = grid.read(lambda transaction, state: get_demand(transaction, state, [queue])).supplies
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
    judged = ThrottleChange(old, replace(old, proofs=1, next_trial=clock()))
    assert grid.write(lambda transaction, state: store_changes(transaction, state, [judged])) == []
    (there,) = known(grid)
    assert there.next_trial == clock() + timedelta(minutes=2)
    again = ThrottleChange(there, replace(there, proofs=1, next_trial=None))
    assert grid.write(lambda transaction, state: store_changes(transaction, state, [again])) == [again]
    assert again.new is not None
    last = ThrottleChange(again.new, replace(again.new, proofs=2))
    assert grid.write(lambda transaction, state: store_changes(transaction, state, [last])) == [last]


def test_where_nobody_watches_any_more_what_was_throttled_is_opened(database: Database, clock: VirtualClock) -> None:
    throttled(Grid(database, clock))
    (change,) = look(Grid(database, clock, rules=Rules(health=HealthRules(watch=False))), HealthWatch())
    assert change.new is not None
    assert (change.new.state.value, change.new.reason) == ("opened", "the search for black holes is off")


def test_where_nobody_watches_nothing_is_throttled(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=Rules(health=HealthRules(watch=False)))
    grid.submit(count=50)
    watch, fine, hole = HealthWatch(), a_pilot(grid, "fine"), a_pilot(grid)
    look(grid, watch)
    fine.report(fine.take(), Outcome.EXITED, exit_code=0, wall_s=9)
    for _ in range(9):
        hole.report(hole.take(), Outcome.EXITED, exit_code=1, wall_s=1)
    assert look(grid, watch) == []
