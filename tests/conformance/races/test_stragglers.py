"""What a racer hears of sets that may be raced, on every database."""

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
from support.races import REPEATABLE, SITES, A, B, C, Runner, start_copy
from support.statements import statements
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

URGENT = {**REPEATABLE, "Urgent": True}


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock, *SITES)


def looks(grid: Grid) -> tuple[SetReport, ...]:
    return grid.read(lambda transaction, state: find_stragglers(transaction, state, 0)).sets


def run_all_but(grid: Grid, left: int, total: int, seconds: float = 100) -> list[int]:
    """Submit a set, of which all jobs but so many have ended well after so long, and return those that run."""
    ids = grid.submit(count=total, attributes=REPEATABLE)
    pilot = grid.start_pilot(A)
    matches = pilot.ask(*(a_slot(f"s{number}") for number in range(total))).matches
    for match in matches:
        pilot.start(match)
    grid.pass_time(seconds=seconds)
    done = [JobReport(match.job_id, 1, outcome=Outcome.EXITED, exit_code=0, wall_s=seconds) for match in matches[left:]]
    pilot.beat(*done)
    return ids[:left]


def test_a_set_at_its_tail_is_told_with_what_its_jobs_took_and_what_runs_still(grid: Grid) -> None:
    (left,) = run_all_but(grid, 1, total=20)
    grid.pass_time(seconds=400)
    (look,) = looks(grid)
    assert (look.of.jobs, look.of.urgent, look.waiting) == (20, False, 0)
    figures = look.figures
    assert (figures.sampled, figures.done, figures.p95) == (20, 19, timedelta(seconds=100))
    (straggler,) = look.stragglers
    assert (straggler.job.id, straggler.running, straggler.cpus) == (left, timedelta(seconds=500), 1)
    assert straggler.sites == (OtherSite("B", 0), OtherSite("C", 0))


def test_free_slots_that_a_copy_fits_in_are_told_with_their_sites(grid: Grid) -> None:
    run_all_but(grid, 1, total=4)
    grid.start_pilot(B).show(an_idle_slot("s1"), an_idle_slot("s2"))
    glance = IdleSlotCache()

    def free() -> tuple[OtherSite, ...]:
        found = grid.read(lambda transaction, state: find_stragglers(transaction, state, 0, glance))
        return found.sets[0].stragglers[0].sites

    assert free() == (OtherSite("B", 2), OtherSite("C", 0))
    grid.start_pilot(C).show(an_idle_slot("s1"))
    assert free() == (OtherSite("B", 2), OtherSite("C", 0)), "the calls of one round share a glance"
    grid.pass_time(seconds=25)
    assert free() == (OtherSite("B", 2), OtherSite("C", 1))


def test_sites_that_were_used_or_are_banned_are_no_places_for_a_copy(grid: Grid) -> None:
    (left,) = run_all_but(grid, 1, total=4)
    start_copy(grid, left)
    ((waits,),) = (look.stragglers for look in looks(grid))
    assert (waits.copies_made, waits.copy_waits) == (1, True)
    copy = Runner(grid, B)
    ((runs,),) = (look.stragglers for look in looks(grid))
    assert (runs.copy_waits, runs.sites) == (False, (OtherSite("C", 0),))
    grid.write(lambda transaction, state: ban(transaction, state, an_operator(), BanOrder(TreeNode("C"), "broken")))
    ((nowhere,),) = (look.stragglers for look in looks(grid))
    assert nowhere.sites == ()
    copy.ends(exit_code=1)
    ((after,),) = (look.stragglers for look in looks(grid))
    assert after.copies_made == 1, "it has had one, though that race is over"


def test_the_slots_are_not_read_unless_free_ones_are_asked_for_or_where_nothing_could_race(grid: Grid) -> None:
    def tables(glance: IdleSlotCache | None) -> list[str]:
        with statements(grid.database) as seen:
            grid.read(lambda transaction, state: find_stragglers(transaction, state, 0, glance))
        return [statement for statement in seen if "FROM slots" in statement]

    assert tables(IdleSlotCache()) == []
    run_all_but(grid, 1, total=4)
    assert tables(None) == []
    assert len(tables(IdleSlotCache())) == 1


def test_jobs_that_are_held_or_left_to_their_copies_keep_no_set_from_its_tail(grid: Grid) -> None:
    ids = grid.submit(count=6, attributes=REPEATABLE)
    runners = [Runner(grid, A) for _ in ids]
    for runner in runners[3:]:
        runner.ends()
    start_copy(grid, ids[0])
    Runner(grid, B)
    runners[0].ends(exit_code=1)
    grid.change(JobChange.HOLD, ids[1])
    assert [grid.job(id_).state for id_ in ids[:2]] == [JobState.RACING, JobState.HELD]
    (look,) = looks(grid)
    assert (look.waiting, [each.job.id for each in look.stragglers]) == (0, [ids[2]])


def test_a_set_of_which_most_runs_still_is_not_told(grid: Grid) -> None:
    run_all_but(grid, 3, total=4)
    assert looks(grid) == ()


def test_urgent_jobs_are_told_as_soon_as_they_run_and_others_alone_never(grid: Grid) -> None:
    grid.submit(attributes=URGENT)
    assert looks(grid) == ()
    Runner(grid, A)
    grid.submit(attributes=REPEATABLE)
    Runner(grid, A)
    (look,) = looks(grid)
    assert (look.of.urgent, len(look.stragglers), look.figures.sampled) == (True, 1, 0)


def test_jobs_that_do_not_say_that_they_may_be_repeated_are_in_no_set(grid: Grid) -> None:
    grid.submit(count=4, attributes={"Urgent": True})
    grid.submit(count=4, attributes={"MayBeRepeated": False})
    for _ in range(8):
        Runner(grid, A)
    assert looks(grid) == ()


