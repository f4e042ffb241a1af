"""Black holes in virtual time: throttled soon, tried with single jobs, open again when they have proved well."""

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

LOOK_EVERY_S = 4
BAD, GOOD = "S/ce/bad", "S/ce/good"


@dataclass
class Farm:
    """A grid whose server looks after the health of places, as its duty does."""

    grid: Grid
    watch: HealthWatch = field(default_factory=HealthWatch)

    def __post_init__(self) -> None:
        self.look()

    def pilot(self, queue: str, node: str, *vos: str) -> Pilot:
        pilot = self.grid.start_pilot(queue, *vos)
        pilot.beat(node=NodeState(node, Amounts(1)))
        return pilot

    def look(self) -> None:
        look = self.grid.read(self.watch.review)
        self.grid.write(lambda transaction, state: store_changes(transaction, state, look.changes))
        self.watch.commit(look)

    def pass_time(self, seconds: float) -> None:
        """Let time pass with a look at its end."""
        self.grid.pass_time(seconds=seconds)
        self.look()

    def run(self, pilot: Pilot, *, fails: bool, runs_s: float = 1) -> bool:
        """Let a pilot take a job and end it after so long; False = it got none."""
        matches = pilot.ask().matches
        if not matches:
            return False
        pilot.start(matches[0])
        self.pass_time(runs_s)
        pilot.report(matches[0], Outcome.EXITED, exit_code=int(fails), wall_s=runs_s)
        return True

    def plug(self, pilot: Pilot) -> bool:
        """Let a pilot with a plug take a job that fails after a second; False = it got none."""
        matches = pilot.ask().matches
        if not matches:
            return False
        pilot.start(matches[0])
        pilot.report(matches[0], state=JobState.RUNNING, plugged=True, exit_code=1, wall_s=1)
        self.pass_time(1)
        return True

    def burn(self, pilot: Pilot, seconds: float) -> int:
        """Let a black hole eat what it gets for so long; returns how many jobs that was."""
        end, eaten = self.grid.clock() + timedelta(seconds=seconds), 0
        while self.grid.clock() < end:
            if self.run(pilot, fails=True):
                eaten += 1
            else:
                self.pass_time(LOOK_EVERY_S)
        return eaten

    def states(self) -> dict[str, str]:
        """Return the state of every place that is known."""
        return {
            each.location.key: each.state.value
            for each in self.grid.read(lambda transaction, _: list_health(transaction))
        }


@pytest.fixture
def farm(sqlite_database: Database, clock: VirtualClock) -> Farm:
    grid = Grid(sqlite_database, clock, BAD, GOOD)
    grid.submit(count=3000)
    return Farm(grid)


def a_job_that_lasts(farm: Farm, pilot: Pilot) -> None:
    """Let a pilot run a job for more than the time in which failures are fast."""
    pilot.start(pilot.take())
    farm.pass_time(61)


def test_a_black_hole_node_is_found_while_good_jobs_elsewhere_still_run(farm: Farm) -> None:
    a_job_that_lasts(farm, farm.pilot(GOOD, "fine"))
    hole = farm.pilot(GOOD, "hole")
    assert farm.burn(hole, 120) <= 8
    assert farm.states() == {"node S/hole": "throttled"}


def test_a_black_hole_costs_a_bounded_number_of_jobs_in_a_day(farm: Farm) -> None:
    a_job_that_lasts(farm, farm.pilot(GOOD, "fine"))
    assert farm.burn(farm.pilot(GOOD, "hole"), 3600) <= 16


def test_the_other_nodes_of_its_queue_get_jobs_as_before(farm: Farm) -> None:
    a_job_that_lasts(farm, farm.pilot(GOOD, "fine"))
    farm.burn(farm.pilot(GOOD, "hole"), 60)
    assert len(farm.pilot(GOOD, "another").ask().matches) == 1


def test_a_throttled_place_is_tried_with_one_job_at_a_time(farm: Farm) -> None:
    a_job_that_lasts(farm, farm.pilot(GOOD, "fine"))
    farm.burn(farm.pilot(GOOD, "hole"), 60)
    one, other = farm.pilot(GOOD, "hole"), farm.pilot(GOOD, "hole")
    assert not one.ask().matches
    farm.pass_time(101)
    assert len(one.ask().matches) == 1
    assert not other.ask().matches


