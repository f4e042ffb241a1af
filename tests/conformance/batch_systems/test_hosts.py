"""The contract of all hosts on which a batch system's commands run and its glideins' folders lie."""

from __future__ import annotations

import asyncio
import os
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.hosts import Host, LocalHost, SshHost
from support.sshd import SshServer

TIMEOUT_S = 60


@dataclass
class HostUnderTest:
    """A host under test, and the local folder of a glidein."""

    host: Host
    folder: Path

    async def run(self, *command: str, stdin: bytes = b"") -> str:
        """Run a command on the host, require success, and return its standard output."""
        result = await self.host.run(command, timeout_s=TIMEOUT_S, stdin=stdin)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    def remote_path(self, name: str) -> Path:
        """Return the path of a glidein's file on the host, which is always this machine."""
        return Path(self.host.path_of(self.folder)) / name


WITH_SSH = [pytest.param(host, marks=pytest.mark.process) for host in ("ssh", "ssh with shared folders")]


@pytest.fixture(params=["local", *WITH_SSH])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> HostUnderTest:
    folder = tmp_path / "here" / "ab12"
    folder.mkdir(parents=True, mode=0o700)
    if request.param == "local":
        return HostUnderTest(LocalHost(), folder)
    sshd: SshServer = request.getfixturevalue("sshd")
    remote_folder = None if "shared" in request.param else str(tmp_path / "it's there")
    return HostUnderTest(SshHost(sshd.settings(folder=remote_folder)), folder)


async def test_command_gets_its_arguments_unchanged(target: HostUnderTest) -> None:
    arguments = ["two words", "it's", "$HOME", '"', "*", "a;b|c&d", "", "back\\slash", "-n", "line\nend", "`id`"]
    assert await target.run("printf", "%s\\0", *arguments) == "".join(f"{argument}\0" for argument in arguments)


async def test_command_reads_only_its_stdin(target: HostUnderTest) -> None:
    assert await target.run("cat", stdin=b"script\n") == "script\n"
    assert await target.run("cat") == ""


async def test_failed_command_has_exit_code_and_output(target: HostUnderTest) -> None:
    result = await target.host.run(("sh", "-c", "echo out; echo oops >&2; exit 3"), timeout_s=TIMEOUT_S)
    assert (result.exit_code, result.stdout, result.error_text) == (3, "out\n", "oops")


async def test_command_ended_by_signal_is_a_transient_error(target: HostUnderTest) -> None:
    for killed in ('kill -KILL "$$"', "exit 137"):
        with pytest.raises(WorldError) as caught:
            await target.host.run(("sh", "-c", killed), timeout_s=TIMEOUT_S)
        assert caught.value.transient


async def test_missing_command_has_exit_code_127(target: HostUnderTest) -> None:
    result = await target.host.run(("env", "no-such-program"), timeout_s=TIMEOUT_S)
    assert result.exit_code == 127
    assert "no-such-program" in result.error_text


async def test_command_timeout_is_a_transient_error(target: HostUnderTest) -> None:
    with pytest.raises(WorldError, match=r"no answer within 0\.5 s") as caught:
        await target.host.run(("sleep", "1000"), timeout_s=0.5)
    assert caught.value.transient


async def test_command_gets_no_token_of_the_agent(target: HostUnderTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_TOKEN", "secret")
    assert "secret" not in await target.run("env")


async def test_uploaded_folder_is_private_to_its_owner(target: HostUnderTest) -> None:
    (target.folder / "pilot.json").write_text("{}")
    with os.fdopen(os.open(target.folder / "token", os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.write("secret")
    await target.host.upload([target.folder])
    assert target.remote_path("pilot.json").read_text() == "{}"
    assert target.remote_path("token").read_text() == "secret"
    assert stat.S_IMODE(target.remote_path("token").stat().st_mode) == 0o600
    assert stat.S_IMODE(target.remote_path(".").stat().st_mode) == 0o700


async def test_second_upload_replaces_files(target: HostUnderTest) -> None:
    for text in ("first", "second"):
        (target.folder / "pilot.json").write_text(text)
        await target.host.upload([target.folder])
    assert target.remote_path("pilot.json").read_text() == "second"


async def test_fetches_output_and_removes_remote_folder(
    target: HostUnderTest,
) -> None:
    (target.folder / "token").write_text("secret")
    await target.host.upload([target.folder])
    printed = bytes(range(256)) * 10
    target.remote_path("pilot.log").write_bytes(printed)
    await target.host.fetch_output([target.folder])
    assert (target.folder / "pilot.log").read_bytes() == printed
    assert target.host.path_of(target.folder) == target.folder or not target.remote_path(".").exists()
    assert (target.folder / "token").read_text() == "secret"


async def test_fetching_missing_or_fetched_output_changes_nothing(target: HostUnderTest) -> None:
    await target.host.fetch_output([target.folder])
    await target.host.upload([target.folder])
    target.remote_path("pilot.log").write_text("bye\n")
    for _ in range(2):
        await target.host.fetch_output([target.folder])
    assert (target.folder / "pilot.log").read_text() == "bye\n"


async def test_uploads_and_fetches_many_folders_at_once(target: HostUnderTest) -> None:
    folders = [target.folder.with_name(f"stamp{n}") for n in range(45)]
    for folder in folders:
        folder.mkdir()
    await target.host.upload(folders)
    for folder in folders:
        (Path(target.host.path_of(folder)) / "pilot.log").write_text(folder.name)
    await target.host.fetch_output(folders)
    assert [(folder / "pilot.log").read_text() for folder in folders] == [folder.name for folder in folders]


async def test_accepts_empty_requests(target: HostUnderTest) -> None:
    await target.host.upload([])
    await target.host.fetch_output([])


async def test_commands_run_concurrently(target: HostUnderTest, tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    script = 'touch "$0"; while ! [ -e "$1" ]; do sleep 0.05; done'
    await asyncio.gather(
        target.run("sh", "-c", script, str(one), str(other)),
        target.run("sh", "-c", script, str(other), str(one)),
    )


async def test_upload_of_one_file_leaves_others_unchanged(target: HostUnderTest) -> None:
    for name in ("token", "other"):
        (target.folder / name).write_text("old")
    await target.host.upload([target.folder])
    is_remote = target.remote_path("other") != target.folder / "other"
    for name in ("token", "other"):
        (target.folder / name).write_text("new")
    await target.host.upload([target.folder], "token")
    assert target.remote_path("token").read_text() == "new"
    assert target.remote_path("other").read_text() == ("old" if is_remote else "new")
