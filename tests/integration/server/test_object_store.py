"""A server whose files are in an object store: how it starts, and an outage of the store."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from pilotage.errors import WorldError
from pilotage.job_description import InputFile, JobDescription
from pilotage.v1 import job_service_pb2
from support.metrics import get, metrics_address
from support.object_store import Bucket, ObjectStore, relay_to
from support.processes import until
from support.server import RunningServer, running_server
from support.wire_grid import WireGrid

CONTENT = bytes(3 * 2**20)
CHECKSUM = hashlib.sha256(CONTENT).hexdigest()


def upload(grid: WireGrid) -> None:
    pieces = [CONTENT[at : at + 2**20] for at in range(0, len(CONTENT), 2**20)]
    messages = [job_service_pb2.UploadFileRequest(content=piece) for piece in pieces]
    messages[0].checksum, messages[0].size = CHECKSUM, len(CONTENT)
    grid.jobs.UploadFile(iter(messages))


def download(grid: WireGrid, job_id: int) -> bytes:
    request = job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=CHECKSUM)
    return b"".join(message.content for message in grid.jobs.DownloadFile(request))


async def test_outage_of_the_object_store_is_transient_and_reported(
    tmp_path: Path, object_store: ObjectStore, bucket: Bucket
) -> None:
    def says(status: int, text: str) -> Callable[[], bool]:
        def readiness() -> bool:
            found, why = get(metrics_address(server), "/readyz")
            return found == status and text in why

        return readiness

    with relay_to(object_store.port) as relay:
        settings = {**bucket.settings, "s3_endpoint": relay.url, "metrics_listen": "127.0.0.1:0"}
        with running_server(tmp_path / "data", **settings) as server, closing(WireGrid(server)) as grid:
            grid.put_tree()
            upload(grid)
            (job_id,) = grid.submit(JobDescription("/bin/true", input_files=(InputFile("in", checksum=CHECKSUM),)))
            assert download(grid, job_id) == CONTENT
            relay.cut()
            for call in (lambda: upload(grid), lambda: download(grid, job_id)):
                with pytest.raises(WorldError, match=f"{relay.url} does not answer") as failed:
                    call()
                assert failed.value.transient
            await until(says(503, f"files cannot be stored in s3://{bucket.name}/jobs"))
            assert grid.state_of(job_id) == "WAITING"
            relay.connect()
            upload(grid)
            assert download(grid, job_id) == CONTENT
            await until(says(200, ""))
        assert "files cannot be stored" in server.log()
    assert "does not answer; correct s3_endpoint" in server.start_fails()


def test_server_does_not_start_without_its_bucket(tmp_path: Path, bucket: Bucket) -> None:
    server = RunningServer(tmp_path / "data", **{**bucket.settings, "files": "s3://no-such-bucket/jobs"})
    assert "files cannot be stored in s3://no-such-bucket/jobs: there is no such bucket" in server.start_fails()
