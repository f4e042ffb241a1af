"""What steps and wishes make of a job's record."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.errors import InvalidInputError
from pilotage_server.core.jobs.changes import CAUSES, JobChange, may_change, refusal_of
from pilotage_server.core.jobs.record import is_matchable
from pilotage_server.core.jobs.states import (
    FENCING_CAUSES,
    FINAL,
    LEASED,
    TRANSITIONS,
    HoldHistory,
    IllegalTransitionError,
    JobCause,
    JobState,
)
from pilotage_server.core.paging import position_of, token_of
from support.jobs import a_job, a_user, an_operator, stepped
from support.virtual_clock import START

NOW = START + timedelta(hours=1)
states = st.sampled_from(list(JobState))
causes = st.sampled_from(list(JobCause))


@given(states, causes)
def test_a_job_steps_only_as_the_table_says(state: JobState, cause: JobCause) -> None:
    job = a_job(state=state)
    if (state, cause) in TRANSITIONS:
        assert stepped(job, cause, reason="why", now=NOW).state is TRANSITIONS[state, cause]
    else:
        with pytest.raises(IllegalTransitionError, match=str(state)):
            stepped(job, cause, reason="why", now=NOW)


@given(st.sampled_from(sorted(TRANSITIONS)))
def test_a_job_has_an_end_exactly_when_it_is_final(step: tuple[JobState, JobCause]) -> None:
    state, cause = step
    after = stepped(a_job(state=state, ended=START if state in FINAL else None), cause, reason="", now=NOW)
    assert (after.ended is not None) == (after.state in FINAL)


@given(st.sampled_from(sorted(TRANSITIONS)), st.booleans())
def test_a_lease_outlives_its_step_only_where_somebodys_wish_took_the_job_from_a_pilot(
    step: tuple[JobState, JobCause], lapsed: bool
) -> None:
    state, cause = step
    end = NOW if lapsed else NOW + timedelta(minutes=1)
    after = stepped(a_job(state=state, lease_until=end if state in LEASED else None), cause, reason="", now=NOW)
    if after.state not in LEASED:
        lingers = state in LEASED and cause in FENCING_CAUSES and not lapsed
        assert after.lease_until == (end if lingers else None)


def test_an_attempt_that_lingers_goes_on_lingering_through_later_steps_until_its_lease_has_ended() -> None:
    running = a_job(state=JobState.RUNNING, lease_until=NOW)
    held = stepped(running, JobCause.HELD, reason="", now=START)
    released = stepped(held, JobCause.RELEASED, reason="", now=START)
    assert (held.is_fenced, released.is_fenced, is_matchable(released)) == (True, True, False)
    assert is_matchable(stepped(held, JobCause.RELEASED, reason="", now=NOW))


def test_what_the_caller_decides_goes_into_the_record() -> None:
    until = NOW + timedelta(minutes=20)
    matched = stepped(a_job(), JobCause.MATCHED, reason="", now=NOW, attempt=1, lease_until=until, pilot_stamp="p1")
    assert (matched.attempt, matched.lease_until, matched.pilot_stamp) == (1, until, "p1")


def test_a_rescheduled_job_starts_afresh_but_goes_on_counting_its_attempts() -> None:
    job = a_job(state=JobState.FAILED, attempt=3, spent_attempts=3, exit_code=1, signal=9, started=START, ended=START)
    after = stepped(job, JobCause.RESCHEDULED, reason="", now=NOW)
    assert (after.attempt, after.spent_attempts) == (3, 0)
    assert (after.exit_code, after.signal, after.started, after.ended) == (None, None, None, None)


@given(states, st.sampled_from(list(JobChange)))
def test_a_change_is_refused_in_words_exactly_when_there_is_no_such_step(state: JobState, change: JobChange) -> None:
    refusal = refusal_of(a_job(id=5, state=state), change)
    assert (refusal == "") == ((state, CAUSES[change]) in TRANSITIONS)
    assert refusal == "" or ("job 5" in refusal and str(state) in refusal)


def test_a_change_that_was_made_already_says_so() -> None:
    assert refusal_of(a_job(id=5, state=JobState.REMOVED), JobChange.REMOVE) == (
        "job 5 is already REMOVED; it cannot be removed"
    )


def test_a_job_that_was_released_as_often_as_any_may_be_is_only_released_by_those_who_are_not_bound() -> None:
    held = a_job(id=5, state=JobState.HELD, hold_history=HoldHistory(((1, 2), (3, 2))))
    refusal = "job 5 stays HELD: it has been released 3 times, as often as any job may be"
    assert refusal_of(held, JobChange.RELEASE, 3) == refusal
    assert refusal_of(held, JobChange.RELEASE, 4) == ""
    assert refusal_of(held, JobChange.RELEASE) == ""
    assert refusal_of(held, JobChange.REMOVE, 3) == ""


def test_users_see_what_is_theirs_and_operators_see_all() -> None:
    assert may_change(a_user("alice", "lhcb"), "alice", "lhcb")
    assert not may_change(a_user("alice", "lhcb"), "bob", "lhcb")
    assert not may_change(a_user("alice", "atlas"), "alice", "lhcb")
    assert may_change(an_operator(), "bob", "atlas")


@given(st.integers(0, 2**63), st.lists(st.text(), max_size=3))
def test_a_page_token_gives_its_position_back(position: int, asked: list[str]) -> None:
    assert position_of(token_of(position, asked), asked) == position


def test_a_page_token_of_another_question_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="other filters"):
        position_of(token_of(5, ["WAITING"]), ["DONE"])


@given(st.text(max_size=30))
def test_any_text_that_is_no_token_is_refused_with_its_field(text: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        position_of(text, ["WAITING"])
    assert refused.value.violations[0].where == "page_token"
