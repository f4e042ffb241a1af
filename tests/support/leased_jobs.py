"""Jobs in the hands of a pilot, brought there by the steps that a match takes."""

from __future__ import annotations

from datetime import timedelta

from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage_server.core.attempts.leases import AttemptRecord
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.operations.attempts.transitions import apply_transition
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.attempts import insert_attempts
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_job

THE_QUEUE = QueueId("A", "ce", "q")


def lease_to(database: Database, state: ServerState, job_id: int, stamp: str = "p1") -> JobRecord:
    """Give a waiting job to a pilot, let it start, and return its record."""

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
    """Let the job's attempt end, as its pilot reports it."""

    def operation(transaction: Transaction) -> JobRecord:
        job = load_job(transaction.session, job_id)
        return apply_transition(
            transaction, state, job, cause, reason="", actor=f"pilot:{job.pilot_stamp}", exit_code=0
        )

    return database.write(operation)
