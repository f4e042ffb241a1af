"""Throttles on every database: probes are claimed once, and throttles reach other servers and site directors."""

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
from support.grid import (
    NODE,
    QUEUE,
    Grid,
    Pilot,
    a_pilot,
    a_slot,
    an_idle_slot,
    evidence_of_running,
    grid,
    open_breaker,
    open_breakers,
    review_health,
)
from support.jobs import an_operator
from support.virtual_clock import VirtualClock

__all__ = ["grid"]


def test_stored_throttle_is_loaded_at_server_start(grid: Grid) -> None:
    new = open_breaker(grid)
    assert open_breakers(grid) == [new]
    assert grid.state.throttles == grid.restarted().state.throttles == {NODE: new}


def test_only_one_of_two_servers_throttles_a_node(grid: Grid) -> None:
    first = open_breaker(grid)
    again = ThrottleChange(None, new_throttle(BlackHole(NODE, 60, 70), HealthRules(), grid.clock()))
    assert grid.write(lambda transaction, state: store_changes(transaction, state, [again])) == []
    assert open_breakers(grid) == [first]


def test_probe_is_claimed_once_among_servers(grid: Grid, clock: VirtualClock) -> None:
    open_breaker(grid)
    other = grid.restarted()
    pilot, other_pilot = a_pilot(grid), a_pilot(other)
    assert not pilot.claim()
    assert not other_pilot.claim()
    clock.advance(seconds=100)
    assert len(other_pilot.claim()) == 1
    assert not pilot.claim()
    assert not other_pilot.claim()


def test_one_of_concurrent_requests_gets_the_probe(grid: Grid, clock: VirtualClock) -> None:
    open_breaker(grid)
    clock.advance(seconds=100)
    pilots = [a_pilot(server) for server in (grid, *(grid.restarted() for _ in range(5)))]
    ready = Barrier(len(pilots))

    def ask(pilot: Pilot) -> list[int]:
        ready.wait()
        return pilot.claim()

    with ThreadPoolExecutor(len(pilots)) as threads:
        assert sorted(map(len, threads.map(ask, pilots))) == [0, 0, 0, 0, 0, 1]


def test_match_of_server_without_the_throttle_is_no_probe(grid: Grid, clock: VirtualClock) -> None:
    other, watch = grid.restarted(), HealthWatch()
    review_health(grid, watch)
    open_breaker(grid)
    uninformed, probing = a_pilot(other), a_pilot(grid)
    clock.advance(seconds=100)
    trial, stray = probing.take(), uninformed.take()
    uninformed.report(stray, Outcome.EXITED, exit_code=0, wall_s=1)
    assert review_health(grid, watch) == []
    probing.report(trial, Outcome.EXITED, exit_code=0, wall_s=1)
    (change,) = review_health(grid, watch)
    assert change.new is not None
    assert change.new.proofs == 1


def test_lasting_probe_is_counted_apart_from_other_jobs(grid: Grid, clock: VirtualClock) -> None:
    before = a_pilot(grid)
    before.start(before.take())
    open_breaker(grid)
    clock.advance(seconds=100)
    probing = a_pilot(grid)
    probing.start(probing.take())
    clock.advance(seconds=60)
    lasted = [group.lasted for group in evidence_of_running(grid) if group.lasted is not None]
    assert sorted((group.trial, group.number) for group in lasted) == [(False, 1), (True, 1)]


def test_throttled_node_in_throttled_queue_needs_both_probes(grid: Grid, clock: VirtualClock) -> None:
    open_breaker(grid, QUEUE)
    clock.advance(seconds=50)
    open_breaker(grid)
    clock.advance(seconds=60)  # the queue's probe is due, the node's is not
    assert not a_pilot(grid).claim()
    assert len(a_pilot(grid, "n2").claim()) == 1


def test_throttles_reach_other_servers_at_their_next_refresh(grid: Grid) -> None:
    other, watch = grid.restarted(), HealthWatch()
    woken: list[str] = []
    other.state.access_listeners.append(lambda: woken.append("now"))
    open_breaker(grid)
    review_health(other, watch)
    assert set(other.state.throttles) == {NODE}
    grid.write(lambda transaction, state: open_place(transaction, state, an_operator("olga"), NODE))
    review_health(other, watch)
    assert not other.state.throttles
    assert woken == ["now"]
    assert len(a_pilot(other).claim()) == 1


