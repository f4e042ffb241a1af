"""Why a job waits while slots are free: the false clause of its own expression or of the slots' policies."""

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
    """Start a pilot that has a slot for each of these ads, submit a job, and explain it."""
    slots = [replace(an_idle_slot(f"slot{number}", memory_mib=2000), ad=ad) for number, ad in enumerate(ads, start=1)]
    grid.start_pilot().show(*slots)
    (job_id,) = grid.submit(**fields)
    return grid.why(job_id)


def obstacle(explanation: Explanation) -> str:
    (queue,) = explanation.eligible_queues
    return queue.obstacle


def test_why_names_the_false_clause_of_the_jobs_expression(grid: Grid) -> None:
    explanation = why(grid, "[]", requirements_expression="TARGET.Memory >= 4000 && State =!= undefined")
    assert obstacle(explanation) == "of the job's expression, TARGET.Memory >= 4000 is false (TARGET.Memory = 2000)"
    assert "it does not fit in the free slot" in explanation.summary
    assert "TARGET.Memory >= 4000 is false" in explanation.summary


def test_why_names_the_false_clause_of_the_slots_policy(grid: Grid) -> None:
    ad = "[Start = LoadAvg < 0.3 && TARGET.BolognaBatchJob =?= true]"
    assert obstacle(why(grid, ad)) == (
        "of the slot's START, TARGET.BolognaBatchJob =?= true is false (TARGET.BolognaBatchJob = undefined)"
    )


def test_job_that_matches_on_both_sides_has_no_obstacle(grid: Grid) -> None:
    ad = '[Start = TARGET.BolognaBatchJob =?= true && TARGET.Owner == "alice" && NumJobStarts < 3; Farm = "old"]'
    attributes = {"BolognaBatchJob": True}
    assert obstacle(why(grid, ad, attributes=attributes, requirements_expression='TARGET.Farm == "OLD"')) == ""


def test_why_names_the_most_common_obstacle_with_an_example(grid: Grid) -> None:
    ads = ['[Farm = "a"]', '[Farm = "b"]', "[Start = false]"]
    text = obstacle(why(grid, *ads, requirements_expression='Farm == "c"'))
    assert text.startswith('of the job\'s expression, Farm == "c" is false (Farm = "a") (2 of 3 free slots)')


def test_why_evaluates_the_policy_of_owner_slots(grid: Grid) -> None:
    owner = replace(an_idle_slot("slot9", 8, 2000), state="Owner", ad="[Start = TARGET.RequiresWholeMachine =?= true]")
    grid.start_pilot().show(owner)
    (single,) = grid.submit()
    (whole,) = grid.submit(attributes={"RequiresWholeMachine": True})
    assert "RequiresWholeMachine =?= true is false" in obstacle(grid.why(single))
    assert obstacle(grid.why(whole)) == ""


def test_why_evaluates_the_state_of_other_slots_of_the_node(grid: Grid) -> None:
    ads = [
        f'[SlotID = {number}; SharedSlotAttributes = "State"; Start = slot2_State =!= "Claimed"]' for number in (1, 2)
    ]
    grid.start_pilot().show(replace(an_idle_slot(), ad=ads[0]), replace(a_busy_slot("slot2"), ad=ads[1]))
    (job_id,) = grid.submit()
    assert 'slot2_State =!= "Claimed" is false' in obstacle(grid.why(job_id))
