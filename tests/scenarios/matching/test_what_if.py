"""What would help a waiting job, when it may start, what a job has used, and what a submission would do."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pilotage.classads.clauses import clauses
from pilotage.job_description import JobDescription, Value
from pilotage.resources.relaxations import relaxed
from pilotage.values.attempts import Outcome
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.operations.dry_run import DryRun, try_submission
from pilotage_server.operations.explain import Explanation
from pilotage_server.operations.jobs.edit import edit_job
from pilotage_server.operations.jobs.queries import get_description
from pilotage_server.storage.database.engine import Database
from support.grid import LONG, Grid, a_busy_slot, a_slot, a_tree, an_idle_slot
from support.jobs import a_user, an_operator
from support.virtual_clock import VirtualClock

BIG, GPU = "CERN/ce01/big", "FNAL/ce02/gpu"
HOUR = timedelta(hours=1)


@pytest.fixture
def grid(sqlite_database: Database, clock: VirtualClock) -> Grid:
    tree = a_tree(LONG, BIG, GPU)
    queues = tree["sites"]["CERN"]["ces"]["ce01"]["queues"]
    queues["long"] |= {"Memory": "60 GB", "MaxWallTime": "8 h", "Tags": ["a"]}
    queues["big"] |= {"Memory": "62 GB", "MaxWallTime": "8 h", "Tags": ["a", "b"]}
    tree["sites"]["FNAL"]["ces"]["ce02"]["queues"]["gpu"] |= {"Memory": "90 GB", "Tags": ["gpu"], "RequiredTags": "gpu"}
    grid = Grid(sqlite_database, clock)
    grid.put(tree)
    return grid


def dry_run(grid: Grid, *descriptions: JobDescription) -> DryRun:
    """Return what a submission of alice would do."""
    return grid.read(
        lambda transaction, state: try_submission(transaction, state, a_user("alice"), single_groups(descriptions))
    )


def edit(grid: Grid, job_id: int, field: str, value: Value | None) -> None:
    """Edit one field of a job, as a relaxation says."""
    present = grid.read(lambda transaction, _: get_description(transaction, an_operator(), job_id))
    changed = relaxed(present, field, value)
    grid.write(lambda transaction, state: edit_job(transaction, state, an_operator(), job_id, changed))


def test_relaxations_are_named_with_the_queues_that_they_open(grid: Grid) -> None:
    (memory,) = grid.submit(requirements={"Memory": "64 GB", "Tags": "a"})
    (tags,) = grid.submit(requirements={"Memory": 1, "Tags": ("a", "c")})
    (site,) = grid.submit(sites=("RAL",))
    (long_,) = grid.submit(wall_time=10 * HOUR, sites=("CERN",))
    assert list(map(str, grid.why(memory).relaxations)) == [
        "Memory 64 GB -> 62 GB: 1 queue",
        "Tags a -> gpu: 1 queue",
        "Memory 64 GB -> 60 GB: 2 queues",
    ]
    assert list(map(str, grid.why(tags).relaxations)) == ["Tags a, c -> a: 2 queues", "Tags a, c -> gpu: 1 queue"]
    assert list(map(str, grid.why(site).relaxations)) == ["Site RAL -> RAL, CERN: 2 queues"]
    assert list(map(str, grid.why(long_).relaxations)) == ["MaxWallTime 10 h -> 8 h: 2 queues"]


def test_required_tags_are_a_relaxation_that_closes_other_queues(grid: Grid) -> None:
    (job_id,) = grid.submit(requirements={"Memory": 1})
    (tag,) = grid.why(job_id).relaxations
    assert str(tag) == "Tags not asked -> gpu: 1 queue, but 2 no longer"


@pytest.mark.parametrize(
    "fields",
    [
        {"requirements": {"Memory": "64 GB", "Tags": "a"}},
        {"requirements": {"Tags": ("a", "c")}},
        {"requirements": {"OS": "el9"}},
        {"sites": ("RAL",)},
        {"sites": ("CERN",), "wall_time": timedelta(hours=10)},
        {"sites": ("CERN",), "request_memory_mib": 64 * 1024},
        {"banned_sites": ("cern",)},
    ],
    ids=str,
)
def test_job_that_is_edited_as_why_says_starts_there(grid: Grid, fields: dict[str, Any]) -> None:
    found = 0
    for place in range(5):
        (job_id,) = grid.submit(**fields)
        relaxations = grid.why(job_id).relaxations
        if place < len(relaxations):
            wanted = relaxations[place]
            pilot = grid.start_pilot(str(wanted.example))
            offer = a_slot(cpus=8, memory_mib=200 * 1024)
            assert job_id not in pilot.claim(offer)
            edit(grid, job_id, wanted.field, wanted.value)
            assert pilot.claim(offer) == [job_id], wanted
            assert len(grid.why(job_id).eligible_queues) >= wanted.opens
            found += 1
    assert found


def test_why_counts_the_slots_that_each_clause_excludes(grid: Grid) -> None:
    expression = 'TARGET.Memory >= 4000 && Farm == "a" && Farm =!= "c"'
    slots = [
        replace(an_idle_slot(f"slot{number}", memory_mib=memory), ad=f'[Farm = "{farm}"]')
        for number, (memory, farm) in enumerate([(4000, "b"), (4000, "b"), (2000, "a"), (2000, "b")], start=1)
    ]
    busy = replace(a_busy_slot("slot5"), ad='[Farm = "b"; Memory = 8000]')
    grid.start_pilot().show(*slots, busy)
    (job_id,) = grid.submit(requirements_expression=expression)
    analysis = grid.why(job_id).slots
    assert (analysis.seen, analysis.matching) == (5, 0)
    assert [(each.clause.rpartition(", ")[2], each.slots, each.slots_alone) for each in analysis.exclusions] == [
        ('Farm == "a" is false', 4, 3),
        ("TARGET.Memory >= 4000 is false", 2, 1),
    ]
    # Without a clause, the slots match that it alone excluded.
    for left_out, alone in ((1, 3), (0, 1)):
        kept = " && ".join(clause for place, clause in enumerate(clauses(expression)) if place != left_out)
        (other,) = grid.submit(requirements_expression=kept)
        assert grid.why(other).slots.matching == alone


def run_jobs(grid: Grid, waits_min: list[int], **fields: Any) -> list[int]:
    """Run a job that waits so long, one after the other; return the ids."""
    pilot, ids = grid.start_pilot(BIG), []
    for minutes in waits_min:
        (job_id,) = grid.submit(**fields)
        grid.pass_time(minutes=minutes)
        match = pilot.take(a_slot(cpus=8, memory_mib=10_000))
        pilot.start(match)
        pilot.finish(match)
        ids.append(job_id)
    return ids


def estimate(explanation: Explanation) -> tuple[int, float, float, float]:
    """Return the starts behind an estimate, and its times in minutes."""
    start = explanation.start
    assert start is not None
    assert start.why_none == ""
    return start.starts, start.early_s / 60, start.median_s / 60, start.late_s / 60


def why_none(explanation: Explanation) -> str:
    assert explanation.start is not None
    return explanation.start.why_none


def test_start_is_estimated_from_jobs_that_ran(grid: Grid) -> None:
    fields: dict[str, Any] = {"requirements": {"Memory": 100}}
    run_jobs(grid, [5, 3, 1, 7, 9], **fields)
    (job_id,) = grid.submit(**fields)
    assert why_none(grid.why(job_id)) == (
        "fewer than 10 jobs with the same requirements have started in the last 3 days: only 5"
    )
    grid.change(JobChange.REMOVE, job_id)
    run_jobs(grid, [2, 4, 6, 8, 10, 20], **fields)
    (job_id,) = grid.submit(**fields)
    assert estimate(grid.why(job_id)) == (11, 2, 6, 10)
    (of_bob,) = grid.submit(a_user("bob"), **fields)
    assert estimate(grid.why(of_bob)) == (11, 2, 6, 10)
    assert grid.why(of_bob).start.basis == "jobs with the same requirements"  # type: ignore[union-attr]
    outlook = dry_run(grid, JobDescription("/bin/true", requirements={"memory": 100.0})).outlooks[0]
    assert estimate(outlook.explanation) == (11, 2, 6, 10)

    grid.pass_time(minutes=30)
    assert why_none(grid.why(job_id)).startswith("it has waited longer than 11 of the 11 jobs like it of its owner")
    grid.pass_time(hours=80)
    assert why_none(grid.why(job_id)).endswith("have started in the last 3 days: none")


def test_there_is_no_estimate_for_a_job_that_no_queue_can_run(grid: Grid) -> None:
    (job_id,) = grid.submit(requirements={"Memory": "100 GB"})
    assert why_none(grid.why(job_id)) == "no queue can run it"


def test_why_compares_what_a_job_used_with_what_it_asked(grid: Grid) -> None:
    (job_id,) = grid.submit(request_memory_mib=16 * 1024, wall_time=2 * HOUR, requirements={"Memory": 1})
    pilot = grid.start_pilot()
    assert grid.why(job_id).resources == ()
    match = pilot.take(a_slot(memory_mib=20 * 1024))
    pilot.start(match)
    pilot.report(match, Outcome.EXITED, exit_code=0, cpu_s=1800.0, wall_s=3600.0, peak_memory_mib=1200)
    used = {each.resource: (each.asked, each.used) for each in grid.why(job_id).resources}
    assert used["memory"] == (16 * 1024, 1200)
    assert used["cores, on average"] == (1, 0.5)
    assert used["wall time"] == (7200, 3600)


def test_dry_run_explains_and_stores_nothing(grid: Grid) -> None:
    grid.submit(count=3)
    tried = dry_run(
        grid,
        JobDescription("/bin/true", requirements={"Memory": "64 GB", "Tags": "a"}, count=7),
        JobDescription("/bin/true"),
    )
    first, second = tried.outlooks
    assert (first.jobs, first.description, second.description) == (7, 0, 1)
    assert first.explanation.relaxations[0].opens == 1
    assert any("no queue satisfies the requirements" in warning for warning in tried.warnings)
    assert len(second.explanation.eligible_queues) == 2
    assert second.explanation.jobs_ahead == 3
    assert [outlook.obstacle for outlook in second.explanation.eligible_queues if "pool" in outlook.obstacle] == []
    (job_id,) = grid.submit()
    assert job_id == 4


def test_dry_run_finds_the_reasons_of_the_submitted_job(grid: Grid) -> None:
    grid.start_pilot().show(an_idle_slot(cpus=2))
    fields: dict[str, Any] = {"request_cpus": 4, "requirements": {"Memory": 100}}
    (outlook,) = dry_run(grid, JobDescription("/bin/true", **fields)).outlooks
    (job_id,) = grid.submit(**fields)
    why, tried = grid.why(job_id), outlook.explanation
    assert (tried.summary, tried.exclusions, tried.eligible_queues) == (
        why.summary,
        why.exclusions,
        why.eligible_queues,
    )
    assert (tried.slots, tried.jobs_ahead, tried.job.pool_id) == (why.slots, 0, why.job.pool_id)
