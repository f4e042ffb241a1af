"""Routed jobs at another server: tokens, files, status, and lost tokens, jobs, folders or output."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from structlog.testing import capture_logs

from pilotage.errors import WorldError
from pilotage.job_description import JobPolicy
from pilotage.v1 import job_service_pb2
from pilotage_agents.batch_systems.base import NotSubmitted, Submitted, Unanswered
from pilotage_agents.router.core.model import RoutedJobState, RoutedJobStatus
from pilotage_agents.router.ports import RefusedByJob, RouteUnsuitable
from pilotage_agents.router.targets.remote_server import RemoteServer
from pilotage_agents.router.targets.server import RemoteJobFolders, RemoteServerTarget
from pilotage_server.core.identity import Role
from support.process_grid import ProcessGrid, a_process_grid
from support.routed_job_targets import a_copy, end_of, submitted, texts_of
from support.router_processes import NAME, RemoteTarget, a_remote_target

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessGrid]:
    with a_process_grid(tmp_path_factory.mktemp("another")) as grid:
        yield grid


@pytest.fixture
async def remote(grid: ProcessGrid, tmp_path: Path) -> AsyncIterator[RemoteTarget]:
    async with a_remote_target(grid, tmp_path) as remote:
        yield remote


async def test_job_is_submitted_with_the_routes_token_and_its_files(remote: RemoteTarget) -> None:
    script = remote.files.add("run.sh", f"echo {uuid4()}", executable=True)
    data = remote.files.add("data", f"{uuid4()}")
    request = a_copy(
        NAME,
        "run.sh",
        input_files=(script, data),
        environment={"A": "b"},
        request_cpus=2,
        attributes={"Experiment": "atlas"},
        policy=JobPolicy(periodic_hold="NumJobStarts > 3"),
    )
    (reference,) = await submitted(remote.target, remote.files, request)
    assert (remote.job(reference).owner, remote.job(reference).name) == ("router", f"{NAME}-{remote.origin}")
    description = remote.description(reference)
    assert (description.executable, description.request_cpus, dict(description.environment)) == (
        "run.sh",
        2,
        {"A": "b"},
    )
    assert [(file.name, file.checksum, file.executable) for file in description.input_files] == [
        ("run.sh", script.checksum, True),
        ("data", data.checksum, False),
    ]
    assert description.attributes["Experiment"].text == "atlas"
    assert description.policy.periodic_hold == "NumJobStarts > 3"


async def test_job_with_its_owners_token_is_submitted_as_the_owner(
    remote: RemoteTarget,
) -> None:
    secret = remote.files.add("mine.token", remote.grid.server.token(owner="ann"))
    data = remote.files.add("data", "content")
    request = a_copy(
        NAME, "/bin/true", input_files=(secret, data), attributes={"scitokensfile": "/home/ann/mine.token"}
    )
    (reference,) = await submitted(remote.target, remote.files, request)
    assert remote.job(reference).owner == "ann"
    assert [file.name for file in remote.description(reference).input_files] == ["data"]
    token_file = remote.of() / "token"
    assert stat.S_IMODE(token_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(token_file.parent.stat().st_mode) == 0o700
    assert (await remote.target.poll([reference]))[reference].state is RoutedJobState.IDLE
    await remote.target.cancel([reference])
    assert (await remote.target.poll([reference]))[reference].state is RoutedJobState.GONE
    await remote.target.forget([NAME])
    assert not token_file.exists()


async def test_proxy_of_the_route_is_an_input_file_there(remote: RemoteTarget, tmp_path: Path) -> None:
    shared, content = tmp_path / "shared.proxy", f"the route's secret {uuid4()}"
    own = remote.files.add("x509-proxy-of-the-route", f"the job's own {uuid4()}")
    request = a_copy(
        NAME, "/bin/true", shared_proxy=str(shared), input_files=(own,), attributes={"X509UserProxy": own.name}
    )
    (answer,) = await remote.target.submit([request], remote.files)
    assert isinstance(answer, NotSubmitted), "a missing proxy may come back"
    assert str(shared) in answer.reason
    await asyncio.to_thread(shared.write_text, content)
    (reference,) = await submitted(remote.target, remote.files, request)
    description = remote.description(reference)
    assert {name: value.text for name, value in description.attributes.items()} == {"x509userproxy": f"{own.name}_"}
    (proxy,) = (file for file in description.input_files if file.name == f"{own.name}_")
    assert remote.content(reference, proxy.checksum) == content
    assert [path.name for path in remote.of().iterdir() if content.encode() in path.read_bytes()] == []


async def test_malformed_token_is_rejected_without_quoting_it(remote: RemoteTarget) -> None:
    secret = remote.files.add("mine.token", "two words\nand lines")
    request = a_copy(NAME, "/bin/true", input_files=(secret,), attributes={"ScitokensFile": "mine.token"})
    (answer,) = await remote.target.submit([request], remote.files)
    assert isinstance(answer, RefusedByJob)
    assert "token" in answer.reason
    assert "words" not in answer.reason
    assert not remote.of().exists()


async def test_job_without_any_token_is_not_submitted(remote: RemoteTarget) -> None:
    target = remote.at(remote.folder, token="")
    (answer,) = await target.submit([a_copy(NAME, "/bin/true")], remote.files)
    assert isinstance(answer, RouteUnsuitable)
    assert "ScitokensFile" in answer.reason


async def test_job_that_the_server_rejects_affects_no_other(remote: RemoteTarget) -> None:
    bad = a_copy(NAME, "/bin/true", requirements={"Tags": ()})
    answers = await remote.target.submit([bad, a_copy(f"{NAME}1", "/bin/true")], remote.files)
    assert isinstance(answers[0], RefusedByJob)
    assert "Tags" in answers[0].reason
    assert isinstance(answers[1], Submitted)


async def test_held_removed_and_idle_jobs_are_reported(remote: RemoteTarget) -> None:
    held, removed, idle = await submitted(
        remote.target, remote.files, *(a_copy(f"{NAME}{n}", "/bin/true") for n in range(3))
    )
    remote.change(held, job_service_pb2.JOB_CHANGE_HOLD)
    remote.change(removed, job_service_pb2.JOB_CHANGE_REMOVE)
    statuses = await remote.target.poll([held, removed, idle])
    assert [statuses[reference].state for reference in (held, removed, idle)] == [
        RoutedJobState.HELD,
        RoutedJobState.GONE,
        RoutedJobState.IDLE,
    ]
    assert "its owner's wish" in statuses[held].reason


async def test_hidden_job_is_unknown_and_affects_no_other(remote: RemoteTarget) -> None:
    (idle,) = await submitted(remote.target, remote.files, a_copy(NAME, "/bin/true"))
    references = [f"{NAME}8 999998", idle, f"{NAME}9 999999"]
    states = [status.state for status in (await remote.target.poll(references)).values()]
    assert states == [RoutedJobState.UNKNOWN, RoutedJobState.IDLE, RoutedJobState.UNKNOWN]


async def test_invalid_token_leaves_routed_jobs_unknown(remote: RemoteTarget) -> None:
    (reference,) = await submitted(remote.target, remote.files, a_copy(NAME, "/bin/true"))
    (remote.of() / "job-id").unlink()
    await asyncio.to_thread((remote.folder.parent / "token").write_text, "bad")
    assert (await remote.target.poll([reference]))[reference].state is RoutedJobState.UNKNOWN
    (answer,) = await remote.target.submit([a_copy(NAME, "/bin/true")], remote.files)
    assert isinstance(answer, Unanswered), "it may have been submitted before"


async def test_repeated_submission_keeps_the_first_description(remote: RemoteTarget) -> None:
    (reference,) = await submitted(remote.target, remote.files, a_copy(NAME, "/bin/true"))
    (remote.of() / "job-id").unlink()
    changed = a_copy(NAME, "/bin/false")
    assert await submitted(remote.target, remote.files, changed) == [reference]
    (remote.of() / "job-id").unlink()
    assert await remote.target.find_again([NAME]) == {NAME: reference}


async def test_job_without_local_record_is_found_by_name(remote: RemoteTarget, tmp_path: Path) -> None:
    references = await submitted(remote.target, remote.files, *(a_copy(f"{NAME}{n}", "/bin/true") for n in range(2)))
    on_another_host = remote.at(tmp_path / "other")
    found = await on_another_host.find_again([f"{NAME}0", f"{NAME}1", "pilotage-9-9"])
    assert found == dict(zip([f"{NAME}0", f"{NAME}1"], references, strict=True))


async def test_routed_jobs_at_an_unreachable_server_are_unknown(remote: RemoteTarget, tmp_path: Path) -> None:
    (reference,) = await submitted(remote.target, remote.files, a_copy(NAME, "/bin/true"))
    unreachable = RemoteServer(["localhost:1"], None)
    target = RemoteServerTarget(unreachable, RemoteJobFolders(remote.folder, remote.origin), tmp_path / "token")
    assert (await target.poll([reference]))[reference].state is RoutedJobState.UNKNOWN
    await target.cancel([reference])
    (new,) = await target.submit([a_copy(f"{NAME}1", "/bin/true")], remote.files)
    assert isinstance(new, NotSubmitted | Unanswered)
    await unreachable.close()
    assert (await remote.target.poll([reference]))[reference].state is RoutedJobState.IDLE


async def test_routers_of_one_name_keep_their_jobs_apart(remote: RemoteTarget, tmp_path: Path) -> None:
    other = remote.at(tmp_path / "other", origin=f"{remote.origin}2")
    mine = await submitted(remote.target, remote.files, a_copy(NAME, "/bin/true"))
    theirs = await submitted(other, remote.files, a_copy(NAME, "/bin/true"))
    assert mine != theirs


OTHER = "pilotage-8-1"
NO_SUCH_JOB = f"{NAME} 999999"


async def status_of(remote: RemoteTarget, reference: str) -> RoutedJobStatus:
    return (await remote.target.poll([reference]))[reference]


async def write(path: Path, text: str) -> None:
    await asyncio.to_thread(path.write_text, text)


@pytest.mark.parametrize("token", ["two words", "refused"], ids=["malformed", "rejected"])
async def test_invalid_token_of_one_owner_affects_no_other_job(remote: RemoteTarget, token: str) -> None:
    mine = remote.copy_of("ann")
    reference, other = await submitted(remote.target, remote.files, mine, a_copy(OTHER, "/bin/true"))
    for name in (NAME, OTHER):
        (remote.of(name) / "job-id").unlink()
    await write(remote.of() / "token", token)
    found = await remote.target.find_again([NAME, OTHER])
    assert isinstance(found[NAME], Unanswered), "it was submitted before"
    assert found[OTHER] == other
    statuses = await remote.target.poll([reference, other])
    assert [statuses[key].state for key in (reference, other)] == [RoutedJobState.UNKNOWN, RoutedJobState.IDLE]
    assert "token" in statuses[reference].reason


async def test_rejected_route_token_leaves_submissions_unanswered(remote: RemoteTarget) -> None:
    await write(remote.folder.parent / "token", "refused")
    assert isinstance((await remote.target.find_again([OTHER]))[OTHER], Unanswered)


async def test_missing_shared_folder_is_an_error_and_not_created(remote: RemoteTarget) -> None:
    unmounted = remote.folder.parent / "unmounted"
    target = remote.at(unmounted / "copies")
    with pytest.raises(WorldError, match="is not there"):
        await target.find_again([NAME])
    await target.submit([a_copy(NAME, "/bin/true")], remote.files)
    assert not unmounted.exists()


async def test_job_that_the_server_no_longer_has_is_gone(remote: RemoteTarget) -> None:
    await submitted(remote.target, remote.files, remote.copy_of("ann"))
    status = await status_of(remote, NO_SUCH_JOB)
    assert (status.state, status.reason) == (RoutedJobState.GONE, "the server no longer has the job")


async def test_hidden_job_is_gone_only_for_a_token_that_sees_all_jobs(remote: RemoteTarget) -> None:
    (reference,) = await submitted(remote.target, remote.files, a_copy(NAME, "/bin/true"))
    token_file = remote.folder.parent / "token"
    await write(token_file, remote.grid.server.token(owner="another"))
    with capture_logs() as logs:
        hidden = await status_of(remote, reference)
    assert hidden.state is RoutedJobState.UNKNOWN
    assert hidden.reason in [entry.get("reason") for entry in logs]
    assert (await status_of(remote, NO_SUCH_JOB)).state is RoutedJobState.UNKNOWN
    await write(token_file, remote.grid.server.token(Role.OPERATOR))
    assert (await status_of(remote, reference)).state is RoutedJobState.IDLE
    assert (await status_of(remote, NO_SUCH_JOB)).state is RoutedJobState.GONE


async def test_job_with_its_token_on_another_host_is_unknown(remote: RemoteTarget) -> None:
    (reference,) = await submitted(remote.target, remote.files, remote.copy_of("ann"))
    elsewhere = remote.at(remote.folder.parent / "elsewhere")
    with capture_logs() as logs:
        status = (await elsewhere.poll([reference]))[reference]
    assert status.state is RoutedJobState.UNKNOWN
    assert "its folder is not here" in status.reason
    assert "routes give-up" in status.reason
    assert [entry["log_level"] for entry in logs if entry.get("reason") == status.reason] == ["warning"]


async def test_cancel_continues_after_a_missing_job(remote: RemoteTarget) -> None:
    (reference,) = await submitted(remote.target, remote.files, a_copy(NAME, "/bin/true"))
    await remote.target.cancel([NO_SUCH_JOB, reference])
    assert (await status_of(remote, reference)).state is RoutedJobState.GONE


async def test_lost_output_is_a_permanent_error(
    remote: RemoteTarget,
) -> None:
    (reference,) = await submitted(remote.target, remote.files, a_copy(NAME, "/bin/echo", f"'{remote.origin}'"))
    async with remote.grid.pilot():
        await end_of(remote.target, reference)
    assert (await texts_of(remote.target, reference))["stdout"] == f"{remote.origin}\n"
    (checksum,) = [Path(file.path).name for file in await remote.target.collect(reference) if file.name == "stdout"]
    (remote.of() / "output" / checksum).unlink()
    (stored,) = [path for path in remote.grid.folder.rglob(f"*{checksum}*") if path.is_file()]
    stored.unlink()
    with pytest.raises(WorldError) as caught:
        await remote.target.collect(reference)
    assert not caught.value.transient


async def test_output_of_a_hidden_job_is_a_transient_error(remote: RemoteTarget) -> None:
    with pytest.raises(WorldError) as caught:
        await remote.target.collect(NO_SUCH_JOB)
    assert caught.value.transient
