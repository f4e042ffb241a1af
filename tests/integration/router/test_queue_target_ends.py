"""What becomes of copies in a batch system by its word and theirs, here one in memory, and what is kept of them."""

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
from pilotage_agents.router.places.job_folders import RoutedJobFolders
from pilotage_agents.router.places.queue import BatchQueueTarget
from pilotage_agents.router.ports import RouteUnsuitable
from support.copy_targets import HeldFiles, a_copy, end_of, submitted
from support.fake_batch_systems import FakeBatchSystem

NAME, ORIGIN = "pilotage-7-3", "here"
CALLED = f"{NAME}-{ORIGIN}"
QUEUE = QueueId("LOCAL", "here", "default")
MOST_BYTES = 20_000


@dataclass
class Pushed:
    """A target over a batch system in memory, and one copy that was pushed into it."""

    batch: FakeBatchSystem
    target: BatchQueueTarget
    reference: str
    folder: Path

    @property
    def request(self) -> GlideinRequest:
        (request,) = self.batch.requests.values()
        return request

    async def when(self, status: GlideinStatus) -> RoutedJobStatus:
        """Return what becomes of the copy when its batch job has this status."""
        self.batch.statuses["fake.1"] = status
        return (await self.target.poll([self.reference]))[self.reference]


@pytest.fixture
async def pushed(tmp_path: Path) -> Pushed:
    batch = FakeBatchSystem()
    target = BatchQueueTarget(QUEUE, batch, RoutedJobFolders(tmp_path, OutputLimits(MOST_BYTES)), ORIGIN)
    copy = a_copy(
        NAME, "/bin/true", request_cpus=4, request_memory_mib=800, request_gpus=1, wall_time=timedelta(hours=1)
    )
    (reference,) = await submitted(target, HeldFiles(), copy)
    return Pushed(batch, target, reference, tmp_path / CALLED)


async def test_sizes_and_wall_time_go_to_the_batch_system(pushed: Pushed) -> None:
    request = pushed.request
    assert (request.stamp, request.queue, request.folder) == (CALLED, "default", pushed.folder)
    assert (request.shape.cpus, request.shape.memory_mib, request.shape.gpus) == (4, 800, 1)
    assert request.wall_time_s == 3600


async def test_a_lost_node_is_the_end_of_a_copy_and_silence_is_not(pushed: Pushed) -> None:
    silent = await pushed.when(GlideinStatus(GlideinState.UNKNOWN, "no answer"))
    assert (silent.state, silent.reason) == (RoutedJobState.UNKNOWN, "no answer")
    lost = await pushed.when(GlideinStatus(GlideinState.ENDED, "NODE_FAIL"))
    assert lost.state is RoutedJobState.GONE
    assert "NODE_FAIL" in lost.reason


async def test_an_end_that_is_written_in_part_is_none_yet(pushed: Pushed) -> None:
    (pushed.folder / "started").write_text("1000 node7")
    (pushed.folder / "ended").write_text("code 0\ntime 1010\n")
    well = GlideinStatus(GlideinState.ENDED, "COMPLETED", 0)
    assert (await pushed.when(well)).state is RoutedJobState.UNKNOWN
    (pushed.folder / "ended").write_text("code 0\ntime 1010\nwhole\n")
    status = await pushed.when(well)
    assert (status.state, status.exit_code, status.wall_s) == (RoutedJobState.COMPLETED, 0, 10.0)


async def test_an_end_that_never_comes_to_be_seen_is_given_up(pushed: Pushed) -> None:
    well = GlideinStatus(GlideinState.ENDED, "COMPLETED", 0)
    async with asyncio.timeout(10):
        while (status := await pushed.when(well)).state is RoutedJobState.UNKNOWN:
            pass
    assert status.state is RoutedJobState.GONE


async def test_a_link_in_place_of_what_a_copy_wrote_leads_nowhere(pushed: Pushed, tmp_path: Path) -> None:
    (tmp_path / "other").write_text("code 0\ntime 1010\nwhole\n")
    (pushed.folder / "ended").symlink_to(tmp_path / "other")
    assert (await pushed.when(GlideinStatus(GlideinState.ENDED, "FAILED", 1))).state is RoutedJobState.GONE


async def test_links_that_lead_round_in_a_circle_cost_a_copy_only_what_they_stand_for(pushed: Pushed) -> None:
    for name in ("stdout", "stderr"):
        (pushed.folder / "work" / name).unlink(missing_ok=True)
    (pushed.folder / "work" / "stdout").symlink_to("stdout")
    (pushed.folder / "work" / "stderr").write_text("x")
    left = await pushed.target.collect(pushed.reference)
    assert [file.name for file in left] == ["stderr"]


async def test_a_copy_that_ended_before_its_answer_came_is_found_by_what_it_wrote(tmp_path: Path) -> None:
    batch = FakeBatchSystem(loses_answers=True)
    target = BatchQueueTarget(QUEUE, batch, RoutedJobFolders(tmp_path, OutputLimits(MOST_BYTES)), ORIGIN)
    (answer,) = await target.submit([a_copy(NAME, "/bin/true")], HeldFiles())
    assert not isinstance(answer, Submitted | NotSubmitted)
    (tmp_path / CALLED / "ended").write_text("code 4\ntime 1010\nwhole\n")
    batch.end("fake.1", 0)
    reference = (await target.find_again([NAME]))[NAME]
    assert isinstance(reference, str)
    status = (await target.poll([reference]))[reference]
    assert (status.state, status.exit_code) == (RoutedJobState.COMPLETED, 4)


