"""Which jobs a racer lets race, and why it leaves the others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pilotage.values.accounts import Account
from pilotage.values.races import NewRaceCopy
from pilotage_agents.racer.planning import JobSet, NotRaced, RaceLoad, RacePlan, RacingRules, RunningJob, plan_races

ALICE, BOB = Account("lhcb", "users", "alice"), Account("lhcb", "users", "bob")
RULES = RacingRules()
NO_LOAD = RaceLoad()
SLOW_S = 2000.0


def a_runner(job_id: int = 1, running_s: float = SLOW_S, **fields: Any) -> RunningJob:
    """Return a job that lags behind, and could have a copy on B."""
    return replace(RunningJob(job_id, ALICE, running_s, sites={"B": 1}), **fields)


def a_tail(*runners: RunningJob, **fields: Any) -> JobSet:
    """Return a set of 100 at its tail, of which 95 of 100 jobs took at most 1,000 s."""
    tail = JobSet(1, 100, sampled=100, done=95, p95_s=1000, runners=runners)
    return replace(tail, **fields)


def urgent(*runners: RunningJob) -> JobSet:
    return JobSet(2, len(runners), urgent=True, runners=runners)


def plan(*sets: JobSet, load: RaceLoad = NO_LOAD, **rules: Any) -> RacePlan:
    return plan_races(sets, load, replace(RULES, **rules))


def raced(found: RacePlan) -> list[int]:
    return [copy.job_id for copy in found.copies]


def why(found: RacePlan) -> str:
    (left,) = found.not_raced
    return left.reason


def test_a_straggler_at_the_tail_of_its_set_is_raced_and_the_reason_tells_the_figures() -> None:
    reason = "it has run 2000 s, and 95 of 100 jobs of its set took at most 1000 s"
    assert plan(a_tail(a_runner())) == RacePlan((NewRaceCopy(1, reason),), ())


def test_a_job_that_is_no_slower_than_is_usual_is_left() -> None:
    found = plan(a_tail(a_runner(running_s=1500)))
    assert found == RacePlan((), (NotRaced(1, "it has run 1500 s, and 1500 s are not too long"),))
    assert raced(plan(a_tail(a_runner(running_s=1501)))) == [1]


def test_short_jobs_are_left_until_they_have_run_for_the_least_time() -> None:
    assert raced(plan(a_tail(a_runner(running_s=599), p95_s=10))) == []
    assert raced(plan(a_tail(a_runner(running_s=601), p95_s=10))) == [1]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"jobs": 9}, "its set has 9 jobs, and one of fewer than 10 has no tail"),
        ({"waiting": 3}, "3 jobs of its set do not run yet"),
        ({"done": 89}, "89 % of its set have ended well, and a tail begins at 90 %"),
        ({"sampled": 0, "done": 0}, "0 % of its set have ended well, and a tail begins at 90 %"),
    ],
)
def test_a_set_that_is_not_at_its_tail_is_left(fields: dict[str, Any], reason: str) -> None:
    found = plan(a_tail(a_runner(), **fields))
    assert (raced(found), why(found)) == ([], reason)


def test_an_urgent_job_is_raced_as_soon_as_it_has_run_a_while_whatever_its_set() -> None:
    assert plan(urgent(a_runner(running_s=60))) == RacePlan((NewRaceCopy(1, "it is urgent"),), ())
    assert why(plan(urgent(a_runner(running_s=59)))) == "it is urgent, and races once it has run 60 s"


@pytest.mark.parametrize(
    ("fields", "obstacle"),
    [
        ({"copies_made": 1}, "it has had 1 of 1 copies"),
        ({"copy_waits": True}, "its copy has not started yet"),
        ({"sites": {}}, "no other site could take a copy"),
    ],
)
def test_a_straggler_that_has_its_copy_or_no_place_for_one_is_left(fields: dict[str, Any], obstacle: str) -> None:
    found = plan(a_tail(a_runner(**fields)))
    assert raced(found) == []
    assert why(found).endswith(f", but {obstacle}")


def test_an_urgent_job_gets_its_copies_one_after_the_other() -> None:
    assert raced(plan(urgent(a_runner(copies_made=1)))) == [1]
    assert raced(plan(urgent(a_runner(copies_made=1, copy_waits=True)))) == []
    assert raced(plan(urgent(a_runner(copies_made=2)))) == []


def test_where_free_slots_are_wanted_a_site_without_any_is_no_place() -> None:
    nothing_free = a_tail(a_runner(sites={"B": 0}))
    assert raced(plan(nothing_free)) == [1]
    assert raced(plan(nothing_free, needs_free_slot=True)) == []
    assert raced(plan(a_tail(a_runner()), needs_free_slot=True)) == [1]


def test_where_free_slots_are_wanted_each_copy_takes_one_of_its_own() -> None:
    tail = a_tail(a_runner(1, 5000), a_runner(2, 4000), a_runner(3, 3000, sites={"B": 1, "C": 1}))
    assert raced(plan(tail, needs_free_slot=True)) == [1, 3]
    assert raced(plan(tail)) == [1, 2, 3]


def test_no_more_copies_race_at_once_than_the_bounds_allow_and_the_urgent_and_the_slowest_go_first() -> None:
    tail = a_tail(a_runner(1), a_runner(2, 9000), a_runner(3, 3000), a_runner(4, owner=BOB))
    assert raced(plan(tail)) == [2, 3, 1, 4]
    assert raced(plan(tail, urgent(a_runner(5, 60)), most_copies=2)) == [5, 2]
    assert raced(plan(tail, most_copies_of_owner=1)) == [2, 4]
    assert raced(plan(tail, load=RaceLoad({ALICE: 2}), most_copies_of_owner=3)) == [2, 4]
    assert raced(plan(tail, load=RaceLoad({BOB: 1}), most_copies=3)) == [2, 3]


def test_an_owner_whom_races_have_cost_too_much_of_late_gets_no_more() -> None:
    found = plan(a_tail(a_runner(1), a_runner(2, owner=BOB)), load=RaceLoad(lost_core_s={ALICE: 360_000.0}))
    assert raced(found) == [2]
    assert why(found).endswith(
        ", but with 1000 core seconds for a copy races would cost lhcb/users/alice too much within a day"
        " (360000 so far)"
    )


def test_what_copies_are_likely_to_cost_counts_from_their_start_on() -> None:
    tail = a_tail(a_runner(1), a_runner(2, cpus=8), a_runner(3))
    assert raced(plan(tail, most_lost_core_s_a_day=10_000)) == [1, 2, 3]
    assert raced(plan(tail, most_lost_core_s_a_day=9_000)) == [1, 2]
    assert raced(plan(tail, most_lost_core_s_a_day=8_000)) == [1, 3], "the wide one would cost eight times as much"
    assert raced(plan(urgent(a_runner(4, 600, cpus=2)), most_lost_core_s_a_day=1_199)) == []
