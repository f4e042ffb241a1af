"""Copies that go to another server: in whose name, with which files, and what its silence means."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from pilotage.job_description import JobPolicy
from pilotage.v1 import job_service_pb2
from pilotage_agents.batch_systems.base import NotSubmitted, Submitted, Unanswered
from pilotage_agents.router.core.model import RoutedJobState
from pilotage_agents.router.places.remote_server import RemoteServer
from pilotage_agents.router.places.server import RemoteJobFolders, RemoteServerTarget
from pilotage_agents.router.ports import RefusedByJob, RouteUnsuitable
from support.copy_targets import a_copy, submitted
from support.process_grid import ProcessGrid, a_process_grid
from support.router_processes import NAME, Remote, a_remote

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessGrid]:
    with a_process_grid(tmp_path_factory.mktemp("another")) as grid:
        yield grid


@pytest.fixture
async def remote(grid: ProcessGrid, tmp_path: Path) -> AsyncIterator[Remote]:
    async with a_remote(grid, tmp_path) as found:
        yield found


async def test_a_copy_goes_in_the_name_of_the_routes_with_its_files(remote: Remote) -> None:
    script = remote.files.add("run.sh", f"echo {uuid4()}", executable=True)
    data = remote.files.add("data", f"{uuid4()}")
    copy = a_copy(
        NAME,
        "run.sh",
        input_files=(script, data),
        environment={"A": "b"},
        request_cpus=2,
        attributes={"Experiment": "atlas"},
        policy=JobPolicy(periodic_hold="NumJobStarts > 3"),
    )
    (reference,) = await submitted(remote.target, remote.files, copy)
    assert (remote.job(reference).owner, remote.job(reference).name) == ("router", f"{NAME}-{remote.origin}")
    there = remote.description(reference)
    assert (there.executable, there.request_cpus, dict(there.environment)) == ("run.sh", 2, {"A": "b"})
    assert [(file.name, file.checksum, file.executable) for file in there.input_files] == [
        ("run.sh", script.checksum, True),
        ("data", data.checksum, False),
    ]
    assert there.attributes["Experiment"].text == "atlas"
    assert there.policy.periodic_hold == "NumJobStarts > 3"


async def test_a_job_that_brings_its_owners_token_goes_in_his_name_and_the_token_does_not_go_on(
    remote: Remote,
) -> None:
    secret = remote.files.add("mine.token", remote.grid.server.token(owner="ann"))
    data = remote.files.add("data", "content")
    copy = a_copy(NAME, "/bin/true", input_files=(secret, data), attributes={"scitokensfile": "/home/ann/mine.token"})
    (reference,) = await submitted(remote.target, remote.files, copy)
    assert remote.job(reference).owner == "ann"
    assert [file.name for file in remote.description(reference).input_files] == ["data"]
    kept = remote.of() / "token"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
    assert (await remote.target.poll([reference]))[reference].state is RoutedJobState.IDLE
    await remote.target.cancel([reference])
    assert (await remote.target.poll([reference]))[reference].state is RoutedJobState.GONE
    await remote.target.forget([NAME])
    assert not kept.exists()


async def test_what_is_no_token_is_refused_without_a_word_of_it(remote: Remote) -> None:
    secret = remote.files.add("mine.token", "two words\nand lines")
    copy = a_copy(NAME, "/bin/true", input_files=(secret,), attributes={"ScitokensFile": "mine.token"})
    (answer,) = await remote.target.submit([copy], remote.files)
    assert isinstance(answer, RefusedByJob)
    assert "token" in answer.reason
    assert "words" not in answer.reason
    assert not remote.of().exists()


async def test_without_any_token_no_copy_goes(remote: Remote) -> None:
    target = remote.at(remote.folder, token="")
    (answer,) = await target.submit([a_copy(NAME, "/bin/true")], remote.files)
    assert isinstance(answer, RouteUnsuitable)
    assert "ScitokensFile" in answer.reason


async def test_what_the_server_refuses_is_said_and_its_neighbours_go(remote: Remote) -> None:
    bad = a_copy(NAME, "/bin/true", requirements={"Tags": ()})
    answers = await remote.target.submit([bad, a_copy(f"{NAME}1", "/bin/true")], remote.files)
    assert isinstance(answers[0], RefusedByJob)
    assert "Tags" in answers[0].reason
    assert isinstance(answers[1], Submitted)


async def test_a_copy_that_is_held_removed_or_waits_there_is_told_as_that(remote: Remote) -> None:
    held, gone, idle = await submitted(
        remote.target, remote.files, *(a_copy(f"{NAME}{n}", "/bin/true") for n in range(3))
    )
    remote.change(held, job_service_pb2.JOB_CHANGE_HOLD)
    remote.change(gone, job_service_pb2.JOB_CHANGE_REMOVE)
    statuses = await remote.target.poll([held, gone, idle])
    assert [statuses[each].state for each in (held, gone, idle)] == [
        RoutedJobState.HELD,
        RoutedJobState.GONE,
        RoutedJobState.IDLE,
    ]
    assert "its owner's wish" in statuses[held].reason


async def test_a_job_that_the_server_does_not_show_is_unknown_and_spoils_no_other_answer(remote: Remote) -> None:
    (idle,) = await submitted(remote.target, remote.files, a_copy(NAME, "/bin/true"))
    asked = [f"{NAME}8 999998", idle, f"{NAME}9 999999"]
    states = [status.state for status in (await remote.target.poll(asked)).values()]
    assert states == [RoutedJobState.UNKNOWN, RoutedJobState.IDLE, RoutedJobState.UNKNOWN]


async def test_a_token_that_is_no_longer_good_makes_no_copy_gone_and_doubles_none(remote: Remote) -> None:
    (reference,) = await submitted(remote.target, remote.files, a_copy(NAME, "/bin/true"))
    (remote.of() / "job-id").unlink()
    await asyncio.to_thread((remote.folder.parent / "token").write_text, "bad")
    assert (await remote.target.poll([reference]))[reference].state is RoutedJobState.UNKNOWN
    (answer,) = await remote.target.submit([a_copy(NAME, "/bin/true")], remote.files)
    assert isinstance(answer, Unanswered), "it may have been submitted before, as it was"


async def test_a_copy_is_asked_for_again_as_it_was_whatever_the_table_says_now(remote: Remote) -> None:
    (reference,) = await submitted(remote.target, remote.files, a_copy(NAME, "/bin/true"))
    (remote.of() / "job-id").unlink()
    changed = a_copy(NAME, "/bin/false")
    assert await submitted(remote.target, remote.files, changed) == [reference]
    (remote.of() / "job-id").unlink()
    assert await remote.target.find_again([NAME]) == {NAME: reference}


async def test_a_copy_of_which_nothing_is_kept_is_found_by_its_name(remote: Remote, tmp_path: Path) -> None:
    references = await submitted(remote.target, remote.files, *(a_copy(f"{NAME}{n}", "/bin/true") for n in range(2)))
    on_another_host = remote.at(tmp_path / "other")
    found = await on_another_host.find_again([f"{NAME}0", f"{NAME}1", "pilotage-9-9"])
    assert found == dict(zip([f"{NAME}0", f"{NAME}1"], references, strict=True))


async def test_a_server_that_is_not_there_says_nothing_of_its_copies(remote: Remote, tmp_path: Path) -> None:
    (reference,) = await submitted(remote.target, remote.files, a_copy(NAME, "/bin/true"))
    nobody = RemoteServer(["localhost:1"], None)
    target = RemoteServerTarget(nobody, RemoteJobFolders(remote.folder, remote.origin), tmp_path / "token")
    assert (await target.poll([reference]))[reference].state is RoutedJobState.UNKNOWN
    await target.cancel([reference])
    (new,) = await target.submit([a_copy(f"{NAME}1", "/bin/true")], remote.files)
    assert isinstance(new, NotSubmitted | Unanswered)
    await nobody.close()
    assert (await remote.target.poll([reference]))[reference].state is RoutedJobState.IDLE


async def test_two_routers_of_one_name_there_do_not_take_each_others_copies(remote: Remote, tmp_path: Path) -> None:
    other = remote.at(tmp_path / "other", origin=f"{remote.origin}2")
    mine = await submitted(remote.target, remote.files, a_copy(NAME, "/bin/true"))
    theirs = await submitted(other, remote.files, a_copy(NAME, "/bin/true"))
    assert mine != theirs
