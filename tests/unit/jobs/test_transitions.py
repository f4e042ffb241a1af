"""State transitions of jobs, changes by users, and page tokens of job lists."""

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
    LEASED,
    TRANSITIONS,
    HoldHistory,
    IllegalTransitionError,
    JobCause,
    JobState,
)
from pilotage_server.core.paging import position_of, token_of
from support.jobs import a_job, a_user, after_transition, an_operator
from support.virtual_clock import START

NOW = START + timedelta(hours=1)
states = st.sampled_from(list(JobState))
causes = st.sampled_from(list(JobCause))


@given(states, causes)
def test_only_transitions_of_the_table_are_possible(state: JobState, cause: JobCause) -> None:
    job = a_job(state=state)
    if (state, cause) in TRANSITIONS:
        assert after_transition(job, cause, reason="why", now=NOW).state is TRANSITIONS[state, cause]
    else:
        with pytest.raises(IllegalTransitionError, match=str(state)):
            after_transition(job, cause, reason="why", now=NOW)


@given(st.sampled_from(sorted(TRANSITIONS)), st.booleans())
def test_lease_survives_only_fencing_transitions(transition: tuple[JobState, JobCause], is_expired: bool) -> None:
    state, cause = transition
    end = NOW if is_expired else NOW + timedelta(minutes=1)
    after = after_transition(
        a_job(state=state, lease_until=end if state in LEASED else None), cause, reason="", now=NOW
    )
    if after.state not in LEASED:
        is_fenced = state in LEASED and cause in FENCING_CAUSES and not is_expired
        assert after.lease_until == (end if is_fenced else None)


def test_job_stays_fenced_until_the_lease_ends() -> None:
    running = a_job(state=JobState.RUNNING, lease_until=NOW)
    held = after_transition(running, JobCause.HELD, reason="", now=START)
    released = after_transition(held, JobCause.RELEASED, reason="", now=START)
    assert (held.is_fenced, released.is_fenced, is_matchable(released)) == (True, True, False)
    assert is_matchable(after_transition(held, JobCause.RELEASED, reason="", now=NOW))


def test_match_sets_attempt_lease_and_pilot() -> None:
    until = NOW + timedelta(minutes=20)
    matched = after_transition(
        a_job(), JobCause.MATCHED, reason="", now=NOW, attempt=1, lease_until=until, pilot_stamp="p1"
    )
    assert (matched.attempt, matched.lease_until, matched.pilot_stamp) == (1, until, "p1")


def test_reschedule_resets_all_but_the_attempt_number() -> None:
    job = a_job(state=JobState.FAILED, attempt=3, spent_attempts=3, exit_code=1, signal=9, started=START, ended=START)
    after = after_transition(job, JobCause.RESCHEDULED, reason="", now=NOW)
    assert (after.attempt, after.spent_attempts) == (3, 0)
    assert (after.exit_code, after.signal, after.started, after.ended) == (None, None, None, None)


@given(states, st.sampled_from(list(JobChange)))
def test_change_is_refused_exactly_without_a_transition(state: JobState, change: JobChange) -> None:
    refusal = refusal_of(a_job(id=5, state=state), change)
    assert (refusal == "") == ((state, CAUSES[change]) in TRANSITIONS)
    assert refusal == "" or ("job 5" in refusal and str(state) in refusal)


def test_refusal_names_a_repeated_change() -> None:
    assert refusal_of(a_job(id=5, state=JobState.REMOVED), JobChange.REMOVE) == (
        "job 5 is already REMOVED; it cannot be removed"
    )


def test_release_limit_applies_only_when_given() -> None:
    held = a_job(id=5, state=JobState.HELD, hold_history=HoldHistory(((1, 2), (3, 2))))
    refusal = "job 5 stays HELD: it has been released 3 times, as often as any job may be"
    assert refusal_of(held, JobChange.RELEASE, 3) == refusal
    assert refusal_of(held, JobChange.RELEASE, 4) == ""
    assert refusal_of(held, JobChange.RELEASE) == ""
    assert refusal_of(held, JobChange.REMOVE, 3) == ""


def test_users_may_change_their_own_jobs_and_operators_all() -> None:
    assert may_change(a_user("alice", "lhcb"), "alice", "lhcb")
    assert not may_change(a_user("alice", "lhcb"), "bob", "lhcb")
    assert not may_change(a_user("alice", "atlas"), "alice", "lhcb")
    assert may_change(an_operator(), "bob", "atlas")


@given(st.integers(0, 2**63), st.lists(st.text(), max_size=3))
def test_page_token_round_trips(position: int, filters: list[str]) -> None:
    assert position_of(token_of(position, filters), filters) == position


def test_page_token_of_another_query_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="other filters"):
        position_of(token_of(5, ["WAITING"]), ["DONE"])


@given(st.text(max_size=30))
def test_invalid_page_token_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        position_of(text, ["WAITING"])
    assert refused.value.violations[0].where == "page_token"
