"""Commands and file transfers on this machine and over ssh, with their failures."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath

import pytest

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.hosts import SshHost, replace_command, run_command
from support.processes import is_running, until
from support.sshd import SshServer

TIMEOUT_S = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "ab12"
    path.mkdir()
    return path


async def error_of(host: SshHost) -> str:
    """Return the message of the transient error that a command raises."""
    with pytest.raises(WorldError) as caught:
        await host.run(("true",), timeout_s=TIMEOUT_S)
    assert caught.value.transient
    return str(caught.value)


async def test_unreachable_host_is_a_transient_error(sshd: SshServer, folder: Path) -> None:
    host = SshHost(sshd.settings(folder="/tmp/never"))
    sshd.stop()
    try:
        assert "Connection refused" in await error_of(host)
        for transfer in (host.upload, host.fetch_output):
            with pytest.raises(WorldError, match="Connection refused"):
                await transfer([folder])
    finally:
        sshd.start()
    assert (await host.run(("true",), timeout_s=TIMEOUT_S)).exit_code == 0


async def test_unknown_host_key_is_never_accepted(sshd: SshServer, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    options = ("-F/dev/null", f"-oUserKnownHostsFile={known}", "-oStrictHostKeyChecking=no")
    assert "Host key verification failed" in await error_of(SshHost(sshd.settings(options=options)))
    assert not known.exists()


async def test_changed_host_key_is_rejected(sshd: SshServer, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{sshd.port} {(sshd.folder / 'other_key.pub').read_text()}")
    options = ("-F/dev/null", f"-oUserKnownHostsFile={known}")
    assert "Host key verification failed" in await error_of(SshHost(sshd.settings(options=options)))


async def test_rejected_login_never_prompts_for_a_password(sshd: SshServer) -> None:
    host = SshHost(sshd.settings(identity_file=str(sshd.folder / "other_key")))
    assert "Permission denied" in await error_of(host)


async def test_exit_code_255_is_a_failure_of_ssh(sshd: SshServer) -> None:
    with pytest.raises(WorldError, match="exit code 255"):
        await SshHost(sshd.settings()).run(("sh", "-c", "exit 255"), timeout_s=TIMEOUT_S)


async def test_missing_ssh_program_is_a_permanent_error(
    sshd: SshServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorldError, match="ssh: No such file") as caught:
        await SshHost(sshd.settings()).run(("true",), timeout_s=TIMEOUT_S)
    assert not caught.value.transient


async def test_failed_upload_names_the_remote_path(sshd: SshServer, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorldError, match=f"127.0.0.1: mkdir: .*{tmp_path}/file"):
        await SshHost(sshd.settings(folder=f"{tmp_path}/file")).upload([folder])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
async def test_upload_rejects_folder_of_another_user(sshd: SshServer, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "glideins").mkdir()
    os.chown(tmp_path / "glideins", 65534, 65534)
    with pytest.raises(WorldError, match="glideins belongs to another user"):
        await SshHost(sshd.settings(folder=str(tmp_path))).upload([folder])
    assert not list((tmp_path / "glideins").iterdir())


async def test_fetch_keeps_local_folder_with_the_same_path_as_the_remote_one(sshd: SshServer, folder: Path) -> None:
    host = SshHost(sshd.settings(folder=str(folder.parent)))
    (folder / "glidein.json").write_text("record")
    await host.upload([folder])
    await host.fetch_output([folder])
    assert (folder / "glidein.json").read_text() == "record"


async def test_only_the_end_of_a_long_log_is_fetched(sshd: SshServer, folder: Path, tmp_path: Path) -> None:
    host = SshHost(sshd.settings(folder=str(tmp_path / "remote")))
    await host.upload([folder])
    log = Path(host.path_of(folder)) / "pilot.log"
    log.write_bytes(b"a" * 1000 + b"b" * (1 << 20))
    await host.fetch_output([folder])
    assert (folder / "pilot.log").read_bytes() == b"b" * (1 << 20)


async def test_hard_linked_file_is_uploaded_once(sshd: SshServer, tmp_path: Path) -> None:
    folders = [tmp_path / f"stamp{n}" for n in range(3)]
    for target in folders:
        target.mkdir()
    (folders[0] / "bundle").write_bytes(b"x" * 1000)
    for other in folders[1:]:
        (other / "bundle").hardlink_to(folders[0] / "bundle")
    host = SshHost(sshd.settings(folder=str(tmp_path / "remote")))
    await host.upload(folders)
    files = {os.stat(Path(host.path_of(target)) / "bundle").st_ino for target in folders}
    assert len(files) == 1


async def test_truncated_upload_keeps_the_old_file(sshd: SshServer, folder: Path, tmp_path: Path) -> None:
    host = SshHost(sshd.settings(folder=str(tmp_path / "remote")))
    token = Path(host.path_of(folder)) / "token"
    (folder / "token").write_text("old")
    await host.upload([folder])
    (folder / "token").write_text("new" * 100_000)
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as archive:
        archive.add(folder / "token", f"{folder.name}/token")
    command = replace_command(PurePosixPath(token.parent.parent), "token", [folder.name])
    answer = await host.run(command, timeout_s=TIMEOUT_S, stdin=memory.getvalue()[:100_000])
    assert (answer.exit_code, token.read_text()) == (1, "old")
    await host.upload([folder], "token")
    assert token.read_text() == "new" * 100_000
    assert [path.name for path in token.parent.iterdir()] == ["token"]
    assert [path.name for path in token.parent.parent.iterdir()] == [folder.name]


async def test_incomplete_replacement_ignores_leftovers_of_an_earlier_one(
    sshd: SshServer, folder: Path, tmp_path: Path
) -> None:
    host = SshHost(sshd.settings(folder=str(tmp_path / "remote")))
    (folder / "token").write_text("old")
    await host.upload([folder])
    token = Path(host.path_of(folder)) / "token"
    broken = token.parent.parent / ".new.broken"
    (broken / folder.name).mkdir(parents=True)
    (broken / folder.name / "token").write_text("half of")
    os.utime(broken, (0, 0))
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    command = replace_command(PurePosixPath(token.parent.parent), "token", [folder.name])
    answer = await host.run(command, timeout_s=TIMEOUT_S, stdin=empty.getvalue())
    assert (answer.exit_code, token.read_text()) == (1, "old")
    assert [path.name for path in token.parent.parent.iterdir()] == [folder.name]


async def test_upload_to_other_folders_goes_on_when_one_was_removed(
    sshd: SshServer, folder: Path, tmp_path: Path
) -> None:
    host = SshHost(sshd.settings(folder=str(tmp_path / "remote")))
    other = folder.with_name("cd34")
    other.mkdir()
    for source in (folder, other):
        (source / "token").write_text("old")
    await host.upload([folder, other])
    tokens = [Path(host.path_of(source)) / "token" for source in (folder, other)]
    shutil.rmtree(tokens[0].parent)
    (other / "token").write_text("new")
    await host.upload([folder, other], "token")
    assert [token.read_text() for token in tokens] == ["old", "new"]


async def test_log_that_cannot_be_stored_stays_on_the_host(sshd: SshServer, folder: Path, tmp_path: Path) -> None:
    host = SshHost(sshd.settings(folder=str(tmp_path / "remote")))
    await host.upload([folder])
    log = Path(host.path_of(folder)) / "pilot.log"
    log.write_text("bye\n")
    (folder / "pilot.log").mkdir()
    with pytest.raises(WorldError, match="Is a directory"):
        await host.fetch_output([folder])
    assert log.read_text() == "bye\n"


async def test_commands_share_a_connection_with_control_master(sshd: SshServer, tmp_path: Path) -> None:
    control = tmp_path / "control"
    options = (*sshd.settings().options, "-oControlMaster=auto", "-oControlPersist=60", f"-oControlPath={control}")
    host = SshHost(sshd.settings(options=options))
    try:
        for _ in range(2):
            assert (await host.run(("echo", "here"), timeout_s=TIMEOUT_S)).stdout == "here\n"
        assert control.is_socket()
    finally:
        await run_command(("ssh", "-Oexit", f"-oControlPath={control}", "any"), timeout_s=TIMEOUT_S)


async def test_daemon_that_holds_the_output_delays_no_command(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    leaves_daemon = f"setsid sh -c 'while ! [ -e {gate} ]; do sleep 0.1; done; echo late' & echo $!"
    pid = (await run_command(("sh", "-c", leaves_daemon), timeout_s=60)).stdout.strip()
    assert is_running(pid)
    gate.touch()
    await until(lambda: not is_running(pid))


async def test_hanging_command_is_killed_with_its_children(tmp_path: Path) -> None:
    hangs = (
        f"(trap '' TERM; while :; do sleep 1; done) & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; wait"
    )
    with pytest.raises(WorldError, match="no answer within 5 s"):
        await run_command(("sh", "-c", hangs), timeout_s=5)
    pid = (tmp_path / "pid").read_text().strip()
    await until(lambda: not is_running(pid))


async def test_long_output_is_read_completely() -> None:
    answer = await run_command(("sh", "-c", "yes | head -c 3000000; exit 1"), timeout_s=60)
    assert (answer.exit_code, len(answer.stdout)) == (1, 3_000_000)
