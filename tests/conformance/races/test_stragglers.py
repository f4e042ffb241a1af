"""The sets of jobs that a racer may race: progress, stragglers, sites and loads."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest

from pilotage.values.attempts import Outcome
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.races.stragglers import MAX_TAIL_JOBS, OtherSite, SetReport
from pilotage_server.core.resources.bans import TreeNode
from pilotage_server.operations.jobs.retention import remove_race_sets
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.races.stragglers import IdleSlotCache, Stragglers, find_stragglers, race_loads
from pilotage_server.operations.resources.bans import BanOrder, ban
from pilotage_server.storage.database.engine import Database
from support.grid import Grid, a_slot, an_idle_slot
from support.jobs import a_description, a_user, an_operator
from support.races import REPEATABLE, SITES, A, B, C, PilotedJob, start_copy
from support.sql_statements import statements
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

URGENT = {**REPEATABLE, "Urgent": True}


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock, *SITES)


def set_reports(grid: Grid) -> tuple[SetReport, ...]:
    return grid.read(lambda transaction, state: find_stragglers(transaction, state, 0)).sets


def run_all_but(grid: Grid, left: int, total: int, seconds: float = 100) -> list[int]:
    """Submit a set of which all jobs except `left` succeed after `seconds`, and return the running ones."""
    ids = grid.submit(count=total, attributes=REPEATABLE)
    pilot = grid.start_pilot(A)
    matches = pilot.request_jobs(*(a_slot(f"s{number}") for number in range(total))).matches
    for match in matches:
        pilot.start(match)
    grid.pass_time(seconds=seconds)
    done = [JobReport(match.job_id, 1, outcome=Outcome.EXITED, exit_code=0, wall_s=seconds) for match in matches[left:]]
    pilot.beat(*done)
    return ids[:left]


def test_reports_set_at_its_tail_with_progress_and_stragglers(grid: Grid) -> None:
    (running,) = run_all_but(grid, 1, total=20)
    grid.pass_time(seconds=400)
    (report,) = set_reports(grid)
    assert (report.of.jobs, report.of.urgent, report.waiting) == (20, False, 0)
    progress = report.figures
    assert (progress.sampled, progress.done, progress.p95) == (20, 19, timedelta(seconds=100))
    (straggler,) = report.stragglers
    assert (straggler.job.id, straggler.running, straggler.cpus) == (running, timedelta(seconds=500), 1)
    assert straggler.sites == (OtherSite("B", 0), OtherSite("C", 0))


def test_reports_free_slots_of_other_sites(grid: Grid) -> None:
    run_all_but(grid, 1, total=4)
    grid.start_pilot(B).show(an_idle_slot("s1"), an_idle_slot("s2"))
    cache = IdleSlotCache()

    def free() -> tuple[OtherSite, ...]:
        found = grid.read(lambda transaction, state: find_stragglers(transaction, state, 0, cache))
        return found.sets[0].stragglers[0].sites

    assert free() == (OtherSite("B", 2), OtherSite("C", 0))
    grid.start_pilot(C).show(an_idle_slot("s1"))
    assert free() == (OtherSite("B", 2), OtherSite("C", 0)), "calls within a cycle share the cache"
    grid.pass_time(seconds=25)
    assert free() == (OtherSite("B", 2), OtherSite("C", 1))


def test_used_and_banned_sites_are_left_out(grid: Grid) -> None:
    (running,) = run_all_but(grid, 1, total=4)
    start_copy(grid, running)
    ((waiting,),) = (report.stragglers for report in set_reports(grid))
    assert (waiting.copies_made, waiting.copy_waits) == (1, True)
    copy = PilotedJob(grid, B)
    ((started,),) = (report.stragglers for report in set_reports(grid))
    assert (started.copy_waits, started.sites) == (False, (OtherSite("C", 0),))
    grid.write(lambda transaction, state: ban(transaction, state, an_operator(), BanOrder(TreeNode("C"), "broken")))
    ((without_site,),) = (report.stragglers for report in set_reports(grid))
    assert without_site.sites == ()
    copy.finish(exit_code=1)
    ((failed,),) = (report.stragglers for report in set_reports(grid))
    assert failed.copies_made == 1, "the failed copy counts"


def test_reads_slots_only_when_needed(grid: Grid) -> None:
    def tables(cache: IdleSlotCache | None) -> list[str]:
        with statements(grid.database) as executed:
            grid.read(lambda transaction, state: find_stragglers(transaction, state, 0, cache))
        return [statement for statement in executed if "FROM slots" in statement]

    assert tables(IdleSlotCache()) == []
    run_all_but(grid, 1, total=4)
    assert tables(None) == []
    assert len(tables(IdleSlotCache())) == 1


def test_held_and_racing_jobs_do_not_delay_tail(grid: Grid) -> None:
    ids = grid.submit(count=6, attributes=REPEATABLE)
    runners = [PilotedJob(grid, A) for _ in ids]
    for runner in runners[3:]:
        runner.finish()
    start_copy(grid, ids[0])
    PilotedJob(grid, B)
    runners[0].finish(exit_code=1)
    grid.change(JobChange.HOLD, ids[1])
    assert [grid.job(id_).state for id_ in ids[:2]] == [JobState.RACING, JobState.HELD]
    (report,) = set_reports(grid)
    assert (report.waiting, [straggler.job.id for straggler in report.stragglers]) == (0, [ids[2]])


def test_does_not_report_set_of_mostly_running_jobs(grid: Grid) -> None:
    run_all_but(grid, 3, total=4)
    assert set_reports(grid) == ()


def test_reports_running_urgent_jobs_and_no_other_single_jobs(grid: Grid) -> None:
    grid.submit(attributes=URGENT)
    assert set_reports(grid) == ()
    PilotedJob(grid, A)
    grid.submit(attributes=REPEATABLE)
    PilotedJob(grid, A)
    (report,) = set_reports(grid)
    assert (report.of.urgent, len(report.stragglers), report.figures.sampled) == (True, 1, 0)


def test_jobs_that_may_not_be_repeated_are_in_no_set(grid: Grid) -> None:
    grid.submit(count=4, attributes={"Urgent": True})
    grid.submit(count=4, attributes={"MayBeRepeated": False})
    for _ in range(8):
        PilotedJob(grid, A)
    assert set_reports(grid) == ()


def test_submission_makes_one_set_and_one_of_urgent_jobs(grid: Grid) -> None:
    descriptions = [
        a_description(attributes=REPEATABLE, arguments="1"),
        a_description(arguments="2"),
        a_description(attributes=REPEATABLE, arguments="3", count=2),
        a_description(attributes=URGENT, arguments="4"),
    ]
    ids = grid.write(
        lambda transaction, state: submit_jobs(transaction, state, a_user(), single_groups(descriptions))
    ).job_ids
    runners = {runner.job.id: runner for runner in (PilotedJob(grid, A) for _ in ids)}
    for job_id in ids[:3]:
        runners[job_id].finish()
    assert [(report.of.id, report.of.jobs, report.of.urgent) for report in set_reports(grid)] == [
        (ids[0], 3, False),
        (ids[4], 1, True),
    ]
    assert [straggler.job.id for straggler in set_reports(grid)[0].stragglers] == [ids[3]]


def test_number_of_statements_is_independent_of_set_size(grid: Grid) -> None:
    counts = []
    for total in (4, 4000):
        grid.submit(count=total, attributes=REPEATABLE)
        with statements(grid.database) as executed:
            set_reports(grid)
        counts.append(len(executed))
    assert counts[0] == counts[1], "one statement for all"


def test_interleaved_sets_are_reported_separately(grid: Grid) -> None:
    mixed = [
        a_description(attributes=URGENT if number % 2 else REPEATABLE, arguments=str(number)) for number in range(8)
    ]
    ids = grid.write(lambda transaction, state: submit_jobs(transaction, state, a_user(), single_groups(mixed))).job_ids
    runners = {runner.job.id: runner for runner in (PilotedJob(grid, A) for _ in ids)}
    for job_id in (*ids[2::2], *ids[3::2]):
        runners[job_id].finish()
    ordinary, urgent = set_reports(grid)
    assert (ordinary.of.urgent, ordinary.figures.sampled, ordinary.figures.done) == (False, 4, 3)
    assert [straggler.job.id for report in (ordinary, urgent) for straggler in report.stragglers] == list(ids[:2])


def test_number_of_statements_is_independent_of_sets(grid: Grid) -> None:
    counts = []
    for total in (1, 20):
        for _ in range(total):
            grid.submit(count=2, attributes=REPEATABLE)
            runners = PilotedJob(grid, A), PilotedJob(grid, A)
            runners[0].finish()
        with statements(grid.database) as executed:
            assert len(set_reports(grid)) >= total
        counts.append(len(executed))
    assert counts[0] == counts[1]


def test_set_is_removed_after_all_its_jobs_ended(grid: Grid) -> None:
    (running,) = run_all_but(grid, 1, total=4)
    grid.pass_time(hours=3)
    assert grid.write(remove_race_sets) == 0
    grid.change(JobChange.REMOVE, running)
    assert grid.write(remove_race_sets) == 1
    assert grid.job(running).state is JobState.REMOVED


def test_race_loads_have_copies_and_recent_cost_of_owner(grid: Grid) -> None:
    assert grid.read(lambda transaction, _: race_loads(transaction)) == ()
    (running,) = run_all_but(grid, 1, total=4)
    start_copy(grid, running)
    copy = PilotedJob(grid, C)
    grid.pass_time(minutes=2)
    (load,) = grid.read(lambda transaction, _: race_loads(transaction))
    assert (load.account.owner, load.copies, load.lost_core_s) == ("alice", 1, 120)
    copy.finish(exit_code=1)
    (load,) = grid.read(lambda transaction, _: race_loads(transaction))
    assert (load.copies, load.lost_core_s) == (0, 120)
    grid.pass_time(days=2)
    assert grid.read(lambda transaction, _: race_loads(transaction)) == ()


def test_large_urgent_set_is_reported_in_parts_with_first_jobs(grid: Grid) -> None:
    ids = grid.submit(attributes=URGENT, count=MAX_TAIL_JOBS * 4 + 10)
    for runner in (grid.start_pilot(A) for _ in range(3)):
        for match in runner.request_jobs(*(a_slot(f"s{number}") for number in range(MAX_TAIL_JOBS))).matches:
            runner.start(match)
    running = ids[: 3 * MAX_TAIL_JOBS]
    listed: list[list[int]] = []
    after_job = 0
    for _ in range(4):
        found = grid.read(partial(find_stragglers, after_set=0, after_jobs={ids[0]: after_job}))
        (report,) = found.sets
        listed.append([straggler.job.id for straggler in report.stragglers])
        after_job = report.next_after_job
    first, second, third = (running[start : start + MAX_TAIL_JOBS] for start in range(0, 600, MAX_TAIL_JOBS))
    assert listed == [first + second, first + third, first, first]
    assert after_job == 0, "the next call starts from the beginning"


def test_many_sets_are_reported_in_pages(grid: Grid) -> None:
    ids = [grid.submit(attributes=URGENT, count=count) for count in (2, 1, 3, 1, 1)]
    for _ in range(8):
        PilotedJob(grid, A)
    grid.change(JobChange.REMOVE, *ids[1])

    def page(after: int) -> Stragglers:
        return grid.read(lambda transaction, state: find_stragglers(transaction, state, after, most_running=2))

    pages = [page(0)]
    while pages[-1].next_after:
        pages.append(page(pages[-1].next_after))
    answers = [[straggler.job.id for report in found.sets for straggler in report.stragglers] for found in pages]
    assert answers == [[*ids[0]], [*ids[2]], [*ids[3], *ids[4]]]
