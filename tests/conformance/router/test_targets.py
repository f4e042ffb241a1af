"""What every place that copies go to does, whatever it is made of."""

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
from pilotage_agents.batch_systems.local import LocalBatchSystem
from pilotage_agents.batch_systems.settings import SlurmBatchSystemSettings
from pilotage_agents.batch_systems.slurm import SlurmBatchSystem
from pilotage_agents.router.core.model import RoutedJobState
from pilotage_agents.router.places.job_folders import RoutedJobFolders
from pilotage_agents.router.places.queue import BatchQueueTarget
from pilotage_agents.router.places.remote_server import RemoteServer
from pilotage_agents.router.places.server import RemoteJobFolders, RemoteServerTarget
from pilotage_agents.router.ports import RefusedByJob, RoutedJobTarget
from support.copy_targets import FakeCopyTarget, HeldFiles, a_copy, end_of, status_when, submitted, texts_of
from support.process_grid import ProcessGrid, a_process_grid
from support.slurm import PARTITION, SlurmCluster

RUNS_FOR_LONG = ("/bin/sleep", "1000")
EARLIER, LATER = datetime(2000, 1, 1, tzinfo=UTC), datetime(2200, 1, 1, tzinfo=UTC)
QUEUE = QueueId("LOCAL", "here", "default")


@dataclass
class Place:
    """A target under test; `restarted` gives what a router sees after its restart. Names are `name` and a number."""

    target: RoutedJobTarget
    restarted: Callable[[], RoutedJobTarget]
    name: str = "pilotage-7"
    files: HeldFiles = field(default_factory=HeldFiles)
    references: list[str] = field(default_factory=list)

    async def submit(self, *commands: tuple[str, ...]) -> list[str]:
        """Submit copies that run these commands, which must be taken; returns their references."""
        first = len(self.references)
        copies = [a_copy(f"{self.name}-{first + n}", *command) for n, command in enumerate(commands)]
        found = await submitted(self.target, self.files, *copies)
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


@pytest.fixture(scope="module")
def grid(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessGrid]:
    with a_process_grid(tmp_path_factory.mktemp("another")) as grid:
        yield grid


@asynccontextmanager
async def over_server(folder: Path, grid: ProcessGrid) -> AsyncIterator[Place]:
    """Give another server, which has a pilot, as a place for copies."""
    (folder / "token").write_text(grid.server.token(owner="router"))
    async with grid.pilot():
        server = RemoteServer([grid.server.address], None)
        folders = RemoteJobFolders(folder / "copies", folder.name)
        new = partial(RemoteServerTarget, server, folders, folder / "token")
        try:
            yield Place(new(), new)
        finally:
            await server.close()


REAL = [pytest.param(target, marks=pytest.mark.process) for target in ("slurm", "server")]


@pytest.fixture(params=["fake", "queue", *REAL])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    async with AsyncExitStack() as stack:
        match request.param:
            case "fake":
                fake = FakeCopyTarget(tmp_path)
                found = Place(fake, lambda: fake)
            case "server":
                found = await stack.enter_async_context(over_server(tmp_path, request.getfixturevalue("grid")))
            case "slurm":
                cluster = request.getfixturevalue("slurm")
                found = Place(over_slurm(tmp_path, cluster), partial(over_slurm, tmp_path, cluster))
            case _:
                found = Place(over_local(tmp_path), partial(over_local, tmp_path))
        yield found
        await found.target.cancel(found.references)


async def test_a_copy_that_ends_by_itself_says_how(place: Place) -> None:
    well, badly = await place.submit(("/bin/true",), ("/bin/false",))
    assert ((await end_of(place.target, well)).state, (await end_of(place.target, well)).exit_code) == (
        RoutedJobState.COMPLETED,
        0,
    )
    assert ((await end_of(place.target, badly)).state, (await end_of(place.target, badly)).exit_code) == (
        RoutedJobState.COMPLETED,
        1,
    )


async def test_what_a_copy_has_written_comes_back(place: Place) -> None:
    (reference,) = await place.submit(("/bin/echo", "'hello  world'"))
    await end_of(place.target, reference)
    assert (await texts_of(place.target, reference))["stdout"] == "hello  world\n"
    assert (await texts_of(place.target, reference))["stdout"] == "hello  world\n", "as often as it is asked for"


async def test_a_copy_runs_until_it_is_cancelled_and_its_neighbour_goes_on(place: Place) -> None:
    first, second = await place.submit(RUNS_FOR_LONG, RUNS_FOR_LONG)
    await status_when(place.target, first, (RoutedJobState.RUNNING,))
    await status_when(place.target, second, (RoutedJobState.RUNNING,))
    await place.target.cancel([first])
    await end_of(place.target, first)
    assert (await place.target.poll([second]))[second].state is RoutedJobState.RUNNING


