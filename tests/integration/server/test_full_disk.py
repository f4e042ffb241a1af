"""Quotas of jobs and uploads, and a disk that fills: what is refused, what is still taken, and what health says."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from pilotage.errors import QuotaExceededError, WorldError
from pilotage.v1 import job_service_pb2
from pilotage_client.connection import ServerAddress
from pilotage_client.doctor import FAULT, examine
from pilotage_server.core.identity import Role
from support.metrics import Scrape, get, metrics_address
from support.server import RunningServer, request_id, running_server
from support.wire_grid import WireGrid, a_job, submission

pytestmark = pytest.mark.process

DISK_MIB = 24
JOB_SERVICE = "pilotage.v1.JobService"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Return a folder on a file system of its own."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
    if os.getuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a file system")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def upload(grid: WireGrid, content: bytes, owner: str = "alice") -> None:
    checksum = hashlib.sha256(content).hexdigest()
    pieces = [content[begin : begin + 2**19] for begin in range(0, len(content), 2**19)]
    messages = [job_service_pb2.UploadFileRequest(content=piece) for piece in pieces]
    messages[0].checksum, messages[0].size = checksum, len(content)
    grid.user(owner).UploadFile(iter(messages))


def await_health(server: RunningServer, service: str, status: str) -> None:
    """Return when the health service reports this status; the watch reports every change."""
    with grpc.insecure_channel(server.address) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service=service), timeout=30.0)
        for answer in watch:
            if answer.status == health_pb2.HealthCheckResponse.ServingStatus.Value(status):
                watch.cancel()
                return


def fill(folder: Path, name: str, leave: int) -> Path:
    """Write a file that leaves so many bytes free, as another program would."""
    free = os.statvfs(folder)
    path = folder / name
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - leave)
    return path


def fill_database(grid: WireGrid) -> None:
    for _ in range(1000):
        grid.submit(*(a_job() for _ in range(500)))


def test_jobs_beyond_the_quota_are_refused_until_some_have_ended(tmp_path: Path) -> None:
    with (
        running_server(tmp_path / "data", max_live_jobs_per_owner=3, max_live_jobs_per_vo=4) as server,
        closing(WireGrid(server)) as grid,
    ):
        first = grid.submit(a_job(), a_job(), a_job())
        with pytest.raises(QuotaExceededError, match=r"alice .* has 3 jobs that have not ended, and may have 3"):
            grid.submit(a_job())
        grid.user("bob").SubmitJobs(_submission(1))
        with pytest.raises(QuotaExceededError, match=r"the VO .* has 4 jobs"):
            grid.user("carol").SubmitJobs(_submission(1))
        request = _submission(1)
        grid.change(job_service_pb2.JOB_CHANGE_REMOVE, *first)
        server.stop()
        server.start()  # which counts the jobs again
        assert grid.jobs.SubmitJobs(request).job_ids


def _submission(count: int) -> job_service_pb2.SubmitJobsRequest:

    return submission([a_job()] * count, request_id())


def test_uploads_beyond_the_quota_are_refused(tmp_path: Path) -> None:
    with (
        running_server(tmp_path / "data", max_stored_mib_per_owner=1, max_stored_mib_per_vo=2) as server,
        closing(WireGrid(server)) as grid,
    ):
        upload(grid, b"a" * 900_000)
        with pytest.raises(QuotaExceededError, match="200000 more bytes are too many: alice"):
            upload(grid, b"b" * 200_000)
        upload(grid, b"b" * 900_000, "bob")
        with pytest.raises(QuotaExceededError, match="the VO"):
            upload(grid, b"c" * 900_000, "carol")


def test_reports_are_taken_while_users_are_refused_on_a_full_disk(small_disk: Path, tmp_path: Path) -> None:
    data = small_disk / "data"
    with running_server(data, metrics_listen="127.0.0.1:0") as server, closing(WireGrid(server)) as grid:
        grid.put_tree()
        job_id, next_job_id = grid.submit(a_job(), a_job())
        pilot = grid.start_pilot()
        assert pilot.request_jobs().matches
        await_health(server, JOB_SERVICE, "SERVING")
        with pytest.raises(WorldError, match="reserved for reports"):
            upload(grid, bytes((DISK_MIB - 1) * 2**20))

        other = fill(small_disk, "other", 900_000)  # less than the reserve of 5 %

        await_health(server, JOB_SERVICE, "NOT_SERVING")
        await_health(server, "", "SERVING")
        status, why = get(metrics_address(server), "/readyz")
        assert (status, why.startswith(f"the disk of {data} is almost full")) == (503, True)
        (disk,) = [
            check
            for check in examine(ServerAddress(server.address, server.token(Role.OPERATOR)))
            if check.check == "disk" and check.level == FAULT
        ]
        assert disk.advice.startswith(f"make room on the disk of {data}")
        with pytest.raises(WorldError, match="reserved for reports"):
            grid.submit(a_job())
        with pytest.raises(WorldError, match="reserved for reports"):
            upload(grid, b"content")
        pilot.finish(job_id, outputs={"log": b"done\n"})
        assert grid.state_of(job_id) == "DONE"

        fill(small_disk, "rest", 0)  # now nothing is left but the ballast
        server.kill()
        server.start()
        assert grid.state_of(job_id) == "DONE"
        (match,) = pilot.request_jobs(wait_s=20.0).matches
        assert match.job_id == next_job_id
        pilot.finish(match.job_id, outputs={"log": b"done again\n"})

        other.unlink()
        await_health(server, JOB_SERVICE, "SERVING")
        assert grid.submit(a_job())


def test_health_reports_a_database_that_cannot_be_written(tmp_path: Path) -> None:
    with (
        running_server(tmp_path / "data", max_file_bytes_on_disk=1_500_000, metrics_listen="127.0.0.1:0") as server,
        closing(WireGrid(server)) as grid,
    ):
        await_health(server, "", "SERVING")
        with pytest.raises(WorldError, match="database is not available"):
            fill_database(grid)
        await_health(server, "", "NOT_SERVING")
        await_health(server, "pilotage.v1.MatcherService", "NOT_SERVING")
        assert get(metrics_address(server), "/readyz") == (503, "the database cannot be written\n")
        failed = Scrape(metrics_address(server)).value("pilotage_database_writes_total", result="failed")
        assert failed is not None
        assert failed >= 1
        assert grid.jobs.ListJobs(job_service_pb2.ListJobsRequest(page_size=1)).jobs
