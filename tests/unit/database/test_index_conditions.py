"""The conditions of partial indexes say in SQL what the core says of states."""

from __future__ import annotations

import pytest

from pilotage_server.core.jobs.states import FINAL, LEASED, TRANSITIONS, JobCause, JobState
from pilotage_server.storage.database.tables import FENCED_JOB, LEASED_JOB
from support.jobs import a_job, stepped
from support.virtual_clock import START

STEPS = sorted((state, cause) for state, cause in TRANSITIONS if state is not JobState.RECEIVED)


def test_the_texts_name_the_states_of_the_core() -> None:
    leased, lingering = (set(text.split("'")[1::2]) for text in (LEASED_JOB, FENCED_JOB))
    assert leased == set(LEASED)
    assert lingering == {JobState.WAITING, JobState.HELD, JobState.REMOVED, JobState.DONE}


@pytest.mark.parametrize(("state", "cause"), STEPS)
def test_just_the_jobs_in_final_states_have_ended(state: JobState, cause: JobCause) -> None:
    after = stepped(a_job(state=state), cause, reason="", now=START)
    assert (after.ended is not None) == (after.state in FINAL)


@pytest.mark.parametrize(("state", "cause"), STEPS)
def test_just_the_jobs_that_are_held_have_a_code_for_it(state: JobState, cause: JobCause) -> None:
    hold_code = 1 if state is JobState.HELD else None
    after = stepped(a_job(state=state, hold_code=hold_code), cause, reason="", now=START)
    assert (after.hold_code is not None) == (after.state is JobState.HELD)
