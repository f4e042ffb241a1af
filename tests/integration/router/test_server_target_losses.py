"""What is known of copies at another server whose token, job, folder or output is lost, and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import Unanswered
from pilotage_agents.router.core.model import RoutedJobState, RoutedJobStatus
from pilotage_server.core.identity import Role
from support.copy_targets import a_copy, end_of, submitted, texts_of
from support.process_grid import ProcessGrid, a_process_grid
from support.router_processes import NAME, Remote, a_remote

pytestmark = pytest.mark.process

OTHER = "pilotage-8-1"
NO_SUCH_JOB = f"{NAME} 999999"


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessGrid]:
    with a_process_grid(tmp_path_factory.mktemp("another")) as grid:
        yield grid


@pytest.fixture
async def remote(grid: ProcessGrid, tmp_path: Path) -> AsyncIterator[Remote]:
    async with a_remote(grid, tmp_path) as found:
        yield found


async def the_status(remote: Remote, reference: str) -> RoutedJobStatus:
    return (await remote.target.poll([reference]))[reference]


async def write(path: Path, text: str) -> None:
    await asyncio.to_thread(path.write_text, text)


@pytest.mark.parametrize("now", ["two words", "refused"], ids=["is none", "is refused"])
async def test_one_owner_s_token_that_is_not_good_any_more_spoils_no_other_copy_s_answer(
    remote: Remote, now: str
) -> None:
    mine = remote.copy_of("ann")
    reference, other = await submitted(remote.target, remote.files, mine, a_copy(OTHER, "/bin/true"))
    for name in (NAME, OTHER):
        (remote.of(name) / "job-id").unlink()
    await write(remote.of() / "token", now)
    found = await remote.target.find_again([NAME, OTHER])
    assert isinstance(found[NAME], Unanswered), "it was submitted, and may not be taken for one that was not"
    assert found[OTHER] == other
    statuses = await remote.target.poll([reference, other])
    assert [statuses[each].state for each in (reference, other)] == [RoutedJobState.UNKNOWN, RoutedJobState.IDLE]
    assert "token" in statuses[reference].reason


async def test_routes_token_that_is_refused_says_of_no_copy_that_it_was_not_made(remote: Remote) -> None:
    await write(remote.folder.parent / "token", "refused")
    assert isinstance((await remote.target.find_again([OTHER]))[OTHER], Unanswered)


async def test_where_the_shared_folder_is_away_nothing_is_concluded_and_nothing_is_made(remote: Remote) -> None:
    away = remote.folder.parent / "away"
    target = remote.at(away / "copies")
    with pytest.raises(WorldError, match="is not there"):
        await target.find_again([NAME])
    await target.submit([a_copy(NAME, "/bin/true")], remote.files)
    assert not away.exists()


async def test_a_job_that_the_server_has_no_more_is_gone_for_whom_it_was_made(remote: Remote) -> None:
    await submitted(remote.target, remote.files, remote.copy_of("ann"))
    status = await the_status(remote, NO_SUCH_JOB)
    assert (status.state, status.reason) == (RoutedJobState.GONE, "the server no longer has the job")


async def test_a_job_that_is_not_shown_to_somebody_else_is_not_gone_but_for_whom_all_are_shown(remote: Remote) -> None:
    (reference,) = await submitted(remote.target, remote.files, a_copy(NAME, "/bin/true"))
    routes = remote.folder.parent / "token"
    await write(routes, remote.grid.server.token(owner="another"))
    with capture_logs() as logs:
        hidden = await the_status(remote, reference)
    assert hidden.state is RoutedJobState.UNKNOWN
    assert hidden.reason in [entry.get("reason") for entry in logs]
    assert (await the_status(remote, NO_SUCH_JOB)).state is RoutedJobState.UNKNOWN
    await write(routes, remote.grid.server.token(Role.OPERATOR))
    assert (await the_status(remote, reference)).state is RoutedJobState.IDLE
    assert (await the_status(remote, NO_SUCH_JOB)).state is RoutedJobState.GONE


async def test_a_copy_whose_folder_with_its_owner_s_token_is_elsewhere_is_said_to_be_so(remote: Remote) -> None:
    (reference,) = await submitted(remote.target, remote.files, remote.copy_of("ann"))
    elsewhere = remote.at(remote.folder.parent / "elsewhere")
    with capture_logs() as logs:
        status = (await elsewhere.poll([reference]))[reference]
    assert status.state is RoutedJobState.UNKNOWN
    assert "its folder is not here" in status.reason
    assert "routes give-up" in status.reason
    assert [entry["log_level"] for entry in logs if entry.get("reason") == status.reason] == ["warning"]


async def test_one_job_that_is_not_there_keeps_no_other_from_being_stopped(remote: Remote) -> None:
    (reference,) = await submitted(remote.target, remote.files, a_copy(NAME, "/bin/true"))
    await remote.target.cancel([NO_SUCH_JOB, reference])
    assert (await the_status(remote, reference)).state is RoutedJobState.GONE


async def test_output_that_the_server_has_no_more_is_lost_for_good_and_an_unshown_job_is_asked_for_again(
    remote: Remote,
) -> None:
    (reference,) = await submitted(remote.target, remote.files, a_copy(NAME, "/bin/echo", f"'{remote.origin}'"))
    async with remote.grid.pilot():
        await end_of(remote.target, reference)
    assert (await texts_of(remote.target, reference))["stdout"] == f"{remote.origin}\n"
    (checksum,) = [Path(file.path).name for file in await remote.target.collect(reference) if file.name == "stdout"]
    (remote.of() / "output" / checksum).unlink()
    (stored,) = [path for path in remote.grid.folder.rglob(f"*{checksum}*") if path.is_file()]
    stored.unlink()
    with pytest.raises(WorldError) as lost:
        await remote.target.collect(reference)
    assert not lost.value.transient
    with pytest.raises(WorldError) as unshown:
        await remote.target.collect(NO_SUCH_JOB)
    assert unshown.value.transient
