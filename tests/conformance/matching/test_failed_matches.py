"""A match whose transaction fails has not happened, in the database or in memory."""

from __future__ import annotations

import pytest
from sqlalchemy import text

from pilotage.errors import WorldError
from pilotage_server.operations.matching.bind import SlotRequest, bind_jobs
from pilotage_server.operations.matching.general_match import RequestingPilot
from pilotage_server.operations.matching.offers import read_offers
from pilotage_server.operations.matching.work import WorkRequest
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from support.grid import Grid, Pilot, a_slot, request_jobs
from support.virtual_clock import VirtualClock


def charged(grid: Grid, job_id: int) -> float:
    """Return the weighted cores that the job's account is charged for at present."""
    task_queue = grid.state.waiting.task_queue(grid.job(job_id).task_queue_id)
    assert task_queue is not None
    return grid.state.shares.use(task_queue.account, grid.clock()).cores


def test_jobs_of_a_match_that_is_not_committed_wait_again(database: Database, clock: VirtualClock) -> None:
    grid = Grid(database, clock)
    ids = grid.submit(count=3)
    pilot = grid.start_pilot()

    def match_and_fail(transaction: Transaction, state: ServerState) -> None:
        answer = request_jobs(transaction, state, pilot.identity, WorkRequest((a_slot("a"), a_slot("b"))))
        assert [match.job_id for match in answer.matches] == ids[:2]
        raise LookupError("after the match")

    with pytest.raises(LookupError):
        grid.write(match_and_fail)
    assert charged(grid, ids[0]) == 0
    assert pilot.claim(*(a_slot(f"s{number}") for number in range(4))) == ids


def test_jobs_that_were_chosen_when_the_connection_broke_wait_again(
    postgresql_database: Database, clock: VirtualClock
) -> None:
    grid = Grid(postgresql_database, clock)
    ids = grid.submit(count=3)
    pilot = grid.start_pilot()
    with pytest.raises(WorldError):
        grid.write(
            lambda transaction, state: _bind_over_a_broken_connection(transaction, state, pilot, postgresql_database)
        )
    assert charged(grid, ids[0]) == 0
    assert pilot.claim(*(a_slot(f"s{number}") for number in range(4))) == ids


def _bind_over_a_broken_connection(
    transaction: Transaction, state: ServerState, pilot: Pilot, database: Database
) -> None:
    credential = pilot.identity.pilot
    assert credential is not None
    mine = transaction.session.execute(text("SELECT pg_backend_pid()")).scalar_one()
    with database.engine.connect() as other:
        other.execute(text("SELECT pg_terminate_backend(:mine, 10000)"), {"mine": mine})
    offers = read_offers(state, credential.queue, [a_slot("a"), a_slot("b")])
    bind_jobs(transaction, state, [SlotRequest(RequestingPilot(credential, "node1"), offers)])
