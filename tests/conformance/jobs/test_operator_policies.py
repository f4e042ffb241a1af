"""Operators' policies for jobs, and which jobs a scan evaluates."""

from __future__ import annotations

import pytest

from pilotage.errors import InvalidJobError
from pilotage.job_description import JobDescription, JobPolicy
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.record import PolicyWatch
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.rules import PolicyRules, Rules
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.edit import edit_job
from pilotage_server.operations.jobs.periodic_policies import scan_next, watch_all
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.retention import first_watched
from support.grid import PolicyGrid
from support.jobs import a_user, an_operator
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

SHORT = JobPolicy(periodic_remove="LongRunningJob =!= True && RemoteWallClockTime >= 60 * 60")
ALICE = a_user("alice")


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> PolicyGrid:
    return PolicyGrid(database, clock)


def with_rules(database: Database, clock: VirtualClock, policies: PolicyRules) -> PolicyGrid:
    return PolicyGrid(database, clock, rules=Rules(policies=policies))


def test_operator_policies_apply_to_every_job(database: Database, clock: VirtualClock) -> None:
    rules = PolicyRules(
        JobPolicy(
            periodic_hold='Owner == "alice" && JobStatus == 1',
            periodic_hold_reason='"alice must call us"',
            periodic_remove="JobStatus == 5 && time() - EnteredCurrentStatus > 86400",
        )
    )
    grid = with_rules(database, clock, rules)
    (hers,), (his,) = grid.submit(), grid.submit(a_user("bob"))
    job = grid.job(hers)
    assert (job.hold_code, job.reason, grid.job(his).state) == (26, "alice must call us", JobState.WAITING)
    grid.pass_time(days=1, seconds=1)
    assert grid.evaluate_watched() == [hers]
    assert grid.job(hers).reason.startswith("system_periodic_remove became true: JobStatus == 5")


def test_operator_policies_apply_to_existing_jobs(database: Database, clock: VirtualClock) -> None:
    (job_id,) = PolicyGrid(database, clock).submit()
    grid = with_rules(database, clock, PolicyRules(JobPolicy(periodic_remove="JobStatus == 1")))
    assert grid.evaluate_watched(PolicyWatch.ON_CHANGE) == []
    assert grid.write(watch_all) == 1
    assert grid.write(watch_all) == 0
    assert grid.evaluate_watched(PolicyWatch.ON_CHANGE) == [job_id]


def test_number_of_releases_is_limited_for_users(database: Database, clock: VirtualClock) -> None:
    grid = with_rules(database, clock, PolicyRules(max_releases=3))
    (job_id,) = grid.submit()
    for _ in range(3):
        grid.change(JobChange.HOLD, job_id, user=ALICE)
        grid.change(JobChange.RELEASE, job_id, user=ALICE)
    grid.change(JobChange.HOLD, job_id, user=ALICE)
    (refused,) = grid.write(
        lambda transaction, state: change_jobs(transaction, state, ALICE, [job_id], JobChange.RELEASE, "")
    )
    assert refused.refusal == f"job {job_id} stays HELD: it has been released 3 times, as often as any job may be"
    assert grid.job(job_id).holds == 4
    grid.change(JobChange.RELEASE, job_id, user=an_operator())
    assert grid.job(job_id).state is JobState.WAITING


def test_release_limit_does_not_stop_removal_by_policy(database: Database, clock: VirtualClock) -> None:
    grid = with_rules(database, clock, PolicyRules(max_releases=1))
    policy = JobPolicy(periodic_hold="true", periodic_release="true", periodic_remove="NumHolds > 1")
    (job_id,) = grid.submit(policy=policy)
    states = []
    for _ in range(4):
        grid.evaluate_changed()
        states.append(grid.job(job_id).state)
        grid.pass_time(seconds=60)
    assert states == [JobState.HELD, JobState.WAITING, JobState.HELD, JobState.REMOVED]


def test_scan_skips_jobs_that_may_not_be_released(database: Database, clock: VirtualClock) -> None:
    grid = with_rules(database, clock, PolicyRules(max_releases=0))
    (job_id,) = grid.submit(policy=JobPolicy(periodic_hold="true", periodic_release="time() > 0"))
    assert grid.job(job_id).state is JobState.HELD
    scan = grid.read(
        lambda transaction, state: scan_next(transaction, state, first_watched(PolicyWatch.EACH_MINUTE), 10)
    )
    assert (scan.jobs, scan.due) == (1, ())


# Which jobs a scan evaluates


def watch_of(grid: PolicyGrid, policy: JobPolicy) -> PolicyWatch:
    (job_id,) = grid.submit(policy=policy)
    return grid.job(job_id).watch


def test_only_time_dependent_policies_are_evaluated_each_minute(grid: PolicyGrid) -> None:
    assert watch_of(grid, JobPolicy()) is PolicyWatch.NEVER
    assert watch_of(grid, JobPolicy(periodic_remove="false")) is PolicyWatch.NEVER
    assert watch_of(grid, SHORT) is PolicyWatch.ON_CHANGE
    assert watch_of(grid, JobPolicy(periodic_hold="time() > QDate + 60")) is PolicyWatch.EACH_MINUTE
    assert watch_of(grid, JobPolicy(periodic_hold='eval("X")')) is PolicyWatch.EACH_MINUTE


def test_scan_evaluates_every_job_once(grid: PolicyGrid) -> None:
    ids = grid.submit(count=10, policy=JobPolicy(periodic_remove="time() > QDate && ProcId % 2 == 0"))
    grid.pass_time(seconds=1)
    assert grid.evaluate_watched(batch=3) == ids[::2]


def test_edited_job_follows_its_new_policy(grid: PolicyGrid) -> None:
    (job_id,) = grid.submit()
    description = JobDescription("/bin/true", policy=JobPolicy(periodic_remove="JobStatus == 1"))
    grid.write(lambda transaction, state: edit_job(transaction, state, ALICE, job_id, description))
    assert grid.job(job_id).watch is PolicyWatch.ON_CHANGE
    assert grid.evaluate_changed() == [job_id]


def test_finished_job_follows_no_policy(grid: PolicyGrid) -> None:
    policy = JobPolicy(periodic_remove="time() > 0 && NumJobStarts > 0 && JobStatus != 2")
    (job_id,) = grid.submit(policy=policy)
    pilot = grid.start_pilot()
    pilot.finish(grid.run_for(pilot, 10))
    assert grid.evaluate_changed() == []
    assert grid.evaluate_watched(PolicyWatch.ON_CHANGE) == []
    assert grid.job(job_id).state is JobState.DONE


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("random(10) > 5", "random"),
        ("1 +", "not a ClassAd"),
        ("x || " * 1500 + "x", "4096"),
        ("(" * 60 + "1" + ")" * 60, "nest"),
    ],
)
def test_invalid_policy_is_refused_with_its_field(grid: PolicyGrid, expression: str, why: str) -> None:
    with pytest.raises(InvalidJobError, match=why) as refused:
        grid.submit(policy=JobPolicy(periodic_remove=expression))
    assert refused.value.violations[0].where == "descriptions[0].policy.periodic_remove"


def test_policy_holds_every_job_of_an_array(grid: PolicyGrid) -> None:
    ids = grid.submit(count=250, policy=JobPolicy(periodic_hold='Owner == "alice"'))
    assert {job.state for job in grid.jobs(ids).values()} == {JobState.HELD}
