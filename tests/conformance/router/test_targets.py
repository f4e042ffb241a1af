"""The contract of all targets of routed jobs: submit, poll, cancel, output, leftovers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from pilotage.jobs.files import OutputLimits
from pilotage.resources.tree import QueueId
from pilotage_agents.batch_systems.base import NotSubmitted, Submitted
from pilotage_agents.batch_systems.hosts import LocalHost
from pilotage_agents.batch_systems.htcondor import HtcondorBatchSystem
from pilotage_agents.batch_systems.local import LocalBatchSystem
from pilotage_agents.batch_systems.settings import HtcondorBatchSystemSettings, SlurmBatchSystemSettings
from pilotage_agents.batch_systems.slurm import SlurmBatchSystem
from pilotage_agents.router.core.model import RoutedJobState
from pilotage_agents.router.ports import RefusedByJob, RoutedJobTarget
from pilotage_agents.router.targets.job_folders import RoutedJobFolders
from pilotage_agents.router.targets.queue import BatchQueueTarget
from pilotage_agents.router.targets.remote_server import RemoteServer
from pilotage_agents.router.targets.server import RemoteJobFolders, RemoteServerTarget
from support.fake_batch_systems import ProcessSchedd
from support.process_grid import ProcessGrid, a_process_grid
from support.routed_job_targets import FakeTarget, InMemoryFiles, a_copy, end_of, submitted, texts_of, wait_for_status
from support.slurm import PARTITION, SlurmCluster

SLEEP = ("/bin/sleep", "1000")
EARLIER, LATER = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
QUEUE = QueueId("LOCAL", "here", "default")


@dataclass
class TargetUnderTest:
    """A target under test; `restarted` returns it as a restarted router sees it. Jobs are named `name`-NUMBER."""

    target: RoutedJobTarget
    restarted: Callable[[], RoutedJobTarget]
    name: str = "pilotage-7"
    files: InMemoryFiles = field(default_factory=InMemoryFiles)
    references: list[str] = field(default_factory=list)

    async def submit(self, *commands: tuple[str, ...]) -> list[str]:
        """Submit jobs that run these commands, require success, and return their references."""
        first = len(self.references)
        jobs = [a_copy(f"{self.name}-{first + n}", *command) for n, command in enumerate(commands)]
        found = await submitted(self.target, self.files, *jobs)
        self.references += found
        return found


def over_local(folder: Path) -> BatchQueueTarget:
    return BatchQueueTarget(QUEUE, LocalBatchSystem(folder), RoutedJobFolders(folder, OutputLimits(1 << 20)), "here")


def over_slurm(folder: Path, cluster: SlurmCluster) -> BatchQueueTarget:
    settings = SlurmBatchSystemSettings(type="slurm", command_prefix=cluster.command_prefix)
    system = SlurmBatchSystem("slurm", settings, LocalHost())
    return BatchQueueTarget(
        QueueId("SITE", "slurm1", PARTITION), system, RoutedJobFolders(folder, OutputLimits(1 << 20)), "here"
    )


def over_htcondor(folder: Path, schedd: ProcessSchedd) -> BatchQueueTarget:
    system = HtcondorBatchSystem("pool", HtcondorBatchSystemSettings(type="htcondor"), schedd)
    return BatchQueueTarget(QUEUE, system, RoutedJobFolders(folder, OutputLimits(1 << 20)), "here")


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessGrid]:
    with a_process_grid(tmp_path_factory.mktemp("another")) as grid:
        yield grid


@asynccontextmanager
async def over_server(folder: Path, grid: ProcessGrid) -> AsyncIterator[TargetUnderTest]:
    """Return another server, which has a pilot, as a target."""
    (folder / "token").write_text(grid.server.token(owner="router"))
    async with grid.pilot():
        server = RemoteServer([grid.server.address], None)
        folders = RemoteJobFolders(folder / "copies", folder.name)
        new = partial(RemoteServerTarget, server, folders, folder / "token")
        try:
            yield TargetUnderTest(new(), new)
        finally:
            await server.close()


REAL = [pytest.param(target, marks=pytest.mark.process) for target in ("slurm", "server")]


@pytest.fixture(params=["fake", "queue", "htcondor", *REAL])
async def under_test(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[TargetUnderTest]:
    async with AsyncExitStack() as stack:
        match request.param:
            case "fake":
                fake = FakeTarget(tmp_path)
                found = TargetUnderTest(fake, lambda: fake)
            case "server":
                found = await stack.enter_async_context(over_server(tmp_path, request.getfixturevalue("grid")))
            case "slurm":
                cluster = request.getfixturevalue("slurm")
                found = TargetUnderTest(over_slurm(tmp_path, cluster), partial(over_slurm, tmp_path, cluster))
            case "htcondor":
                schedd = ProcessSchedd()
                stack.callback(schedd.close)
                new = partial(over_htcondor, tmp_path, schedd)
                found = TargetUnderTest(new(), new)
            case _:
                found = TargetUnderTest(over_local(tmp_path), partial(over_local, tmp_path))
        yield found
        await found.target.cancel(found.references)


async def test_completed_job_has_exit_code(under_test: TargetUnderTest) -> None:
    references = await under_test.submit(("/bin/true",), ("/bin/false",))
    for reference, exit_code in zip(references, (0, 1), strict=True):
        status = await end_of(under_test.target, reference)
        assert (status.state, status.exit_code) == (RoutedJobState.COMPLETED, exit_code)


async def test_output_can_be_read_repeatedly(under_test: TargetUnderTest) -> None:
    (reference,) = await under_test.submit(("/bin/echo", "'hello  world'"))
    await end_of(under_test.target, reference)
    assert (await texts_of(under_test.target, reference))["stdout"] == "hello  world\n"
    assert (await texts_of(under_test.target, reference))["stdout"] == "hello  world\n", "repeatable"


async def test_cancel_ends_only_the_given_job(under_test: TargetUnderTest) -> None:
    first, second = await under_test.submit(SLEEP, SLEEP)
    await wait_for_status(under_test.target, first, (RoutedJobState.RUNNING,))
    await wait_for_status(under_test.target, second, (RoutedJobState.RUNNING,))
    await under_test.target.cancel([first])
    await end_of(under_test.target, first)
    assert (await under_test.target.poll([second]))[second].state is RoutedJobState.RUNNING


async def test_restarted_router_finds_its_jobs(under_test: TargetUnderTest) -> None:
    running, ended = await under_test.submit(SLEEP, ("/bin/echo", "hello"))
    await end_of(under_test.target, ended)
    restarted = under_test.restarted()
    await wait_for_status(restarted, running, (RoutedJobState.RUNNING,))
    assert (await end_of(restarted, ended)).exit_code == 0
    assert (await texts_of(restarted, ended))["stdout"] == "hello\n"
    await restarted.cancel([running])
    await end_of(restarted, running)


async def test_finds_jobs_by_name(under_test: TargetUnderTest) -> None:
    running, ended = await under_test.submit(SLEEP, ("/bin/true",))
    await end_of(under_test.target, ended)
    names = [f"{under_test.name}-0", f"{under_test.name}-1"]
    found = await under_test.restarted().find_again([*names, f"{under_test.name}-99"])
    assert dict(found) == dict(zip(names, (running, ended), strict=True))


async def test_repeated_submission_returns_first_reference(under_test: TargetUnderTest) -> None:
    (reference,) = await under_test.submit(SLEEP)
    again = a_copy(f"{under_test.name}-0", *SLEEP)
    assert await submitted(under_test.restarted(), under_test.files, again) == [reference]
    await under_test.target.cancel([reference])
    await end_of(under_test.target, reference)
    assert await submitted(under_test.target, under_test.files, again) == [reference], (
        "an ended job is not submitted again"
    )


async def test_missing_input_fails_only_its_submission(under_test: TargetUnderTest) -> None:
    (reference,) = await under_test.submit(("/bin/true",))
    lost = under_test.files.add("input", "content")
    under_test.files.contents.clear()
    answer, other = await under_test.target.submit(
        [a_copy(f"{under_test.name}-8", "/bin/true", input_files=(lost,)), a_copy(f"{under_test.name}-0", "/bin/true")],
        under_test.files,
    )
    assert isinstance(answer, NotSubmitted)
    assert "input" in answer.reason
    assert not isinstance(other, NotSubmitted)
    assert not await under_test.target.find_again([f"{under_test.name}-8"])
    await end_of(under_test.target, reference)


async def test_invalid_description_fails_only_its_submission(under_test: TargetUnderTest) -> None:
    bad, good = a_copy(f"{under_test.name}-8", "/bin/true", "'open"), a_copy(f"{under_test.name}-9", "/bin/true")
    rejected, accepted = await under_test.target.submit([bad, good], under_test.files)
    assert isinstance(rejected, RefusedByJob)
    assert isinstance(accepted, Submitted)
    assert not await under_test.target.find_again([bad.name])
    await end_of(under_test.target, accepted.glidein_id)


async def test_unknown_reference_has_state_unknown(under_test: TargetUnderTest) -> None:
    assert (await under_test.target.poll(["no such"]))["no such"].state is RoutedJobState.UNKNOWN
    await under_test.target.cancel(["no such"])


async def test_forgotten_job_leaves_nothing(under_test: TargetUnderTest) -> None:
    (reference,) = await under_test.submit(("/bin/true",))
    await end_of(under_test.target, reference)
    await under_test.target.forget([f"{under_test.name}-0"])
    assert await under_test.restarted().leftovers((), LATER) == {}
    await under_test.target.forget([f"{under_test.name}-0"])


async def test_lists_old_leftovers_of_unknown_jobs(under_test: TargetUnderTest) -> None:
    known, lost = await under_test.submit(("/bin/true",), SLEEP)
    await end_of(under_test.target, known)
    restarted = under_test.restarted()
    assert await restarted.leftovers([f"{under_test.name}-0"], LATER) == {f"{under_test.name}-1": lost}
    assert await restarted.leftovers((), EARLIER) == {}


async def test_failed_submissions_leave_nothing(under_test: TargetUnderTest) -> None:
    input_lost = under_test.files.add("input", "content")
    under_test.files.contents.clear()
    bad = a_copy(f"{under_test.name}-7", "/bin/true", "'open")
    await under_test.target.submit(
        [bad, a_copy(f"{under_test.name}-8", "/bin/true", input_files=(input_lost,))], under_test.files
    )
    assert await under_test.target.leftovers((), LATER) == {}


async def test_accepts_empty_requests(under_test: TargetUnderTest) -> None:
    assert await under_test.target.submit([], under_test.files) == ()
    assert await under_test.target.poll([]) == {}
    assert await under_test.target.find_again([]) == {}
    await under_test.target.cancel([])
    await under_test.target.forget([])
    assert await under_test.target.leftovers([], LATER) == {}
