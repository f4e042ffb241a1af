"""A host over ssh as it fails: away, a stranger, without room; and what it never is told."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
from pathlib import Path, PurePosixPath

import pytest

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.hosts import SshHost, replace_command, run_command
from support.sshd import SshServer

PATIENCE_S = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "ab12"
    found.mkdir()
    return found


async def complaint_of(place: SshHost) -> str:
    """Return why a command was not answered, which may be otherwise the next time."""
    with pytest.raises(WorldError) as caught:
        await place.run(("true",), timeout_s=PATIENCE_S)
    assert caught.value.transient
    return str(caught.value)


async def test_a_host_that_is_away_has_not_answered_and_may_be_back(sshd: SshServer, folder: Path) -> None:
    place = SshHost(sshd.settings(folder="/tmp/never"))
    sshd.stop()
    try:
        assert "Connection refused" in await complaint_of(place)
        for each in (place.upload, place.fetch_output):
            with pytest.raises(WorldError, match="Connection refused"):
                await each([folder])
    finally:
        sshd.start()
    assert (await place.run(("true",), timeout_s=PATIENCE_S)).exit_code == 0


async def test_a_host_whose_key_is_not_known_is_never_taken_for_good(sshd: SshServer, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    options = ("-F/dev/null", f"-oUserKnownHostsFile={known}", "-oStrictHostKeyChecking=no")
    assert "Host key verification failed" in await complaint_of(SshHost(sshd.settings(options=options)))
    assert not known.exists()


async def test_a_host_with_another_key_than_before_is_refused(sshd: SshServer, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text(f"[127.0.0.1]:{sshd.port} {(sshd.folder / 'other_key.pub').read_text()}")
    options = ("-F/dev/null", f"-oUserKnownHostsFile={known}")
    assert "Host key verification failed" in await complaint_of(SshHost(sshd.settings(options=options)))


async def test_a_host_that_does_not_let_us_in_asks_nobody_for_a_password(sshd: SshServer) -> None:
    place = SshHost(sshd.settings(identity_file=str(sshd.folder / "other_key")))
    assert "Permission denied" in await complaint_of(place)


async def test_an_answer_of_ssh_itself_is_none_of_the_command(sshd: SshServer) -> None:
    with pytest.raises(WorldError, match="exit code 255"):
        await SshHost(sshd.settings()).run(("sh", "-c", "exit 255"), timeout_s=PATIENCE_S)


async def test_an_ssh_that_is_not_installed_is_no_passing_trouble(
    sshd: SshServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(WorldError, match="ssh: No such file") as caught:
        await SshHost(sshd.settings()).run(("true",), timeout_s=PATIENCE_S)
    assert not caught.value.transient


async def test_files_that_have_no_place_there_are_a_failure_that_names_it(
    sshd: SshServer, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorldError, match=f"127.0.0.1: mkdir: .*{tmp_path}/file"):
        await SshHost(sshd.settings(folder=f"{tmp_path}/file")).upload([folder])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
async def test_secrets_go_into_no_folder_of_somebody_else(sshd: SshServer, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "glideins").mkdir()
    os.chown(tmp_path / "glideins", 65534, 65534)
    with pytest.raises(WorldError, match="glideins belongs to another user"):
        await SshHost(sshd.settings(folder=str(tmp_path))).upload([folder])
    assert not list((tmp_path / "glideins").iterdir())


async def test_the_directors_own_folder_is_never_removed_even_where_it_is_named_as_that_there(
    sshd: SshServer, folder: Path
) -> None:
    place = SshHost(sshd.settings(folder=str(folder.parent)))
    (folder / "glidein.json").write_text("record")
    await place.upload([folder])
    await place.fetch_output([folder])
    assert (folder / "glidein.json").read_text() == "record"


async def test_only_the_end_of_a_long_log_comes_back(sshd: SshServer, folder: Path, tmp_path: Path) -> None:
    place = SshHost(sshd.settings(folder=str(tmp_path / "there")))
    await place.upload([folder])
    log = Path(place.path_of(folder)) / "pilot.log"
    log.write_bytes(b"a" * 1000 + b"b" * (1 << 20))
    await place.fetch_output([folder])
    assert (folder / "pilot.log").read_bytes() == b"b" * (1 << 20)


async def test_a_file_that_lies_in_many_folders_goes_once(sshd: SshServer, tmp_path: Path) -> None:
    folders = [tmp_path / f"stamp{n}" for n in range(3)]
    for each in folders:
        each.mkdir()
    (folders[0] / "bundle").write_bytes(b"x" * 1000)
    for each in folders[1:]:
        (each / "bundle").hardlink_to(folders[0] / "bundle")
    place = SshHost(sshd.settings(folder=str(tmp_path / "there")))
    await place.upload(folders)
    files = {os.stat(Path(place.path_of(each)) / "bundle").st_ino for each in folders}
    assert len(files) == 1


async def test_a_file_that_comes_in_part_leaves_the_old_one_in_its_place(
    sshd: SshServer, folder: Path, tmp_path: Path
) -> None:
    place = SshHost(sshd.settings(folder=str(tmp_path / "there")))
    token = Path(place.path_of(folder)) / "token"
    (folder / "token").write_text("old")
    await place.upload([folder])
    (folder / "token").write_text("new" * 100_000)
    memory = io.BytesIO()
    with tarfile.open(fileobj=memory, mode="w") as archive:
        archive.add(folder / "token", f"{folder.name}/token")
    command = replace_command(PurePosixPath(token.parent.parent), "token", [folder.name])
    answer = await place.run(command, timeout_s=PATIENCE_S, stdin=memory.getvalue()[:100_000])
    assert (answer.exit_code, token.read_text()) == (1, "old")
    await place.upload([folder], "token")
    assert token.read_text() == "new" * 100_000
    assert [each.name for each in token.parent.iterdir()] == ["token"]
    assert [each.name for each in token.parent.parent.iterdir()] == [folder.name]


async def test_of_files_of_which_some_do_not_come_none_is_replaced_by_what_came_before(
    sshd: SshServer, folder: Path, tmp_path: Path
) -> None:
    place = SshHost(sshd.settings(folder=str(tmp_path / "there")))
    (folder / "token").write_text("old")
    await place.upload([folder])
    token = Path(place.path_of(folder)) / "token"
    broken = token.parent.parent / ".new.broken"
    (broken / folder.name).mkdir(parents=True)
    (broken / folder.name / "token").write_text("half of")
    os.utime(broken, (0, 0))
    nothing = io.BytesIO()
    tarfile.open(fileobj=nothing, mode="w").close()
    command = replace_command(PurePosixPath(token.parent.parent), "token", [folder.name])
    answer = await place.run(command, timeout_s=PATIENCE_S, stdin=nothing.getvalue())
    assert (answer.exit_code, token.read_text()) == (1, "old")
    assert [each.name for each in token.parent.parent.iterdir()] == [folder.name]


async def test_a_folder_that_somebody_has_removed_there_keeps_no_file_from_the_others(
    sshd: SshServer, folder: Path, tmp_path: Path
) -> None:
    place = SshHost(sshd.settings(folder=str(tmp_path / "there")))
    other = folder.with_name("cd34")
    other.mkdir()
    for each in (folder, other):
        (each / "token").write_text("old")
    await place.upload([folder, other])
    tokens = [Path(place.path_of(each)) / "token" for each in (folder, other)]
    shutil.rmtree(tokens[0].parent)
    (other / "token").write_text("new")
    await place.upload([folder, other], "token")
    assert [token.read_text() for token in tokens] == ["old", "new"]


async def test_a_log_that_finds_no_room_here_stays_there(sshd: SshServer, folder: Path, tmp_path: Path) -> None:
    place = SshHost(sshd.settings(folder=str(tmp_path / "there")))
    await place.upload([folder])
    log = Path(place.path_of(folder)) / "pilot.log"
    log.write_text("bye\n")
    (folder / "pilot.log").mkdir()
    with pytest.raises(WorldError, match="Is a directory"):
        await place.fetch_output([folder])
    assert log.read_text() == "bye\n"


async def test_a_connection_that_is_shared_by_the_users_own_configuration_serves_later_commands(
    sshd: SshServer, tmp_path: Path
) -> None:
    control = tmp_path / "control"
    options = (*sshd.settings().options, "-oControlMaster=auto", "-oControlPersist=60", f"-oControlPath={control}")
    place = SshHost(sshd.settings(options=options))
    try:
        for _ in range(2):
            assert (await place.run(("echo", "here"), timeout_s=PATIENCE_S)).stdout == "here\n"
        assert control.is_socket()
    finally:
        await run_command(("ssh", "-Oexit", f"-oControlPath={control}", "any"), timeout_s=PATIENCE_S)
