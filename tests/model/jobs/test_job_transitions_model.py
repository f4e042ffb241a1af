"""Random changes and transitions of jobs: the transition table holds, events are complete, and memory agrees."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, invariant, multiple, rule

from pilotage.errors import StateConflictError
from pilotage.values.jobs import JobCondition
from pilotage_server.core.jobs.changes import CAUSES, JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.record import FeedEvent, JobRecord, is_matchable
from pilotage_server.core.jobs.states import FINAL, LEASED, TRANSITIONS, JobCause, JobState
from pilotage_server.operations.attempts.transitions import apply_transition
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.edit import edit_job
from pilotage_server.operations.jobs.queries import get_events, get_jobs, list_jobs, read_feed
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.server_state import ServerState
from support.database import quick_sqlite
from support.jobs import a_description, a_user
from support.virtual_clock import VirtualClock

ALICE = a_user("alice")
memories = st.sampled_from([None, 1000, 2000])


class JobTransitions(RuleBasedStateMachine):
    """Jobs in a database with all changes and transitions."""

    jobs: Bundle[int] = Bundle("jobs")

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.open = ExitStack()
        folder = self.open.enter_context(TemporaryDirectory())
        self.database = self.open.enter_context(quick_sqlite(Path(folder, "pilotage.db"), self.clock))
        self.state = ServerState()
        self.received: list[FeedEvent] = []
        self.state.event_listeners.append(self.received.extend)

    def teardown(self) -> None:
        self.open.close()

    def job(self, job_id: int) -> JobRecord:
        return self.database.read(lambda transaction: get_jobs(transaction, ALICE, [job_id]))[0]

    @rule(target=jobs, count=st.integers(1, 3), hold=st.booleans(), memory=memories)
    def submit(self, count: int, hold: bool, memory: int | None) -> MultipleResults[int]:
        description = a_description(count=count, hold=hold, requirements=memory and {"Memory": memory})
        submitted = self.database.write(
            lambda transaction: submit_jobs(transaction, self.state, ALICE, single_groups([description]))
        )
        return multiple(*submitted.job_ids)

    @rule(job_id=jobs, cause=st.sampled_from(list(JobCause)))
    def move(self, job_id: int, cause: JobCause) -> None:
        before = self.job(job_id)
        lease = before.lease_until or self.clock() + timedelta(minutes=20)
        changes: dict[str, Any] = {"lease_until": lease} if TRANSITIONS.get((before.state, cause)) in LEASED else {}
        if cause is JobCause.MATCHED:
            changes["attempt"] = before.attempt + 1
        try:
            after = self.database.write(
                lambda transaction: apply_transition(
                    transaction, self.state, before, cause, reason="", actor="server", **changes
                )
            )
        except StateConflictError:
            assert (before.state, cause) not in TRANSITIONS
            assert self.job(job_id) == before
        else:
            assert after == self.job(job_id)

    @rule(job_ids=st.lists(jobs, max_size=3), change=st.sampled_from(list(JobChange)))
    def change(self, job_ids: list[int], change: JobChange) -> None:
        before = {job_id: self.job(job_id) for job_id in job_ids}
        results = self.database.write(
            lambda transaction: change_jobs(transaction, self.state, ALICE, job_ids, change, "")
        )
        for result in results:
            legal = (before[result.job_id].state, CAUSES[change]) in TRANSITIONS
            assert legal == (result.refusal == "")
            assert result.state is self.job(result.job_id).state

    @rule(job_id=jobs, memory=memories, priority=st.integers(-2, 2))
    def edit(self, job_id: int, memory: int | None, priority: int) -> None:
        before = self.job(job_id)
        description = a_description(priority=priority, requirements=memory and {"Memory": memory})
        try:
            edited = self.database.write(
                lambda transaction: edit_job(transaction, self.state, ALICE, job_id, description)
            ).job
        except StateConflictError:
            assert before.state not in {JobState.WAITING, JobState.HELD}
        else:
            assert (edited.state, edited.priority, bool(edited.pool_id)) == (before.state, priority, bool(memory))

    @rule(minutes=st.integers(1, 60))
    def pass_time(self, minutes: int) -> None:
        self.clock.advance(minutes=minutes)

    @invariant()
    def memory_counts_waiting_jobs(self) -> None:
        wanted = JobCondition(states=frozenset({JobState.WAITING}))
        waiting = [
            job
            for job in self.database.read(lambda transaction: list_jobs(transaction, ServerState(), ALICE, wanted)).jobs
            if is_matchable(job)
        ]
        counts = {each.task_queue.id: each.count for each in self.state.waiting.waiting()}
        assert counts == Counter(job.task_queue_id for job in waiting)

    @invariant()
    def events_lead_to_the_state_of_the_job(self) -> None:
        for job in self.database.read(
            lambda transaction: list_jobs(transaction, ServerState(), ALICE, JobCondition())
        ).jobs:
            events = self.database.read(partial(get_events, identity=ALICE, job_id=job.id))
            assert events[0].from_state is JobState.RECEIVED
            assert all(TRANSITIONS[event.from_state, event.cause] is event.to_state for event in events)
            assert all(one.to_state is other.from_state for one, other in pairwise(events))
            assert all(one.position < other.position and one.time <= other.time for one, other in pairwise(events))
            assert events[-1].to_state is job.state
            assert (job.ended is not None) == (job.state in FINAL)
            assert job.lease_until is not None or job.state not in LEASED

    @invariant()
    def listeners_receive_the_feed_in_order(self) -> None:
        positions = [event.position for event in self.received]
        assert positions == sorted(set(positions))
        feed = {
            event.position: event
            for event in self.database.read(lambda transaction: read_feed(transaction, ALICE, 0)).events
        }
        assert all(feed[event.position] == event for event in self.received)


JobTransitions.TestCase.settings = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestJobTransitions = JobTransitions.TestCase
