"""The plan of the racer: the jobs that get race copies, and the reasons of those that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pilotage.values.accounts import Account
from pilotage.values.races import NewRaceCopy
from pilotage_agents.racer.planning import NotRaced, RacedJobs, RaceLoad, RacePlan, RacingRules, RunningJob, plan_races

ALICE, BOB = Account("lhcb", "users", "alice"), Account("lhcb", "users", "bob")
RULES = RacingRules()
NO_LOAD = RaceLoad()
SLOW_S = 2000.0


def a_running_job(job_id: int = 1, running_s: float = SLOW_S, **fields: Any) -> RunningJob:
    """Return a straggler that could have a race copy on site B."""
    return replace(RunningJob(job_id, ALICE, running_s, sites={"B": 1}), **fields)


def a_tail(*runners: RunningJob, **fields: Any) -> RacedJobs:
    """Return a set of 100 jobs at its tail; 95 of them took at most 1,000 s."""
    tail = RacedJobs(1, 100, sampled=100, done=95, p95_s=1000, runners=runners)
    return replace(tail, **fields)


def urgent(*runners: RunningJob) -> RacedJobs:
    return RacedJobs(2, len(runners), urgent=True, runners=runners)


def plan(*sets: RacedJobs, load: RaceLoad = NO_LOAD, **rules: Any) -> RacePlan:
    return plan_races(sets, load, replace(RULES, **rules))


def raced_jobs(found: RacePlan) -> list[int]:
    return [copy.job_id for copy in found.copies]


def only_reason(found: RacePlan) -> str:
    (not_raced,) = found.not_raced
    return not_raced.reason


def test_races_straggler_and_gives_figures_as_reason() -> None:
    reason = "it has run 2000 s, and 95 of 100 jobs of its set took at most 1000 s"
    assert plan(a_tail(a_running_job())) == RacePlan((NewRaceCopy(1, reason),), ())


def test_does_not_race_job_of_usual_run_time() -> None:
    found = plan(a_tail(a_running_job(running_s=1500)))
    assert found == RacePlan((), (NotRaced(1, "it has run 1500 s, and 1500 s are not too long"),))
    assert raced_jobs(plan(a_tail(a_running_job(running_s=1501)))) == [1]


def test_does_not_race_job_before_minimum_run_time() -> None:
    assert raced_jobs(plan(a_tail(a_running_job(running_s=599), p95_s=10))) == []
    assert raced_jobs(plan(a_tail(a_running_job(running_s=601), p95_s=10))) == [1]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"jobs": 9}, "its set has 9 jobs, and one of fewer than 10 has no tail"),
        ({"waiting": 3}, "3 jobs of its set do not run yet"),
        ({"done": 89}, "89 % of its set have ended well, and a tail begins at 90 %"),
        ({"sampled": 0, "done": 0}, "0 % of its set have ended well, and a tail begins at 90 %"),
    ],
)
def test_does_not_race_set_before_its_tail(fields: dict[str, Any], reason: str) -> None:
    found = plan(a_tail(a_running_job(), **fields))
    assert (raced_jobs(found), only_reason(found)) == ([], reason)


def test_races_urgent_job_after_minimum_run_time() -> None:
    assert plan(urgent(a_running_job(running_s=60))) == RacePlan((NewRaceCopy(1, "it is urgent"),), ())
    assert only_reason(plan(urgent(a_running_job(running_s=59)))) == "it is urgent, and races once it has run 60 s"


@pytest.mark.parametrize(
    ("fields", "obstacle"),
    [
        ({"copies_made": 1}, "it has had 1 of 1 copies"),
        ({"copy_waits": True}, "its copy has not started yet"),
        ({"sites": {}}, "no other site could take a copy"),
    ],
)
def test_does_not_race_straggler_with_obstacle(fields: dict[str, Any], obstacle: str) -> None:
    found = plan(a_tail(a_running_job(**fields)))
    assert raced_jobs(found) == []
    assert only_reason(found).endswith(f", but {obstacle}")


def test_urgent_job_gets_copies_one_at_a_time() -> None:
    assert raced_jobs(plan(urgent(a_running_job(copies_made=1)))) == [1]
    assert raced_jobs(plan(urgent(a_running_job(copies_made=1, copy_waits=True)))) == []
    assert raced_jobs(plan(urgent(a_running_job(copies_made=2)))) == []


def test_needs_free_slot_excludes_full_sites() -> None:
    nothing_free = a_tail(a_running_job(sites={"B": 0}))
    assert raced_jobs(plan(nothing_free)) == [1]
    assert raced_jobs(plan(nothing_free, needs_free_slot=True)) == []
    assert raced_jobs(plan(a_tail(a_running_job()), needs_free_slot=True)) == [1]


def test_each_copy_takes_one_free_slot() -> None:
    tail = a_tail(a_running_job(1, 5000), a_running_job(2, 4000), a_running_job(3, 3000, sites={"B": 1, "C": 1}))
    assert raced_jobs(plan(tail, needs_free_slot=True)) == [1, 3]
    assert raced_jobs(plan(tail)) == [1, 2, 3]


def test_limits_copies_and_prefers_urgent_and_slowest_jobs() -> None:
    tail = a_tail(a_running_job(1), a_running_job(2, 9000), a_running_job(3, 3000), a_running_job(4, owner=BOB))
    assert raced_jobs(plan(tail)) == [2, 3, 1, 4]
    assert raced_jobs(plan(tail, urgent(a_running_job(5, 60)), most_copies=2)) == [5, 2]
    assert raced_jobs(plan(tail, most_copies_of_owner=1)) == [2, 4]
    assert raced_jobs(plan(tail, load=RaceLoad({ALICE: 2}), most_copies_of_owner=3)) == [2, 4]
    assert raced_jobs(plan(tail, load=RaceLoad({BOB: 1}), most_copies=3)) == [2, 3]


def test_owner_over_daily_race_cost_gets_no_copy() -> None:
    found = plan(a_tail(a_running_job(1), a_running_job(2, owner=BOB)), load=RaceLoad(lost_core_s={ALICE: 360_000.0}))
    assert raced_jobs(found) == [2]
    assert only_reason(found).endswith(
        ", but with 1000 core seconds for a copy races would cost lhcb/users/alice too much within a day"
        " (360000 so far)"
    )


def test_expected_cost_of_new_copies_counts_against_budget() -> None:
    tail = a_tail(a_running_job(1), a_running_job(2, cpus=8), a_running_job(3))
    assert raced_jobs(plan(tail, most_lost_core_s_a_day=10_000)) == [1, 2, 3]
    assert raced_jobs(plan(tail, most_lost_core_s_a_day=9_000)) == [1, 2]
    assert raced_jobs(plan(tail, most_lost_core_s_a_day=8_000)) == [1, 3], "8 CPUs cost eight times as much"
    assert raced_jobs(plan(urgent(a_running_job(4, 600, cpus=2)), most_lost_core_s_a_day=1_199)) == []
