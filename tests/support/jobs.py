"""Builders of identities, job records and leased jobs, and functions that record reports singly and in batches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from pilotage.job_description import JobDescription
from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage_server.core.attempts.leases import AttemptRecord
from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.identity import Identity, PilotCredential, Role
from pilotage_server.core.jobs.record import JobRecord, transition_changes
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.operations.attempts.reports import received_from, record_batches, record_singly
from pilotage_server.operations.attempts.transitions import apply_transition
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.attempts import insert_attempts
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_job
from pilotage_server.storage.pilots import count_ended_jobs
from support.virtual_clock import START

THE_QUEUE = QueueId("A", "ce", "q")


def a_user(owner: str = "alice", vo: str = "lhcb", *groups: str) -> Identity:
    """Return the identity of a user."""
    return Identity(owner, vo, groups or ("users",), frozenset({Role.USER}))


def an_operator(owner: str = "olga", vo: str = "lhcb") -> Identity:
    """Return the identity of an operator, who sees all jobs."""
    return Identity(owner, vo, ("ops",), frozenset({Role.OPERATOR}))


def a_pilot_identity(stamp: str = "p1", queue: str = "A/ce/q") -> Identity:
    """Return the identity of a pilot with a credential for a queue."""
    return Identity(f"pilot:{stamp}", "", (), frozenset({Role.PILOT}), PilotCredential(stamp, QueueId.parse(queue)))


def a_description(executable: str = "/bin/true", **fields: Any) -> JobDescription:
    """Return a description of a small job."""
    return JobDescription(executable, **fields)


def a_job(**fields: Any) -> JobRecord:
    """Return the record of a waiting job of alice, with these fields."""
    defaults: dict[str, Any] = {
        "id": 1,
        "template_id": 1,
        "cluster": fields.get("id", 1),
        "process": 0,
        "owner": "alice",
        "vo": "lhcb",
        "group": "users",
        "name": "",
        "state": JobState.WAITING,
        "reason": "",
        "priority": 0,
        "task_queue_id": 1,
        "pool_id": "",
        "attempt": 0,
        "spent_attempts": 0,
        "lease": None,
        "lease_until": None,
        "pilot_stamp": "",
        "queue": None,
        "node": "",
        "slot": "",
        "exit_code": None,
        "signal": None,
        "submitted": START,
        "started": None,
        "ended": None,
    }
    return JobRecord(**(defaults | fields))


def after_transition(job: JobRecord, cause: JobCause, *, reason: str, now: datetime, **decided: Any) -> JobRecord:
    """Return the record after a transition; raises IllegalTransitionError if its state has no such transition."""
    return job.changed(transition_changes(job, cause, reason, now, decided))


def lease_to(database: Database, state: ServerState, job_id: int, stamp: str = "p1") -> JobRecord:
    """Match a waiting job to a pilot, start it, and return its record."""

    def operation(transaction: Transaction) -> JobRecord:
        job = load_job(transaction.session, job_id)
        matched = apply_transition(
            transaction,
            state,
            job,
            JobCause.MATCHED,
            reason="",
            actor="server",
            attempt=job.attempt + 1,
            lease_until=transaction.now + timedelta(minutes=20),
            pilot_stamp=stamp,
            queue=THE_QUEUE,
            node="n1",
            slot="slot1",
        )
        account = Account(job.vo, job.group, job.owner)
        attempt = AttemptRecord(
            job_id,
            matched.attempt,
            stamp,
            THE_QUEUE,
            "n1",
            "slot1",
            1,
            1.0,
            account,
            transaction.now,
            metered=transaction.now,
        )
        insert_attempts(transaction.session, [attempt])
        return apply_transition(
            transaction, state, matched, JobCause.STARTED, reason="", actor=f"pilot:{stamp}", started=transaction.now
        )

    return database.write(operation)


def end(database: Database, state: ServerState, job_id: int, cause: JobCause = JobCause.DONE) -> JobRecord:
    """Record the end of a job's attempt, as its pilot reports it."""

    def operation(transaction: Transaction) -> JobRecord:
        job = load_job(transaction.session, job_id)
        return apply_transition(
            transaction, state, job, cause, reason="", actor=f"pilot:{job.pilot_stamp}", exit_code=0
        )

    return database.write(operation)


def recorded_singly(
    transaction: Transaction, state: ServerState, identity: Identity, reports: Sequence[JobReport]
) -> list[str]:
    """Record reports one by one and return the refusals."""
    ended: Counter[str] = Counter()
    refusals = record_singly(transaction, state, received_from(identity, reports), ended)
    count_ended_jobs(transaction.session, ended)
    return refusals


def recorded_in_batches(
    transaction: Transaction, state: ServerState, identity: Identity, reports: Sequence[JobReport]
) -> set[int]:
    """Record the reports that can be batched and return their positions."""
    ended: Counter[str] = Counter()
    positions = record_batches(transaction, state, received_from(identity, reports), ended)
    count_ended_jobs(transaction.session, ended)
    return positions
