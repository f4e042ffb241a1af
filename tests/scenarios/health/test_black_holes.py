"""Black holes in virtual time: a circuit breaker opens soon, probes with single jobs, and closes after successes."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from pilotage.values.amounts import Amounts
from pilotage.values.attempts import Outcome
from pilotage_server.core.attempts.reports import NodeState
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.health import HealthWatch, list_health, store_changes
from pilotage_server.storage.database.engine import Database
from support.grid import Grid, Pilot
from support.jobs import a_user
from support.virtual_clock import VirtualClock

REVIEW_INTERVAL_S = 4
BAD, GOOD = "S/ce/bad", "S/ce/good"


@dataclass
class Farm:
    """A grid whose server reviews the health of its locations as the background task does."""

    grid: Grid
    watch: HealthWatch = field(default_factory=HealthWatch)

    def __post_init__(self) -> None:
        self.review()

    def pilot(self, queue: str, node: str, *vos: str) -> Pilot:
        pilot = self.grid.start_pilot(queue, *vos)
        pilot.beat(node=NodeState(node, Amounts(1)))
        return pilot

    def review(self) -> None:
        review = self.grid.read(self.watch.review)
        self.grid.write(lambda transaction, state: store_changes(transaction, state, review.changes))
        self.watch.commit(review)

    def pass_time(self, seconds: float) -> None:
        """Advance the clock, then review."""
        self.grid.pass_time(seconds=seconds)
        self.review()

    def run(self, pilot: Pilot, *, fails: bool, runs_s: float = 1) -> bool:
        """Run one job of a pilot for `runs_s`; False = the pilot got no job."""
        matches = pilot.request_jobs().matches
        if not matches:
            return False
        pilot.start(matches[0])
        self.pass_time(runs_s)
        pilot.report(matches[0], Outcome.EXITED, exit_code=int(fails), wall_s=runs_s)
        return True

    def plug(self, pilot: Pilot) -> bool:
        """Run one job that fails after a second on a pilot with a plug; False = the pilot got no job."""
        matches = pilot.request_jobs().matches
        if not matches:
            return False
        pilot.start(matches[0])
        pilot.report(matches[0], state=JobState.RUNNING, plugged=True, exit_code=1, wall_s=1)
        self.pass_time(1)
        return True

    def fail_jobs(self, pilot: Pilot, seconds: float) -> int:
        """Fail all jobs that a pilot gets within this time; return their number."""
        end, failed = self.grid.clock() + timedelta(seconds=seconds), 0
        while self.grid.clock() < end:
            if self.run(pilot, fails=True):
                failed += 1
            else:
                self.pass_time(REVIEW_INTERVAL_S)
        return failed

    def states(self) -> dict[str, str]:
        """Return the state of every known location."""
        return {
            health.location.key: health.state.value
            for health in self.grid.read(lambda transaction, _: list_health(transaction))
        }


@pytest.fixture
def farm(sqlite_database: Database, clock: VirtualClock) -> Farm:
    grid = Grid(sqlite_database, clock, BAD, GOOD)
    grid.submit(count=3000)
    return Farm(grid)


def run_long_job(farm: Farm, pilot: Pilot) -> None:
    """Run a job of a pilot for longer than fast failures take."""
    pilot.start(pilot.take())
    farm.pass_time(61)


def test_black_hole_node_is_throttled_while_other_jobs_still_run(farm: Farm) -> None:
    run_long_job(farm, farm.pilot(GOOD, "fine"))
    hole = farm.pilot(GOOD, "hole")
    assert farm.fail_jobs(hole, 120) <= 8
    assert farm.states() == {"node S/hole": "throttled"}


def test_black_hole_fails_few_jobs_in_an_hour(farm: Farm) -> None:
    run_long_job(farm, farm.pilot(GOOD, "fine"))
    assert 0 < farm.fail_jobs(farm.pilot(GOOD, "hole"), 3600) <= 16


def test_other_nodes_of_the_queue_still_get_jobs(farm: Farm) -> None:
    run_long_job(farm, farm.pilot(GOOD, "fine"))
    farm.fail_jobs(farm.pilot(GOOD, "hole"), 60)
    assert len(farm.pilot(GOOD, "another").request_jobs().matches) == 1


def test_throttled_node_gets_one_probe_at_a_time(farm: Farm) -> None:
    run_long_job(farm, farm.pilot(GOOD, "fine"))
    farm.fail_jobs(farm.pilot(GOOD, "hole"), 60)
    one, other = farm.pilot(GOOD, "hole"), farm.pilot(GOOD, "hole")
    assert not one.request_jobs().matches
    farm.pass_time(101)
    assert len(one.request_jobs().matches) == 1
    assert not other.request_jobs().matches


def test_successful_probes_in_a_row_close_the_circuit_breaker(farm: Farm) -> None:
    run_long_job(farm, farm.pilot(GOOD, "fine"))
    hole = farm.pilot(GOOD, "hole")
    farm.fail_jobs(hole, 60)
    farm.pass_time(101)
    for _ in range(3):
        assert farm.states() == {"node S/hole": "throttled"}
        assert farm.run(hole, fails=False)
        farm.review()
    assert farm.states() == {"node S/hole": "opened"}
    assert len(hole.request_jobs().matches) == 1
    farm.pass_time(600)
    assert farm.states() == {}


def test_long_probe_counts_as_success_before_its_end(farm: Farm) -> None:
    run_long_job(farm, farm.pilot(GOOD, "fine"))
    hole = farm.pilot(GOOD, "hole")
    farm.fail_jobs(hole, 60)
    farm.pass_time(101)
    for number in range(3):
        run_long_job(farm, farm.pilot(GOOD, "hole"))
        assert farm.states()["node S/hole"] == ("throttled" if number < 2 else "opened")


def test_each_failed_probe_doubles_the_pause(farm: Farm) -> None:
    run_long_job(farm, farm.pilot(GOOD, "fine"))
    hole = farm.pilot(GOOD, "hole")
    farm.fail_jobs(hole, 60)
    farm.pass_time(101)
    assert farm.run(hole, fails=True)
    farm.review()
    farm.pass_time(150)
    assert not hole.request_jobs().matches
    farm.pass_time(51)
    assert hole.request_jobs().matches


def test_plugged_payloads_count_as_failures_at_once(farm: Farm) -> None:
    run_long_job(farm, farm.pilot(GOOD, "fine"))
    for _ in range(6):
        assert farm.plug(farm.pilot(GOOD, "hole"))
    assert farm.states() == {"node S/hole": "throttled"}


def test_plugged_probe_has_failed_before_its_slot_is_free(farm: Farm) -> None:
    run_long_job(farm, farm.pilot(GOOD, "fine"))
    farm.fail_jobs(farm.pilot(GOOD, "hole"), 60)
    farm.pass_time(101)
    one, other = farm.pilot(GOOD, "hole"), farm.pilot(GOOD, "hole")
    assert farm.plug(one)
    farm.pass_time(150)
    assert not other.request_jobs().matches
    (throttle,) = farm.grid.read(lambda transaction, _: list_health(transaction))
    assert (throttle.proofs, throttle.pause) == (0, timedelta(seconds=200))
    farm.pass_time(51)
    assert other.request_jobs().matches


def test_unused_probe_goes_to_the_next_pilot(farm: Farm) -> None:
    run_long_job(farm, farm.pilot(GOOD, "fine"))
    farm.fail_jobs(farm.pilot(GOOD, "hole"), 60)
    farm.pass_time(101)
    of_another_vo = farm.pilot(GOOD, "hole", "atlas")
    assert not of_another_vo.request_jobs().matches
    assert farm.pilot(GOOD, "hole").request_jobs().matches


def test_failures_of_one_owner_everywhere_throttle_nothing(farm: Farm) -> None:
    pilots = [farm.pilot(queue, f"node{number}") for number, queue in enumerate((BAD, BAD, GOOD, GOOD))]
    for _ in range(30):
        for pilot in pilots:
            assert farm.run(pilot, fails=True)
    assert farm.states() == {}


def test_queue_is_throttled_when_all_its_nodes_fail(farm: Farm) -> None:
    run_long_job(farm, farm.pilot(GOOD, "fine"))
    pilots = [farm.pilot(BAD, f"node{number}") for number in range(4)]
    for _ in range(5):
        for pilot in pilots:
            farm.run(pilot, fails=True)
    farm.review()
    assert farm.states() == {"queue S/ce/bad": "throttled"}


def test_why_names_the_throttle_and_its_evidence(farm: Farm) -> None:
    run_long_job(farm, farm.pilot(GOOD, "fine"))
    pilots = [farm.pilot(BAD, f"node{number}") for number in range(4)]
    for _ in range(5):
        for pilot in pilots:
            farm.run(pilot, fails=True)
    farm.review()
    (job,) = farm.grid.submit(a_user())
    (explanation,) = [queue for queue in farm.grid.why(job).eligible_queues if str(queue.queue) == BAD]
    assert "queue S/ce/bad is throttled: 18 of 18 attempts failed within 60 s" in explanation.obstacle
