"""A router's link to a server, real and in memory, and what is said over it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest

from pilotage.classads.library import AdValue
from pilotage.resources.tree import QueueId
from pilotage.v1.resource_service_pb2 import PutTreeRequest
from pilotage.v1.resource_service_pb2_grpc import ResourceServiceStub
from pilotage.values.leadership import Leadership
from pilotage.values.routing import NewRoutedJob
from pilotage_agents.router.core.model import RoutedJobOutcome, RoutedJobReport, RoutedJobState, RoutedJobStatus
from pilotage_agents.router.ports import Routed, RouterLink
from pilotage_agents.router.server_link import RouterServerLink
from pilotage_agents.server_link import AgentServerLink
from pilotage_server.core.identity import Role
from support.fake_router_link import FakeRouterLink
from support.server import RunningServer, request_id, running_server
from support.users_jobs import RealJobs

QUEUE = QueueId("Lyon", "ce1", "long")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
TREE = '[sites.Lyon.ces.ce1]\nCEType = "local"\nqueues = { long = { CPUs = 4 } }\n'


@dataclass
class Scene:
    """A link and the server behind it."""

    link: RouterLink
    submit: Callable[..., list[int]]
    change: Callable[[str, int], None]
    state: Callable[[int], str]
    output: Callable[[int], dict[str, bytes]]
    ad: Callable[[int], Mapping[str, AdValue]]

    async def route(self, *job_ids: int, route: str = "A") -> list[int]:
        """Take jobs, which must be given; return the attempts."""
        answers = await self.link.route(request_id(), [a_copy(job_id, route) for job_id in job_ids])
        return [answer.attempt for answer in answers if isinstance(answer, Routed)]

    async def report(self, *reports: RoutedJobReport) -> dict[tuple[int, int], str]:
        """Report, and return what was refused."""
        return dict((await self.link.report(request_id(), reports)).refused)

    async def waiting(self) -> list[int]:
        """Read the whole feed; return who waits in the end."""
        waiting: dict[int, None] = {}
        position = 0
        while (page := await self.link.next_events(position)).position != position:
            position = page.position
            for event in page.events:
                if event.state == "WAITING":
                    waiting[event.job_id] = None
                else:
                    waiting.pop(event.job_id, None)
        return list(waiting)


def a_copy(job_id: int, route: str = "A", queue: QueueId | None = QUEUE) -> NewRoutedJob:
    """Return a copy that is about to be made."""
    return NewRoutedJob(job_id, route, f"queue {queue}" if queue else "server elsewhere:4711", queue)


def ended(job_id: int, outcome: str, state: RoutedJobState = RoutedJobState.GONE, **fields: Any) -> RoutedJobReport:
    """Return the report of an end."""
    reason, files = fields.pop("reason", ""), fields.pop("files", ())
    status = RoutedJobStatus(state, **fields)
    return RoutedJobReport(job_id, 1, state="DONE", outcome=RoutedJobOutcome(outcome, status, reason, files))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Return a real server with a queue."""
    with running_server(tmp_path_factory.mktemp("server")) as running:
        with running.channel(running.token(Role.OPERATOR)) as channel:
            tree = PutTreeRequest(request_id=request_id(), text=TREE, format="toml")
            ResourceServiceStub(channel).PutTree(tree)
        yield running


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.process), "fake"])
async def scene(request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    """Return each of the links in its turn: to the real server, and to the one in memory."""
    if request.param == "fake":
        fake = FakeRouterLink()
        yield Scene(
            fake,
            fake.submit,
            lambda change, job_id: getattr(fake, change)(job_id),
            lambda job_id: fake.jobs[job_id].state,
            lambda job_id: fake.jobs[job_id].output,
            lambda job_id: fake.jobs[job_id].shown,
        )
        return
    running: RunningServer = request.getfixturevalue("server")
    jobs = RealJobs(running)
    async with running.async_channel(running.token(Role.AGENT, owner="agent:router")) as channel:
        turn = Leadership(f"job router {request_id()}", "this one")
        assert (await AgentServerLink(channel).take_leadership(turn, 60, "here")).granted
        link = RouterServerLink(channel, turn, most_events=3)
        yield Scene(link, jobs.submit, jobs.change, jobs.state, jobs.output, jobs.ad)
