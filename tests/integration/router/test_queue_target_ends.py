"""Ends of routed jobs in a fake batch system, and the records of their folders."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from pilotage.clock import now
from pilotage.errors import WorldError
from pilotage.job_description import InputFile
from pilotage.jobs.files import OutputLimits
from pilotage.resources.tree import QueueId
from pilotage_agents.batch_systems.base import GlideinRequest, GlideinState, GlideinStatus, NotSubmitted, Submitted
from pilotage_agents.batch_systems.local import LocalBatchSystem
from pilotage_agents.router.core.model import RoutedJobState, RoutedJobStatus
from pilotage_agents.router.ports import RouteUnsuitable
from pilotage_agents.router.targets.job_folders import RoutedJobFolders
from pilotage_agents.router.targets.queue import BatchQueueTarget
from support.fake_batch_systems import FakeBatchSystem
from support.routed_job_targets import InMemoryFiles, a_copy, end_of, submitted

NAME, ORIGIN = "pilotage-7-3", "here"
STAMP = f"{NAME}-{ORIGIN}"
QUEUE = QueueId("LOCAL", "here", "default")
MAX_BYTES = 20_000


@dataclass
class SubmittedJob:
    """A target over a fake batch system, and a routed job that was submitted to it."""

    batch: FakeBatchSystem
    target: BatchQueueTarget
    reference: str
    folder: Path

    @property
    def request(self) -> GlideinRequest:
        (request,) = self.batch.requests.values()
        return request

    async def wait_for_status(self, status: GlideinStatus) -> RoutedJobStatus:
        """Return the status of the routed job when its batch job has this status."""
        self.batch.statuses["fake.1"] = status
        return (await self.target.poll([self.reference]))[self.reference]


@pytest.fixture
async def submitted_job(tmp_path: Path) -> SubmittedJob:
    batch = FakeBatchSystem()
    target = BatchQueueTarget(QUEUE, batch, RoutedJobFolders(tmp_path, OutputLimits(MAX_BYTES)), ORIGIN)
    request = a_copy(
        NAME, "/bin/true", request_cpus=4, request_memory_mib=800, request_gpus=1, wall_time=timedelta(hours=1)
    )
    (reference,) = await submitted(target, InMemoryFiles(), request)
    return SubmittedJob(batch, target, reference, tmp_path / STAMP)


async def test_request_has_the_jobs_shape_and_wall_time(submitted_job: SubmittedJob) -> None:
    request = submitted_job.request
    assert (request.stamp, request.queue, request.folder) == (STAMP, "default", submitted_job.folder)
    assert (request.shape.cpus, request.shape.memory_mib, request.shape.gpus) == (4, 800, 1)
    assert request.wall_time_s == 3600


async def test_lost_node_ends_a_routed_job_and_a_missing_answer_not(submitted_job: SubmittedJob) -> None:
    silent = await submitted_job.wait_for_status(GlideinStatus(GlideinState.UNKNOWN, "no answer"))
    assert (silent.state, silent.reason) == (RoutedJobState.UNKNOWN, "no answer")
    lost = await submitted_job.wait_for_status(GlideinStatus(GlideinState.ENDED, "NODE_FAIL"))
    assert lost.state is RoutedJobState.GONE
    assert "NODE_FAIL" in lost.reason


async def test_partly_written_end_record_is_ignored(submitted_job: SubmittedJob) -> None:
    (submitted_job.folder / "started").write_text("1000 node7")
    (submitted_job.folder / "ended").write_text("code 0\ntime 1010\n")
    completed = GlideinStatus(GlideinState.ENDED, "COMPLETED", 0)
    assert (await submitted_job.wait_for_status(completed)).state is RoutedJobState.UNKNOWN
    (submitted_job.folder / "ended").write_text("code 0\ntime 1010\nwhole\n")
    status = await submitted_job.wait_for_status(completed)
    assert (status.state, status.exit_code, status.wall_s) == (RoutedJobState.COMPLETED, 0, 10.0)


async def test_ended_job_without_end_record_is_gone_after_a_while(submitted_job: SubmittedJob) -> None:
    completed = GlideinStatus(GlideinState.ENDED, "COMPLETED", 0)
    async with asyncio.timeout(10):
        while (status := await submitted_job.wait_for_status(completed)).state is RoutedJobState.UNKNOWN:
            pass
    assert status.state is RoutedJobState.GONE


async def test_end_record_that_is_a_link_is_not_followed(submitted_job: SubmittedJob, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("code 0\ntime 1010\nwhole\n")
    (submitted_job.folder / "ended").symlink_to(tmp_path / "other")
    assert (
        await submitted_job.wait_for_status(GlideinStatus(GlideinState.ENDED, "FAILED", 1))
    ).state is RoutedJobState.GONE


async def test_circular_links_lose_only_their_own_output(submitted_job: SubmittedJob) -> None:
    for name in ("stdout", "stderr"):
        (submitted_job.folder / "work" / name).unlink(missing_ok=True)
    (submitted_job.folder / "work" / "stdout").symlink_to("stdout")
    (submitted_job.folder / "work" / "stderr").write_text("x")
    output = await submitted_job.target.collect(submitted_job.reference)
    assert [file.name for file in output] == ["stderr"]


async def test_unanswered_submission_is_found_by_its_end_record(tmp_path: Path) -> None:
    batch = FakeBatchSystem(loses_answers=True)
    target = BatchQueueTarget(QUEUE, batch, RoutedJobFolders(tmp_path, OutputLimits(MAX_BYTES)), ORIGIN)
    (answer,) = await target.submit([a_copy(NAME, "/bin/true")], InMemoryFiles())
    assert not isinstance(answer, Submitted | NotSubmitted)
    (tmp_path / STAMP / "ended").write_text("code 4\ntime 1010\nwhole\n")
    batch.end("fake.1", 0)
    reference = (await target.find_again([NAME]))[NAME]
    assert isinstance(reference, str)
    status = (await target.poll([reference]))[reference]
    assert (status.state, status.exit_code) == (RoutedJobState.COMPLETED, 4)


async def test_unanswered_submission_is_never_duplicated(tmp_path: Path) -> None:
    batch = FakeBatchSystem(loses_answers=True)
    target = BatchQueueTarget(QUEUE, batch, RoutedJobFolders(tmp_path, OutputLimits(MAX_BYTES)), ORIGIN)
    request = a_copy(NAME, "/bin/sleep", "1000")
    await target.submit([request], InMemoryFiles())
    batch.is_reachable = False
    (answer,) = await target.submit([request], InMemoryFiles())
    assert not isinstance(answer, Submitted | NotSubmitted), "it may have been submitted"
    batch.is_reachable, batch.loses_answers = True, False
    (answer,) = await target.submit([request], InMemoryFiles())
    assert isinstance(answer, Submitted)
    assert len(batch.requests) == 1


async def test_record_of_a_routed_job_has_no_secrets(submitted_job: SubmittedJob) -> None:
    record = json.loads((submitted_job.folder / "copy.json").read_text())
    assert record.keys() == {"stdout", "stderr", "output_files", "seen", "queue", "ce_type", "batch_id", "cut"}


async def test_routed_job_with_its_folder_elsewhere_stays_unknown(tmp_path: Path) -> None:
    batch = FakeBatchSystem()
    elsewhere = BatchQueueTarget(
        QUEUE, batch, RoutedJobFolders(tmp_path / "elsewhere", OutputLimits(MAX_BYTES)), ORIGIN
    )
    here = BatchQueueTarget(QUEUE, batch, RoutedJobFolders(tmp_path / "here", OutputLimits(MAX_BYTES)), ORIGIN)
    (reference,) = await submitted(elsewhere, InMemoryFiles(), a_copy(NAME, "/bin/true"))
    batch.end("fake.1", 0)
    states = [(await here.poll([reference]))[reference].state for _ in range(100)]
    assert set(states) == {RoutedJobState.UNKNOWN}


async def test_missing_shared_folder_is_an_error(tmp_path: Path) -> None:
    unmounted = BatchQueueTarget(
        QUEUE, FakeBatchSystem(), RoutedJobFolders(tmp_path / "unmounted" / "copies", OutputLimits(MAX_BYTES)), ORIGIN
    )
    with pytest.raises(WorldError, match="is not there"):
        await unmounted.find_again([NAME])
    assert not (tmp_path / "unmounted").exists()


def set_age(folder: Path, days: int) -> None:
    """Set the modification time of a folder to some days ago."""
    modified = (now() - timedelta(days=days)).timestamp()
    os.utime(folder, (modified, modified))


async def test_leftovers_are_old_folders_of_this_router(submitted_job: SubmittedJob, tmp_path: Path) -> None:
    other_router = BatchQueueTarget(
        QUEUE, FakeBatchSystem(), RoutedJobFolders(tmp_path, OutputLimits(MAX_BYTES)), "another"
    )
    await submitted(other_router, InMemoryFiles(), a_copy(NAME, "/bin/true"))
    (tmp_path / f"pilotage-8-1-{ORIGIN}" / "work").mkdir(parents=True)
    for name, days in ((STAMP, 3), (f"{NAME}-another", 3), (f"pilotage-8-1-{ORIGIN}", 3)):
        set_age(tmp_path / name, days)
    yesterday = now() - timedelta(days=1)
    found = {NAME: submitted_job.reference, "pilotage-8-1": ""}
    assert await submitted_job.target.leftovers((), yesterday) == found, "a folder without a record has no reference"
    assert await submitted_job.target.leftovers([NAME, "pilotage-8-1"], yesterday) == {}
    set_age(submitted_job.folder, 0)
    assert await submitted_job.target.leftovers((), yesterday) == {"pilotage-8-1": ""}


async def test_running_job_of_another_queue_is_no_leftover(submitted_job: SubmittedJob, tmp_path: Path) -> None:
    folders = RoutedJobFolders(tmp_path, OutputLimits(MAX_BYTES))
    other = BatchQueueTarget(QueueId("LOCAL", "here", "other"), FakeBatchSystem(), folders, ORIGIN)
    assert await other.leftovers((), now() + timedelta(days=1)) == {}
    (submitted_job.folder / "ended").write_text("code 0\ntime 1010\nwhole\n")
    assert await other.leftovers((), now() + timedelta(days=1)) == {NAME: ""}


class FailingFiles(InMemoryFiles):
    """Files of which the one named `failing` raises an unexpected error."""

    async def fetch(self, job_id: int, file: InputFile, to: Path) -> None:
        if file.name == "failing":
            raise RecursionError("a path without end")
        await super().fetch(job_id, file, to)


async def test_unexpected_error_of_one_job_affects_no_other(
    tmp_path: Path,
) -> None:
    target = BatchQueueTarget(
        QUEUE, LocalBatchSystem(tmp_path), RoutedJobFolders(tmp_path, OutputLimits(MAX_BYTES)), ORIGIN
    )
    files = FailingFiles()
    failing = a_copy("pilotage-8-1", "/bin/true", input_files=(files.add("failing", "x"),))
    fine = a_copy("pilotage-9-1", "/bin/true", input_files=(files.add("fine", "x"),))
    with capture_logs() as logs:
        rejected, accepted = await target.submit([failing, fine], files)
    assert rejected == RouteUnsuitable("unexpected error: RecursionError('a path without end')")
    assert isinstance(accepted, Submitted)
    assert (await end_of(target, accepted.glidein_id)).exit_code == 0
    assert ("error", f"pilotage-8-1-{ORIGIN}") in [(line["log_level"], line.get("routed_job")) for line in logs]
    assert not (tmp_path / f"pilotage-8-1-{ORIGIN}").exists()