def test_a_place_is_open_again_after_trials_in_a_row_that_went_well(farm: Farm) -> None:
    a_job_that_lasts(farm, farm.pilot(GOOD, "fine"))
    hole = farm.pilot(GOOD, "hole")
    farm.burn(hole, 60)
    farm.pass_time(101)
    for _ in range(3):
        assert farm.states() == {"node S/hole": "throttled"}
        assert farm.run(hole, fails=False)
        farm.look()
    assert farm.states() == {"node S/hole": "opened"}
    assert len(hole.ask().matches) == 1
    farm.pass_time(600)
    assert farm.states() == {}


def test_a_trial_that_outlasts_fast_failures_proves_well_before_it_ends(farm: Farm) -> None:
    a_job_that_lasts(farm, farm.pilot(GOOD, "fine"))
    hole = farm.pilot(GOOD, "hole")
    farm.burn(hole, 60)
    farm.pass_time(101)
    for number in range(3):
        a_job_that_lasts(farm, farm.pilot(GOOD, "hole"))
        assert farm.states()["node S/hole"] == ("throttled" if number < 2 else "opened")


def test_each_trial_that_fails_doubles_the_pause(farm: Farm) -> None:
    a_job_that_lasts(farm, farm.pilot(GOOD, "fine"))
    hole = farm.pilot(GOOD, "hole")
    farm.burn(hole, 60)
    farm.pass_time(101)
    assert farm.run(hole, fails=True)
    farm.look()
    farm.pass_time(150)
    assert not hole.ask().matches
    farm.pass_time(51)
    assert hole.ask().matches


def test_payloads_that_are_plugged_speak_against_their_node_at_once(farm: Farm) -> None:
    a_job_that_lasts(farm, farm.pilot(GOOD, "fine"))
    for _ in range(6):
        assert farm.plug(farm.pilot(GOOD, "hole"))
    assert farm.states() == {"node S/hole": "throttled"}


def test_a_trial_that_is_plugged_has_failed_however_long_it_keeps_its_slot(farm: Farm) -> None:
    a_job_that_lasts(farm, farm.pilot(GOOD, "fine"))
    farm.burn(farm.pilot(GOOD, "hole"), 60)
    farm.pass_time(101)
    one, other = farm.pilot(GOOD, "hole"), farm.pilot(GOOD, "hole")
    assert farm.plug(one)
    farm.pass_time(150)
    assert not other.ask().matches
    (throttle,) = farm.grid.read(lambda transaction, _: list_health(transaction))
    assert (throttle.proofs, throttle.pause) == (0, timedelta(seconds=200))
    farm.pass_time(51)
    assert other.ask().matches


def test_a_trial_for_which_no_job_waits_is_there_for_the_next_who_asks(farm: Farm) -> None:
    a_job_that_lasts(farm, farm.pilot(GOOD, "fine"))
    farm.burn(farm.pilot(GOOD, "hole"), 60)
    farm.pass_time(101)
    of_another_vo = farm.pilot(GOOD, "hole", "atlas")
    assert not of_another_vo.ask().matches
    assert farm.pilot(GOOD, "hole").ask().matches


def test_jobs_of_one_owner_that_fail_wherever_they_run_close_nothing(farm: Farm) -> None:
    pilots = [farm.pilot(queue, f"node{number}") for number, queue in enumerate((BAD, BAD, GOOD, GOOD))]
    for _ in range(30):
        for pilot in pilots:
            assert farm.run(pilot, fails=True)
    assert farm.states() == {}


def test_a_queue_is_throttled_when_all_of_its_nodes_fail_and_another_queue_does_well(farm: Farm) -> None:
    a_job_that_lasts(farm, farm.pilot(GOOD, "fine"))
    pilots = [farm.pilot(BAD, f"node{number}") for number in range(4)]
    for _ in range(5):
        for pilot in pilots:
            farm.run(pilot, fails=True)
    farm.look()
    assert farm.states() == {"queue S/ce/bad": "throttled"}


def test_why_names_the_throttle_and_its_evidence(farm: Farm) -> None:
    a_job_that_lasts(farm, farm.pilot(GOOD, "fine"))
    pilots = [farm.pilot(BAD, f"node{number}") for number in range(4)]
    for _ in range(5):
        for pilot in pilots:
            farm.run(pilot, fails=True)
    farm.look()
    (job,) = farm.grid.submit(a_user())
    (outlook,) = [each for each in farm.grid.why(job).eligible_queues if str(each.queue) == BAD]
    assert "queue S/ce/bad is throttled: 18 of 18 attempts failed within 60 s" in outlook.obstacle
