"""The contract of the site director's link to a server, for a real server and the one in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from pilotage.errors import NotFoundError
from pilotage.job_description import NOTHING, Value
from pilotage.resources.tree import QueueId
from pilotage.v1.resource_service_pb2 import PutTreeRequest
from pilotage.v1.resource_service_pb2_grpc import ResourceServiceStub
from pilotage.values.demand import QueueSupply
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage_agents.runtime.link import TreeQueue
from pilotage_agents.server_link import AgentServerLink
from pilotage_agents.site_director.ports import DirectorLink
from pilotage_server.core.identity import Role
from support.director_grid import FakeDirectorLink
from support.server import request_id, running_server

QUEUE, OTHER = QueueId("Lyon", "ce1", "short"), QueueId("Lyon", "ce1", "long")
UNKNOWN = QueueId("Lyon", "ce1", "none")
TREE = """
[sites.Lyon.ces.ce1]
CEType = "local"
queues = { short = { CPUs = 2 }, long = { CPUs = 4 } }
"""


@pytest.fixture(params=[pytest.param("real", marks=pytest.mark.process), "fake"])
async def link(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[DirectorLink]:
    if request.param == "fake":
        short: dict[str, Value] = {"CEType": "local", "CPUs": 2}
        yield FakeDirectorLink((TreeQueue(QUEUE, True, short), TreeQueue(OTHER, True, {**short, "CPUs": 4})))
        return
    with running_server(tmp_path / "server") as server:
        async with server.async_channel(server.token(Role.OPERATOR)) as channel:
            tree = PutTreeRequest(request_id=request_id(), text=TREE, format="toml")
            await ResourceServiceStub(channel).PutTree(tree)
        async with server.async_channel(server.token(Role.DIRECTOR, owner="agent:director")) as channel:
            yield AgentServerLink(channel)


async def test_queues_are_in_tree_order_with_parameters(link: DirectorLink) -> None:
    first, second = await link.queues()
    assert (first.id, second.id) == (QUEUE, OTHER)
    assert first.enabled
    assert first.parameters["CPUs"] == 2


async def test_unknown_queue_gets_no_pilots(link: DirectorLink) -> None:
    assert (await link.pools_of([QUEUE, UNKNOWN])).pools[1] is None
    known, unknown = (await link.demand([QUEUE, UNKNOWN])).supplies
    assert (known.known, unknown.known) == (True, False)
    with pytest.raises(NotFoundError):
        await link.register_pilots(UNKNOWN, 1, (), 0)


async def test_no_jobs_give_no_demand(link: DirectorLink) -> None:
    answer = await link.demand([QUEUE, OTHER])
    assert answer.demands == ()
    assert [replace(supply, parameters=NOTHING) for supply in answer.supplies] == [QueueSupply(True)] * 2


async def test_registered_pilots_wait_until_reported_ended(link: DirectorLink) -> None:
    pilots = await link.register_pilots(QUEUE, 3, (), 3600)
    assert len({pilot.stamp for pilot in pilots}) == 3
    assert all(pilot.token for pilot in pilots)
    first, second, _ = pilots
    assert await _waiting_pilots(link) == (3, 0)
    answer = await link.report_glideins(
        [
            GlideinReport(first.stamp, "glidein.1", PilotState.SUBMITTED),
            GlideinReport(second.stamp, "", PilotState.ENDED, reason="the submission failed"),
            GlideinReport("unknown", "glidein.2", PilotState.ENDED),
        ]
    )
    assert (answer.unknown, answer.worked) == (("unknown",), ())
    assert await _waiting_pilots(link) == (2, 0)


async def test_renews_tokens_of_pilots_that_have_not_ended(link: DirectorLink) -> None:
    waiting, ended = await link.register_pilots(QUEUE, 2, (), 3600)
    await link.report_glideins([GlideinReport(ended.stamp, "glidein.1", PilotState.ENDED)])
    (renewed,) = await link.renew_credentials([waiting.stamp, ended.stamp, "unknown"], 7200)
    assert renewed.stamp == waiting.stamp
    assert renewed.token not in ("", waiting.token)


async def _waiting_pilots(link: DirectorLink) -> tuple[int, int]:
    first, second = (await link.demand([QUEUE, OTHER])).supplies
    return first.pilots_waiting, second.pilots_waiting
