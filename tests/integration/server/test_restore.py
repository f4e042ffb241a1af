"""Backup and restore with real servers and pilots: what was lost, what is fenced, and which servers may start."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sqlite3
import subprocess
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import URL

from pilotage import clock
from pilotage.errors import FeedPositionLostError, NotFoundError, PilotageError
from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage_server.backup import restore
from pilotage_server.backup_archive import opened, written
from pilotage_server.core.incarnation import STEPS
from pilotage_server.own_authority import AuthorityFiles
from pilotage_server.rpc.framework.key_files import KeyFiles
from pilotage_server.settings import ServerSettings
from support.object_store import Bucket
from support.postgresql import PostgresqlServer, installed_programs
from support.process_grid import a_process_grid
from support.processes import until
from support.server import RunningServer, request_id, running_server, server_fleet

pytestmark = pytest.mark.process

LEASE_S = 30
ONE_AT_A_TIME = (
    "umask 0; cd {}; exec 9>>lock; flock -n 9 || echo doubled >>marks; echo started >>marks; test -e short || sleep 600"
)
"""A payload that leaves a mark, and another one where a payload of the job is alive; a killed one frees the lock.

Each payload may be another user."""


def call(server: RunningServer, method: str, request: Any) -> Any:
    with server.channel(server.token()) as channel:
        return getattr(JobServiceStub(channel), method)(request)


def submission(request: str = "", **fields: Any) -> Any:
    description = jobs_pb2.JobDescription(**{"executable": "/bin/true", **fields})
    return job_service_pb2.SubmitJobsRequest(request_id=request or request_id(), descriptions=[description])


def submit(server: RunningServer, **fields: Any) -> int:
    return int(call(server, "SubmitJobs", submission(**fields)).job_ids[0])


def feed(server: RunningServer, after: int = 0) -> tuple[list[int], int]:
    """Return the jobs of the events after a position, and the last position."""
    request = job_service_pb2.WatchEventsRequest(after_position=after, until_now=True)
    jobs: list[int] = []
    with server.channel(server.token()) as channel:
        for page in JobServiceStub(channel).WatchEvents(request):
            jobs += [event.job_id for event in page.events]
            after = page.position
    return jobs, after


@contextmanager
def steady_submissions(server: RunningServer) -> Iterator[list[int]]:
    """Submit jobs in another thread during the block; the list has the acknowledged ids."""
    acknowledged: list[int] = []
    stopping, begun = threading.Event(), threading.Event()

    def run() -> None:
        with server.channel(server.token()) as channel:
            stub = JobServiceStub(channel)
            while not stopping.is_set():
                acknowledged.extend(stub.SubmitJobs(submission()).job_ids)
                begun.set()

    thread = threading.Thread(target=run)
    thread.start()
    try:
        assert begun.wait(30)
        yield acknowledged
    finally:
        stopping.set()
        thread.join()


def check_lost_time(server: RunningServer, kept: int, lost: list[int], lost_position: int, kept_position: int) -> None:
    """Check that ids and positions of the lost time belong to nobody, and that the feed continues."""
    for job_id in lost:
        with pytest.raises(NotFoundError):
            call(server, "GetJobs", job_service_pb2.GetJobsRequest(job_ids=[job_id]))
    with pytest.raises(FeedPositionLostError) as refused:
        feed(server, lost_position)
    assert refused.value.resume_after == kept_position
    new = submit(server)
    assert new > STEPS.job
    jobs, position = feed(server, refused.value.resume_after)
    assert jobs == [new]
    assert position > STEPS.position
    assert feed(server)[0][-1] == new
    assert kept in feed(server)[0]


def wait_for(server: RunningServer, job_id: int) -> bool:
    """Wait for the end of a job for at most two long polls."""
    request = job_service_pb2.WaitForJobsRequest(job_ids=[job_id], timeout_s=50)
    with server.channel(server.token(), timeout_s=60) as channel:
        stub = JobServiceStub(channel)
        return bool(stub.WaitForJobs(request).all_final or stub.WaitForJobs(request).all_final)


def marks_in(path: Path) -> list[str]:
    return path.read_text().split() if path.exists() else []


async def test_no_attempt_starts_while_one_of_the_lost_time_lives(tmp_path: Path) -> None:
    """The pilot of the lost time is stopped, so that only its watchdog and the lease end its payload."""
    marks, backup = tmp_path / "marks", tmp_path / "backup.tar"
    with a_process_grid(tmp_path, lease_s=LEASE_S, shortest_lease_s=1) as grid:
        server = grid.server
        with steady_submissions(server) as others:
            job_id = grid.submit(script=ONE_AT_A_TIME.format(tmp_path), priority=10)
            made = await asyncio.to_thread(server.command, "backup", str(backup))
            assert made.returncode == 0, made.stderr
        async with grid.pilot(cpus=1) as first:
            await until(lambda: bool(marks_in(marks)))
            # Stopped while it starts a payload, the pilot would be killed by its watchdog.
            await until(lambda: grid.job(job_id).state == jobs_pb2.JOB_STATE_RUNNING)
            os.kill(first.pid, signal.SIGSTOP)
            request = submission("the same")
            lost = list(call(server, "SubmitJobs", request).job_ids)
            _, lost_position = feed(server)
            await asyncio.to_thread(server.kill)
            check_refusals(server, backup)
            restored = await asyncio.to_thread(server.command, "restore", "--from", str(backup))
            assert restored.returncode == 0, restored.stderr
            (tmp_path / "short").touch()
            await asyncio.to_thread(server.start)
            kept = max(each for each in (*others, job_id) if exists(server, each))
            async with grid.pilot(cpus=1):
                assert await asyncio.to_thread(wait_for, server, job_id)
            assert grid.job(job_id).attempt > STEPS.attempt
            assert marks_in(marks).count("started") >= 2
            assert "doubled" not in marks_in(marks)
            os.kill(first.pid, signal.SIGCONT)
        (again,) = call(server, "SubmitJobs", request).job_ids
        assert again > STEPS.job
        assert list(call(server, "SubmitJobs", request).job_ids) == [again]
        with pytest.raises(FeedPositionLostError) as refused:
            feed(server, lost_position)
        assert set(feed(server, refused.value.resume_after)[0]).isdisjoint(lost)
        assert not any(exists(server, each) for each in lost)
        check_ids(others, kept, server)


def exists(server: RunningServer, job_id: int) -> bool:
    try:
        call(server, "GetJobs", job_service_pb2.GetJobsRequest(job_ids=[job_id]))
    except NotFoundError:
        return False
    return True


def check_ids(acknowledged: list[int], kept: int, server: RunningServer) -> None:
    """Check that the backup has all jobs up to one, and none later: it is a snapshot."""
    assert [each for each in acknowledged if exists(server, each)] == [each for each in acknowledged if each <= kept]


def check_refusals(server: RunningServer, backup: Path) -> None:
    """Check that a server starts with no database that was put back by hand."""
    database = server.data / "pilotage.db"
    aside = server.data / "aside"
    aside.mkdir()
    for file in server.data.glob("pilotage.db*"):
        file.rename(aside / file.name)
    with tarfile.open(backup) as archive:
        archive.extract("pilotage.db", server.data, filter="data")
    assert "the database is a backup of" in server.start_fails()
    database.unlink()
    for file in aside.iterdir():
        file.rename(server.data / file.name)


async def test_copy_of_the_database_that_is_put_back_is_refused(tmp_path: Path) -> None:
    """A copy that `pilotage-server backup` has not made has no mark: the server remembers what it has seen."""
    server = RunningServer(tmp_path / "server", lease_s=LEASE_S)
    try:
        server.start()
        submit(server)
        assert server.stop() == 0
        shutil.copyfile(server.data / "pilotage.db", tmp_path / "copy.db")
        server.start()
        lost = submit(server)
        seen = server.data / "last-seen.json"
        await until(lambda: f'"job": {lost}' in seen.read_text())
        assert server.stop() == 0
        for file in server.data.glob("pilotage.db*"):
            file.unlink()
        shutil.copyfile(tmp_path / "copy.db", server.data / "pilotage.db")
        line = server.start_fails()
        assert f"and this server has seen job {lost}" in line
        assert "'pilotage-server restore'" in line
        assert server.command("restore").returncode == 0
        server.start()
        assert submit(server) == STEPS.job + 1
    finally:
        server.kill()


def run_tool(name: str, *arguments: str) -> None:
    programs = installed_programs()
    tool = shutil.which(name) or (str(programs / name) if programs is not None else name)
    subprocess.run([tool, *arguments], check=True, capture_output=True, timeout=60)


def dump(url: URL, file: Path) -> None:
    run_tool("pg_dump", "--format=custom", f"--file={file}", _libpq(url))


def put_back(url: URL, file: Path) -> None:
    run_tool("pg_restore", "--exit-on-error", f"--dbname={_libpq(url)}", str(file))


def _libpq(url: URL) -> str:
    return url.set(drivername="postgresql").render_as_string(hide_password=False)


def test_dump_of_postgresql_is_restored_under_several_servers(
    tmp_path: Path, postgresql_server: PostgresqlServer
) -> None:
    url = postgresql_server.new_database()
    try:
        with server_fleet(tmp_path, url.render_as_string(hide_password=False), 2, lease_s=LEASE_S) as fleet:
            one, two = fleet.servers
            kept = submit(one)
            _, kept_position = feed(one)
            dump(url, tmp_path / "dump")
            lost = [submit(two) for _ in range(3)]
            _, lost_position = feed(one)
            for server in fleet.servers:
                assert server.stop() == 0
            postgresql_server.replace_database(url)
            put_back(url, tmp_path / "dump")
            assert "the database was put back or has moved" in one.start_fails()
            restored = one.command("restore")
            assert restored.returncode == 0, restored.stderr
            assert "1 waiting jobs are fenced" in restored.stdout
            fleet.start()
            check_lost_time(one, kept, lost, lost_position, kept_position)
            # A restore, and a change of the schema, under a running server: it stops, and says why.
            assert two.stop() == 0
            assert two.command("restore").returncode == 0
            assert "a backup was restored: the database is of incarnation 3, this server of 2" in one.ends()
            two.start()
            postgresql_server.run_on(url, "UPDATE installation SET schema_name = 'newer'")
            assert "another release has changed the schema" in two.ends()
            assert "another build" in one.start_fails()
    finally:
        postgresql_server.drop(url)


def test_server_with_other_files_or_keys_does_not_join(tmp_path: Path, postgresql_server: PostgresqlServer) -> None:
    url = postgresql_server.new_database()
    address = url.render_as_string(hide_password=False)
    try:
        with server_fleet(tmp_path, address, 1) as fleet:
            shared: dict[str, Any] = {"database": address, "signing_key": str(tmp_path / "key.pem")}
            other = RunningServer(tmp_path / "other", **shared)  # with a store of its own
            assert "its file store is a new one, without an id" in other.start_fails()
            shared["files"] = (tmp_path / "files").as_uri()
            stranger = RunningServer(tmp_path / "stranger", **{**shared, "signing_key": str(tmp_path / "other.pem")})
            assert "none of this server's signing keys" in stranger.start_fails()
            assert fleet.servers[0].command("keys", "rotate").returncode == 0  # the new key does not sign yet
            third = RunningServer(tmp_path / "third", **shared)
            try:
                third.start()
            finally:
                third.kill()
    finally:
        postgresql_server.drop(url)


@pytest.mark.parametrize("store", ["folder", "s3"])
def test_restore_puts_files_back_and_names_the_jobs_without_input(
    tmp_path: Path, request: pytest.FixtureRequest, store: str
) -> None:
    bucket: Bucket | None = request.getfixturevalue("bucket") if store == "s3" else None
    with a_process_grid(tmp_path, **(bucket.settings if bucket else {})) as grid:
        server, backup = grid.server, tmp_path / "backup.tar"
        checksums = [grid.upload(content) for content in (b"one", b"two", b"three")]
        inputs = [[jobs_pb2.InputFile(name="data", checksum=each, size=3)] for each in checksums[:2]]
        inputs.append([jobs_pb2.InputFile(name="data", checksum=checksums[2], size=5)])
        ids = [grid.submit(input_files=each) for each in inputs]
        authority = AuthorityFiles(server.data / "tls")
        trusted = authority.load_or_make(clock.now()).certificate
        if bucket is None:
            stored = [server.data / "files" / each[:2] / each for each in checksums]
            stored[1].unlink()
            stored[2].chmod(0o600)
            stored[2].write_bytes(b"thrEe")
        else:
            keys = [next(key for key in bucket.remains() if key.endswith(each)) for each in checksums]
            bucket.client.delete_object(Bucket=bucket.name, Key=keys[1])
            bucket.client.put_object(Bucket=bucket.name, Key=keys[2], Body=b"thrEe")
        made = server.command("backup", str(backup))
        assert made.returncode == 0, made.stderr
        assert "2 files are damaged or not in the store" in made.stdout
        assert server.stop() == 0
        shutil.rmtree(server.data)  # the machine is lost
        if bucket is not None:
            bucket.empty()
        restored = server.command("restore", "--from", str(backup))
        assert restored.returncode == 0, restored.stderr
        assert f"2 jobs miss input files, and will fail: {ids[1]} (" in restored.stdout
        found = authority.load()
        assert found is not None
        assert found.certificate == trusted
        server.start()
        wanted = job_service_pb2.DownloadFileRequest(job_id=ids[0], checksum=checksums[0])
        with server.channel(grid.user_token()) as channel:
            assert b"".join(piece.content for piece in JobServiceStub(channel).DownloadFile(wanted)) == b"one"


def damaged(backup: Path, member: str) -> None:
    """Change one byte of a member."""
    with tarfile.open(backup) as archive:
        offset = archive.getmember(member).offset_data
    with backup.open("r+b") as file:
        file.seek(offset)
        first = file.read(1)
        file.seek(offset)
        file.write(bytes([first[0] ^ 1]))


def replaced(backup: Path, change: Callable[[sqlite3.Connection], object]) -> None:
    """Change the database in a backup, with valid checksums."""
    database = backup.with_suffix(".db")
    with opened(backup) as archive:
        contents = {name: archive.read(name) for name in ("backup.json", "keys/tokens.pem", "files.txt")}
        archive.write("pilotage.db", database)
    with closing(sqlite3.connect(database)) as connection, connection:
        change(connection)
    backup.unlink()
    with written(backup) as writer:
        for name, content in contents.items():
            writer.add(name, content)
        writer.add_file("pilotage.db", database)


def test_restore_names_keys_and_authority_that_it_leaves(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    backup, new = tmp_path / "backup.tar", ServerSettings(data=tmp_path / "new")
    with running_server(tmp_path / "old") as server:
        AuthorityFiles(server.data / "tls").load_or_make(clock.now())
        assert server.command("backup", str(backup)).returncode == 0
    # The service has started once on the new machine before the backup was put back.
    KeyFiles(new.key_file).load_or_make()
    AuthorityFiles(new.tls_folder).load_or_make(clock.now())
    restore(new, backup, 0)
    printed = capsys.readouterr().out
    assert f"{new.key_file.parent} keeps its signing keys, not those of the backup" in printed
    assert f"{new.tls_folder} keeps its authority, not that of the backup" in printed
    for folder in (new.key_file.parent, new.tls_folder):
        shutil.rmtree(folder)
    for _ in ("put back", "the same"):
        restore(new, backup, 0)
        assert "keeps" not in capsys.readouterr().out


def test_interrupted_restore_leaves_a_database_and_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backup = tmp_path / "backup.tar"
    with running_server(tmp_path / "server") as server:
        job_id = submit(server)
        assert server.command("backup", str(backup)).returncode == 0
        assert server.stop() == 0
        with monkeypatch.context() as patched:
            patched.setattr(Path, "replace", lambda *_: os.link(tmp_path / "no such file", tmp_path / "x"))
            with pytest.raises(PilotageError, match="cannot be used"):
                restore(ServerSettings(data=server.data), backup, 0)
        assert (server.data / "pilotage.db").exists()  # else a server would start with an empty one
        restore(ServerSettings(data=server.data), backup, 0)
        server.start()
        assert exists(server, job_id)


def test_restore_of_a_bad_backup_changes_nothing(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server:
        job_id = submit(server)
        good = tmp_path / "good.tar"
        assert server.command("backup", str(good)).returncode == 0
        assert "exists; every backup needs a new file" in server.command("backup", str(good)).stderr
        assert "a server works with" in server.command("restore", "--from", str(good)).stderr
        assert server.stop() == 0
        bad = tmp_path / "bad.tar"

        def refused(change: Callable[[], object]) -> str:
            shutil.copyfile(good, bad)
            change()
            with pytest.raises(PilotageError) as refusal:
                restore(ServerSettings(data=server.data), bad, 0)
            assert [each.name for each in server.data.glob("*pilotage.db*")] == ["pilotage.db"]
            return str(refusal.value)

        assert "bad.tar is damaged: keys/tokens.pem is not" in refused(lambda: damaged(bad, "keys/tokens.pem"))
        assert "is damaged" in refused(lambda: os.truncate(bad, good.stat().st_size // 2))
        assert "is damaged or no backup" in refused(lambda: bad.write_bytes(b"nothing"))
        newer = "UPDATE alembic_version SET version_num = '9999'"
        assert "has schema 9999" in refused(lambda: replaced(bad, lambda database: database.execute(newer)))
        server.start()
        assert exists(server, job_id)
