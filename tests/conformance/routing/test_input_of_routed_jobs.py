"""Input files of routed jobs: only the router that holds a job may fetch them, while it is the leader."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.errors import LeadershipLostError, NotFoundError
from pilotage.job_description import InputFile
from pilotage_server.core.identity import Identity, Role
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.operations.jobs.files import check_download, record_upload
from pilotage_server.storage.blobs.folder import FolderStore
from pilotage_server.storage.database.engine import Database
from support.grid import Grid
from support.jobs import a_user
from support.routers import AN_AGENT, Router, router
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

__all__ = ["router"]


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    return Grid(database, clock)


@pytest.fixture
def checksum(grid: Grid, tmp_path: Path) -> str:
    """Return the checksum of a file that a user has uploaded."""
    store = FolderStore(tmp_path, 10**6)
    checksum = store.put(b"data")
    grid.database.write(lambda transaction: record_upload(transaction, a_user(), checksum, 4))
    return checksum


def may_fetch(router: Router, job_id: int, checksum: str, identity: Identity = AN_AGENT) -> bool:
    try:
        router.grid.read(lambda transaction, _: check_download(transaction, identity, job_id, checksum, router.turn))
    except NotFoundError:
        return False
    return True


def a_job_with(grid: Grid, checksum: str) -> int:
    (job_id,) = grid.submit(input_files=(InputFile("in", checksum=checksum),))
    return job_id


def test_router_fetches_input_while_it_holds_the_job(grid: Grid, router: Router, checksum: str) -> None:
    job_id = a_job_with(grid, checksum)
    assert not may_fetch(router, job_id, checksum)
    router.take(job_id)
    assert may_fetch(router, job_id, checksum)
    assert not may_fetch(router, job_id, "0" * 64)
    grid.change(JobChange.RESCHEDULE, job_id)
    assert not may_fetch(router, job_id, checksum)


def test_other_router_cannot_fetch_input(grid: Grid, router: Router, checksum: str) -> None:
    job_id = a_job_with(grid, checksum)
    router.take(job_id)
    assert not may_fetch(Router(grid, "job router of another").begin(), job_id, checksum)


def test_router_without_leadership_cannot_fetch_input(grid: Grid, router: Router, checksum: str) -> None:
    job_id = a_job_with(grid, checksum)
    router.take(job_id)
    with pytest.raises(LeadershipLostError):
        may_fetch(Router(grid, holder="two"), job_id, checksum)
    router.stop()
    with pytest.raises(LeadershipLostError):
        may_fetch(router, job_id, checksum)


def test_agent_without_leadership_key_cannot_fetch_input(grid: Grid, router: Router, checksum: str) -> None:
    job_id = a_job_with(grid, checksum)
    router.take(job_id)
    with pytest.raises(NotFoundError):
        grid.read(lambda transaction, _: check_download(transaction, AN_AGENT, job_id, checksum))


def test_leadership_key_gives_users_no_access(grid: Grid, router: Router, checksum: str) -> None:
    job_id = a_job_with(grid, checksum)
    router.take(job_id)
    bob = Identity("bob", "lhcb", ("users",), frozenset({Role.USER}))
    assert not may_fetch(router, job_id, checksum, bob)