async def test_a_batch_system_that_cannot_say_what_it_has_gets_no_copy_twice(tmp_path: Path) -> None:
    batch = FakeBatchSystem(loses_answers=True)
    target = BatchQueueTarget(QUEUE, batch, RoutedJobFolders(tmp_path, OutputLimits(MOST_BYTES)), ORIGIN)
    copy = a_copy(NAME, "/bin/sleep", "1000")
    await target.submit([copy], HeldFiles())
    batch.is_reachable = False
    (answer,) = await target.submit([copy], HeldFiles())
    assert not isinstance(answer, Submitted | NotSubmitted), "it may have been submitted"
    batch.is_reachable, batch.loses_answers = True, False
    (answer,) = await target.submit([copy], HeldFiles())
    assert isinstance(answer, Submitted)
    assert len(batch.requests) == 1


async def test_what_is_kept_of_a_copy_is_no_secret_of_its_job(pushed: Pushed) -> None:
    kept = json.loads((pushed.folder / "copy.json").read_text())
    assert kept.keys() == {"stdout", "stderr", "output_files", "seen", "queue", "ce_type", "batch_id", "cut"}


async def test_a_copy_whose_folder_is_not_here_is_unknown_however_long_and_however_it_ended(tmp_path: Path) -> None:
    batch = FakeBatchSystem()
    elsewhere = BatchQueueTarget(
        QUEUE, batch, RoutedJobFolders(tmp_path / "elsewhere", OutputLimits(MOST_BYTES)), ORIGIN
    )
    here = BatchQueueTarget(QUEUE, batch, RoutedJobFolders(tmp_path / "here", OutputLimits(MOST_BYTES)), ORIGIN)
    (reference,) = await submitted(elsewhere, HeldFiles(), a_copy(NAME, "/bin/true"))
    batch.end("fake.1", 0)
    said = [(await here.poll([reference]))[reference].state for _ in range(100)]
    assert set(said) == {RoutedJobState.UNKNOWN}


async def test_where_the_shared_folder_is_away_no_copy_is_said_not_to_be_there(tmp_path: Path) -> None:
    away = BatchQueueTarget(
        QUEUE, FakeBatchSystem(), RoutedJobFolders(tmp_path / "away" / "copies", OutputLimits(MOST_BYTES)), ORIGIN
    )
    with pytest.raises(WorldError, match="is not there"):
        await away.find_again([NAME])
    assert not (tmp_path / "away").exists()


def age(folder: Path, days: int) -> None:
    """Let nobody have touched a folder for so long."""
    then = (now() - timedelta(days=days)).timestamp()
    os.utime(folder, (then, then))


async def test_only_what_is_old_and_this_router_s_own_is_taken_for_left_behind(pushed: Pushed, tmp_path: Path) -> None:
    another = BatchQueueTarget(
        QUEUE, FakeBatchSystem(), RoutedJobFolders(tmp_path, OutputLimits(MOST_BYTES)), "another"
    )
    await submitted(another, HeldFiles(), a_copy(NAME, "/bin/true"))
    (tmp_path / f"pilotage-8-1-{ORIGIN}" / "work").mkdir(parents=True)
    for name, days in ((CALLED, 3), (f"{NAME}-another", 3), (f"pilotage-8-1-{ORIGIN}", 3)):
        age(tmp_path / name, days)
    yesterday = now() - timedelta(days=1)
    found = {NAME: pushed.reference, "pilotage-8-1": ""}
    assert await pushed.target.leftovers((), yesterday) == found, "what was never made ready has no reference"
    assert await pushed.target.leftovers([NAME, "pilotage-8-1"], yesterday) == {}
    age(pushed.folder, 0)
    assert await pushed.target.leftovers((), yesterday) == {"pilotage-8-1": ""}


async def test_a_copy_at_another_queue_is_left_to_that_queue_until_it_has_ended(pushed: Pushed, tmp_path: Path) -> None:
    folders = RoutedJobFolders(tmp_path, OutputLimits(MOST_BYTES))
    other = BatchQueueTarget(QueueId("LOCAL", "here", "other"), FakeBatchSystem(), folders, ORIGIN)
    assert await other.leftovers((), now() + timedelta(days=1)) == {}
    (pushed.folder / "ended").write_text("code 0\ntime 1010\nwhole\n")
    assert await other.leftovers((), now() + timedelta(days=1)) == {NAME: ""}


class OddFiles(HeldFiles):
    """Files of which the one called `odd` cannot be brought, in a way that nobody has foreseen."""

    async def fetch(self, job_id: int, file: InputFile, to: Path) -> None:
        if file.name == "odd":
            raise RecursionError("a path without end")
        await super().fetch(job_id, file, to)


async def test_what_nobody_has_foreseen_of_one_copy_holds_up_none_that_is_submitted_with_it(
    tmp_path: Path,
) -> None:
    target = BatchQueueTarget(
        QUEUE, LocalBatchSystem(tmp_path), RoutedJobFolders(tmp_path, OutputLimits(MOST_BYTES)), ORIGIN
    )
    files = OddFiles()
    odd = a_copy("pilotage-8-1", "/bin/true", input_files=(files.add("odd", "x"),))
    fine = a_copy("pilotage-9-1", "/bin/true", input_files=(files.add("fine", "x"),))
    with capture_logs() as logs:
        refused, taken = await target.submit([odd, fine], files)
    assert refused == RouteUnsuitable("unexpected error: RecursionError('a path without end')")
    assert isinstance(taken, Submitted)
    assert (await end_of(target, taken.glidein_id)).exit_code == 0
    assert ("error", f"pilotage-8-1-{ORIGIN}") in [(line["log_level"], line.get("routed_job")) for line in logs]
    assert not (tmp_path / f"pilotage-8-1-{ORIGIN}").exists()