async def test_copies_outlive_their_router_and_are_found_by_the_next_one(place: Place) -> None:
    running, ended = await place.submit(RUNS_FOR_LONG, ("/bin/echo", "hello"))
    await end_of(place.target, ended)
    after = place.restarted()
    await status_when(after, running, (RoutedJobState.RUNNING,))
    assert (await end_of(after, ended)).exit_code == 0
    assert (await texts_of(after, ended))["stdout"] == "hello\n"
    await after.cancel([running])
    await end_of(after, running)


async def test_a_copy_whose_answer_was_lost_is_found_by_its_name(place: Place) -> None:
    running, ended = await place.submit(RUNS_FOR_LONG, ("/bin/true",))
    await end_of(place.target, ended)
    names = [f"{place.name}-0", f"{place.name}-1"]
    found = await place.restarted().find_again([*names, f"{place.name}-99"])
    assert dict(found) == dict(zip(names, (running, ended), strict=True))


async def test_a_copy_that_was_made_before_is_not_made_twice(place: Place) -> None:
    (reference,) = await place.submit(RUNS_FOR_LONG)
    again = a_copy(f"{place.name}-0", *RUNS_FOR_LONG)
    assert await submitted(place.restarted(), place.files, again) == [reference]
    await place.target.cancel([reference])
    await end_of(place.target, reference)
    assert await submitted(place.target, place.files, again) == [reference], "not even one that has ended"


async def test_a_copy_whose_input_is_not_there_is_not_made_and_its_neighbour_is(place: Place) -> None:
    (reference,) = await place.submit(("/bin/true",))
    lost = place.files.add("input", "content")
    place.files.contents.clear()
    answer, other = await place.target.submit(
        [a_copy(f"{place.name}-8", "/bin/true", input_files=(lost,)), a_copy(f"{place.name}-0", "/bin/true")],
        place.files,
    )
    assert isinstance(answer, NotSubmitted)
    assert "input" in answer.reason
    assert not isinstance(other, NotSubmitted)
    assert not await place.target.find_again([f"{place.name}-8"])
    await end_of(place.target, reference)


async def test_a_job_that_can_run_nowhere_as_it_is_described_is_told_so_and_its_neighbour_runs(place: Place) -> None:
    bad, good = a_copy(f"{place.name}-8", "/bin/true", "'open"), a_copy(f"{place.name}-9", "/bin/true")
    refused, taken = await place.target.submit([bad, good], place.files)
    assert isinstance(refused, RefusedByJob)
    assert isinstance(taken, Submitted)
    assert not await place.target.find_again([bad.name])
    await end_of(place.target, taken.glidein_id)


async def test_a_reference_that_means_nothing_is_unknown_and_not_gone(place: Place) -> None:
    assert (await place.target.poll(["no such"]))["no such"].state is RoutedJobState.UNKNOWN
    await place.target.cancel(["no such"])


async def test_a_copy_that_was_brought_to_an_end_leaves_nothing(place: Place) -> None:
    (reference,) = await place.submit(("/bin/true",))
    await end_of(place.target, reference)
    await place.target.forget([f"{place.name}-0"])
    assert await place.restarted().leftovers((), LATER) == {}
    await place.target.forget([f"{place.name}-0"])


async def test_what_lies_there_of_copies_that_nobody_knows_is_found_by_their_names_when_it_is_old(place: Place) -> None:
    known, lost = await place.submit(("/bin/true",), RUNS_FOR_LONG)
    await end_of(place.target, known)
    after = place.restarted()
    assert await after.leftovers([f"{place.name}-0"], LATER) == {f"{place.name}-1": lost}
    assert await after.leftovers((), EARLIER) == {}


async def test_what_is_not_made_leaves_nothing(place: Place) -> None:
    input_lost = place.files.add("input", "content")
    place.files.contents.clear()
    bad = a_copy(f"{place.name}-7", "/bin/true", "'open")
    await place.target.submit([bad, a_copy(f"{place.name}-8", "/bin/true", input_files=(input_lost,))], place.files)
    assert await place.target.leftovers((), LATER) == {}


async def test_nothing_asked_is_answered_with_nothing(place: Place) -> None:
    assert await place.target.submit([], place.files) == ()
    assert await place.target.poll([]) == {}
    assert await place.target.find_again([]) == {}
    await place.target.cancel([])
    await place.target.forget([])
    assert await place.target.leftovers([], LATER) == {}