def test_all_that_may_be_repeated_of_one_submission_is_one_set_the_urgent_apart(grid: Grid) -> None:
    descriptions = [
        a_description(attributes=REPEATABLE, arguments="1"),
        a_description(arguments="2"),
        a_description(attributes=REPEATABLE, arguments="3", count=2),
        a_description(attributes=URGENT, arguments="4"),
    ]
    ids = grid.write(
        lambda transaction, state: submit_jobs(transaction, state, a_user(), single_groups(descriptions))
    ).job_ids
    runners = {runner.job.id: runner for runner in (Runner(grid, A) for _ in ids)}
    for job_id in ids[:3]:
        runners[job_id].ends()
    assert [(look.of.id, look.of.jobs, look.of.urgent) for look in looks(grid)] == [
        (ids[0], 3, False),
        (ids[4], 1, True),
    ]
    assert [each.job.id for each in looks(grid)[0].stragglers] == [ids[3]]


def test_what_a_look_at_a_set_costs_does_not_grow_with_it(grid: Grid) -> None:
    asked = []
    for total in (4, 4000):
        grid.submit(count=total, attributes=REPEATABLE)
        with statements(grid.database) as seen:
            looks(grid)
        asked.append(len(seen))
    assert asked[0] == asked[1], "one glance at all"


def test_sets_that_lie_among_each_others_jobs_are_judged_apart(grid: Grid) -> None:
    mixed = [
        a_description(attributes=URGENT if number % 2 else REPEATABLE, arguments=str(number)) for number in range(8)
    ]
    ids = grid.write(lambda transaction, state: submit_jobs(transaction, state, a_user(), single_groups(mixed))).job_ids
    runners = {runner.job.id: runner for runner in (Runner(grid, A) for _ in ids)}
    for job_id in (*ids[2::2], *ids[3::2]):
        runners[job_id].ends()
    plain, urgent = looks(grid)
    assert (plain.of.urgent, plain.figures.sampled, plain.figures.done) == (False, 4, 3)
    assert [each.job.id for look in (plain, urgent) for each in look.stragglers] == list(ids[:2])


def test_a_look_at_many_sets_asks_as_little_as_one_at_a_few(grid: Grid) -> None:
    asked = []
    for total in (1, 20):
        for _ in range(total):
            grid.submit(count=2, attributes=REPEATABLE)
            runners = Runner(grid, A), Runner(grid, A)
            runners[0].ends()
        with statements(grid.database) as seen:
            assert len(looks(grid)) >= total
        asked.append(len(seen))
    assert asked[0] == asked[1]


def test_a_set_is_forgotten_once_all_its_jobs_have_ended(grid: Grid) -> None:
    (left,) = run_all_but(grid, 1, total=4)
    grid.pass_time(hours=3)
    assert grid.write(remove_race_sets) == 0
    grid.change(JobChange.REMOVE, left)
    assert grid.write(remove_race_sets) == 1
    assert grid.job(left).state is JobState.REMOVED


def test_what_an_owner_has_in_races_and_what_it_cost_him_of_late_is_told(grid: Grid) -> None:
    assert grid.read(lambda transaction, _: race_loads(transaction)) == ()
    (left,) = run_all_but(grid, 1, total=4)
    start_copy(grid, left)
    copy = Runner(grid, C)
    grid.pass_time(minutes=2)
    (load,) = grid.read(lambda transaction, _: race_loads(transaction))
    assert (load.account.owner, load.copies, load.lost_core_s) == ("alice", 1, 120)
    copy.ends(exit_code=1)
    (load,) = grid.read(lambda transaction, _: race_loads(transaction))
    assert (load.copies, load.lost_core_s) == (0, 120)
    grid.pass_time(days=2)
    assert grid.read(lambda transaction, _: race_loads(transaction)) == ()


def test_all_that_runs_of_a_large_urgent_set_is_told_within_some_looks_and_its_first_jobs_in_each(grid: Grid) -> None:
    ids = grid.submit(attributes=URGENT, count=MAX_TAIL_JOBS * 4 + 10)
    for runner in (grid.start_pilot(A) for _ in range(3)):
        for match in runner.ask(*(a_slot(f"s{number}") for number in range(MAX_TAIL_JOBS))).matches:
            runner.start(match)
    running = ids[: 3 * MAX_TAIL_JOBS]
    looked: list[list[int]] = []
    after_job = 0
    for _ in range(4):
        found = grid.read(partial(find_stragglers, after_set=0, after_jobs={ids[0]: after_job}))
        (look,) = found.sets
        looked.append([each.job.id for each in look.stragglers])
        after_job = look.next_after_job
    first, second, third = (running[start : start + MAX_TAIL_JOBS] for start in range(0, 600, MAX_TAIL_JOBS))
    assert looked == [first + second, first + third, first, first]
    assert after_job == 0, "the next look begins anew"


def test_what_runs_of_many_sets_is_told_in_several_answers(grid: Grid) -> None:
    ids = [grid.submit(attributes=URGENT, count=count) for count in (2, 1, 3, 1, 1)]
    for _ in range(8):
        Runner(grid, A)
    grid.change(JobChange.REMOVE, *ids[1])

    def page(after: int) -> Stragglers:
        return grid.read(lambda transaction, state: find_stragglers(transaction, state, after, most_running=2))

    pages = [page(0)]
    while pages[-1].next_after:
        pages.append(page(pages[-1].next_after))
    answers = [[each.job.id for look in found.sets for each in look.stragglers] for found in pages]
    assert answers == [[*ids[0]], [*ids[2]], [*ids[3], *ids[4]]]
