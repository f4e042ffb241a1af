"""The oracle of recorded reports: each is judged by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from pilotage_server.core.attempts.reports import JobReport
from pilotage_server.core.identity import Identity
from pilotage_server.operations.attempts.reports import received_from, record_batches, record_singly
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.pilots import count_ended_jobs


def recorded_singly(
    transaction: Transaction, state: ServerState, identity: Identity, reports: Sequence[JobReport]
) -> list[str]:
    """Record reports without batches and return the refusals."""
    ended: Counter[str] = Counter()
    refusals = record_singly(transaction, state, received_from(identity, reports), ended)
    count_ended_jobs(transaction.session, ended)
    return refusals


def recorded_in_batches(
    transaction: Transaction, state: ServerState, identity: Identity, reports: Sequence[JobReport]
) -> set[int]:
    """Record the reports that can be batched and return their places."""
    ended: Counter[str] = Counter()
    places = record_batches(transaction, state, received_from(identity, reports), ended)
    count_ended_jobs(transaction.session, ended)
    return places
