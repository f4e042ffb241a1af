"""Why a job waits though slots are free: its own expression or the slots' policies, clause by clause."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pilotage_server.operations.explain import Explanation
from pilotage_server.storage.database.engine import Database
from support.grid import Grid, a_busy_slot, an_idle_slot
from support.virtual_clock import VirtualClock


@pytest.fixture
def grid(sqlite_database: Database, clock: VirtualClock) -> Grid:
    return Grid(sqlite_database, clock)


def why(grid: Grid, *ads: str, **fields: Any) -> Explanation:
    """Let a pilot show a slot with each of these ads, submit a job, and explain it."""
    slots = [replace(an_idle_slot(f"slot{place}", memory_mib=2000), ad=ad) for place, ad in enumerate(ads, start=1)]
    grid.start_pilot().show(*slots)
    (job_id,) = grid.submit(**fields)
    return grid.why(job_id)


def obstacle(explanation: Explanation) -> str:
    (outlook,) = explanation.eligible_queues
    return outlook.obstacle


def test_the_clause_of_the_jobs_expression_that_is_false_is_told_with_its_values(grid: Grid) -> None:
    told = why(grid, "[]", requirements_expression="TARGET.Memory >= 4000 && State =!= undefined")
    assert obstacle(told) == "of the job's expression, TARGET.Memory >= 4000 is false (TARGET.Memory = 2000)"
    assert "it fits in none of the 1 free slot" in told.summary
    assert "TARGET.Memory >= 4000 is false" in told.summary


def test_the_clause_of_the_slots_policy_that_is_false_is_told(grid: Grid) -> None:
    ad = "[Start = LoadAvg < 0.3 && TARGET.BolognaBatchJob =?= true]"
    assert obstacle(why(grid, ad)) == (
        "of the slot's START, TARGET.BolognaBatchJob =?= true is false (TARGET.BolognaBatchJob = undefined)"
    )


def test_a_job_that_both_sides_want_has_no_obstacle(grid: Grid) -> None:
    ad = '[Start = TARGET.BolognaBatchJob =?= true && TARGET.Owner == "alice" && NumJobStarts < 3; Farm = "old"]'
    own = {"BolognaBatchJob": True}
    assert obstacle(why(grid, ad, attributes=own, requirements_expression='TARGET.Farm == "OLD"')) == ""


def test_the_obstacle_of_most_slots_is_told_with_one_of_them_as_the_example(grid: Grid) -> None:
    ads = ['[Farm = "a"]', '[Farm = "b"]', "[Start = false]"]
    told = obstacle(why(grid, *ads, requirements_expression='Farm == "c"'))
    assert told.startswith('of the job\'s expression, Farm == "c" is false (Farm = "a") (2 of 3 free slots)')


def test_an_owner_slot_is_asked_too_for_its_policy_may_want_some_job(grid: Grid) -> None:
    owner = replace(an_idle_slot("slot9", 8, 2000), state="Owner", ad="[Start = TARGET.RequiresWholeMachine =?= true]")
    grid.start_pilot().show(owner)
    (single,) = grid.submit()
    (whole,) = grid.submit(attributes={"RequiresWholeMachine": True})
    assert "RequiresWholeMachine =?= true is false" in obstacle(grid.why(single))
    assert obstacle(grid.why(whole)) == ""


def test_what_another_slot_of_the_node_is_in_counts_too(grid: Grid) -> None:
    ads = [
        f'[SlotID = {number}; SharedSlotAttributes = "State"; Start = slot2_State =!= "Claimed"]' for number in (1, 2)
    ]
    grid.start_pilot().show(replace(an_idle_slot(), ad=ads[0]), replace(a_busy_slot("slot2"), ad=ads[1]))
    (job_id,) = grid.submit()
    assert 'slot2_State =!= "Claimed" is false' in obstacle(grid.why(job_id))
