"""The conditions of partial indexes agree with the state machine of jobs."""

from __future__ import annotations

import pytest

from pilotage_server.core.jobs.states import FENCING_CAUSES, FINAL, LEASED, TRANSITIONS, JobCause, JobState
from pilotage_server.storage.database.tables import FENCED_JOB, LEASED_JOB
from support.jobs import a_job, after_transition
from support.virtual_clock import START

ALL_TRANSITIONS = sorted(TRANSITIONS)


def test_conditions_name_the_states_of_the_core() -> None:
    leased, fenced = (set(text.split("'")[1::2]) for text in (LEASED_JOB, FENCED_JOB))
    assert leased == set(LEASED)
    by_fencing = {
        TRANSITIONS[state, cause] for state, cause in TRANSITIONS if state in LEASED and cause in FENCING_CAUSES
    }
    afterwards = {after for (state, _), after in TRANSITIONS.items() if state in by_fencing and after not in LEASED}
    assert fenced == by_fencing | afterwards


@pytest.mark.parametrize(("state", "cause"), ALL_TRANSITIONS)
def test_job_has_an_end_exactly_in_final_states(state: JobState, cause: JobCause) -> None:
    after = after_transition(a_job(state=state, ended=START if state in FINAL else None), cause, reason="", now=START)
    assert (after.ended is not None) == (after.state in FINAL)


@pytest.mark.parametrize(("state", "cause"), ALL_TRANSITIONS)
def test_job_has_a_hold_code_exactly_when_held(state: JobState, cause: JobCause) -> None:
    hold_code = 1 if state is JobState.HELD else None
    after = after_transition(a_job(state=state, hold_code=hold_code), cause, reason="", now=START)
    assert (after.hold_code is not None) == (after.state is JobState.HELD)