def test_uncommitted_review_is_repeated_with_its_evidence(grid: Grid) -> None:
    watch, fine, hole = HealthWatch(), a_pilot(grid, "fine"), a_pilot(grid)
    review_health(grid, watch)
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


def test_estimator_finds_no_slot_in_throttled_queue(grid: Grid) -> None:
    estimator, credential = ServerMatchEstimator(grid.state, grid.clock), a_pilot(grid).identity.pilot
    assert credential is not None
    (waiting,) = grid.state.waiting.waiting()
    open_breaker(grid, QUEUE)
    assert estimator.of(waiting.task_queue, credential, [a_slot()]) is PossibleSlots.NONE
    assert estimator.upper_bound(waiting.task_queue, credential, [a_slot()]) is PossibleSlots.NONE
    grid.write(lambda transaction, state: open_place(transaction, state, an_operator("olga"), QUEUE))
    assert estimator.of(waiting.task_queue, credential, [a_slot()]) is PossibleSlots.FREE_SLOT


def test_demand_shows_throttled_queue(grid: Grid) -> None:
    a_pilot(grid)
    queue = next(iter(grid.state.tree.queues))
    open_breaker(grid, QUEUE)
    (supply,) = grid.read(lambda transaction, state: get_demand(transaction, state, [queue])).supplies
    assert supply.throttled.startswith("queue CERN/ce01/long is throttled: 6 of 7 attempts")
    assert not supply.held


def test_idle_slots_of_throttled_node_are_no_supply(grid: Grid) -> None:
    for node in ("n1", "n2"):
        grid.start_pilot().show(an_idle_slot(), name=node)
    queue = next(iter(grid.state.tree.queues))

    def idle() -> int:
        (supply,) = grid.read(lambda transaction, state: get_demand(transaction, state, [queue])).supplies
        return sum(slots.count for slots in supply.idle)

    assert idle() == 2
    open_breaker(grid)
    assert idle() == 1
    open_breaker(grid, QUEUE)
    assert idle() == 0


def test_change_does_not_overwrite_a_started_probe(grid: Grid, clock: VirtualClock) -> None:
    old = open_breaker(grid)
    clock.advance(seconds=100)
    assert len(a_pilot(grid).claim()) == 1
    stale = ThrottleChange(old, replace(old, proofs=1, next_trial=clock()))
    assert grid.write(lambda transaction, state: store_changes(transaction, state, [stale])) == []
    (stored,) = open_breakers(grid)
    assert stored.next_trial == clock() + timedelta(minutes=2)
    again = ThrottleChange(stored, replace(stored, proofs=1, next_trial=None))
    assert grid.write(lambda transaction, state: store_changes(transaction, state, [again])) == [again]
    assert again.new is not None
    last = ThrottleChange(again.new, replace(again.new, proofs=2))
    assert grid.write(lambda transaction, state: store_changes(transaction, state, [last])) == [last]


def test_throttles_are_opened_when_watch_is_turned_off(database: Database, clock: VirtualClock) -> None:
    open_breaker(Grid(database, clock))
    (change,) = review_health(Grid(database, clock, rules=Rules(health=HealthRules(watch=False))), HealthWatch())
    assert change.new is not None
    assert (change.new.state.value, change.new.reason) == ("opened", "the search for black holes is off")


def test_nothing_is_throttled_when_watch_is_off(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock, rules=Rules(health=HealthRules(watch=False)))
    grid.submit(count=50)
    watch, fine, hole = HealthWatch(), a_pilot(grid, "fine"), a_pilot(grid)
    review_health(grid, watch)
    fine.report(fine.take(), Outcome.EXITED, exit_code=0, wall_s=9)
    for _ in range(9):
        hole.report(hole.take(), Outcome.EXITED, exit_code=1, wall_s=1)
    assert review_health(grid, watch) == []
