"""`pilotage health` with a running server: black holes, and holding and opening locations."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.resources.tree import QueueId
from pilotage.v1 import jobs_pb2, matcher_service_pb2, values_pb2
from pilotage_agents.server_link import AgentServerLink
from pilotage_server.core.identity import Role
from support.commands import KEYS, Command, environment_of
from support.processes import until
from support.server import RunningServer
from support.wire_grid import WireGrid, WirePilot, a_job


@pytest.fixture
def pilotage(server: RunningServer, tmp_path: Path) -> Command:
    token = server.token(Role.OPERATOR, owner="olga")
    return Command(environment_of(tmp_path, PILOTAGE_SERVER=server.address, PILOTAGE_TOKEN=token))


def a_pilot(grid: WireGrid, node: str) -> WirePilot:
    pilot = grid.start_pilot()
    pilot.heartbeat(node=matcher_service_pb2.NodeState(name=node, amounts=values_pb2.Amounts(cpus=1)))
    return pilot


async def test_black_hole_is_throttled_until_an_operator_opens_it(server: RunningServer, pilotage: Command) -> None:
    grid = WireGrid(server)
    grid.put_tree()
    grid.submit(*[a_job() for _ in range(40)])
    good_node, black_hole = a_pilot(grid, "fine"), a_pilot(grid, "hole")

    throttles: list[dict[str, object]] = []

    def hole_is_found() -> bool:
        """End a job well on the good node and badly on the other; return whether the server has throttled it."""
        for match in good_node.request_jobs().matches:
            good_node.report(match.job_id, outcome=jobs_pb2.OUTCOME_EXITED, exit_code=0)
        for match in black_hole.request_jobs().matches:
            black_hole.report(match.job_id, outcome=jobs_pb2.OUTCOME_EXITED, exit_code=1)
        throttles[:] = pilotage.json_objects("health", "list")
        return bool(throttles)

    await until(hole_is_found)
    (throttle,) = throttles
    assert list(throttle) == list(KEYS["health list"])
    assert (throttle["place"], throttle["state"], throttle["node"]) == ("SITE/hole", "throttled", "hole")
    assert not black_hole.request_jobs().matches
    assert pilotage("health", "open", "SITE/hole") == "SITE/hole is open\n"
    assert len(black_hole.request_jobs().matches) == 1
    grid.close()


async def test_site_director_sees_held_queue_and_reason(server: RunningServer, pilotage: Command) -> None:
    WireGrid(server).put_tree()
    pilotage("health", "hold", "SITE/ce1/long", "--reason", "new kernel")
    async with server.async_channel(server.token(Role.DIRECTOR, owner="agent:director")) as channel:
        (supply,) = (await AgentServerLink(channel).demand([QueueId("SITE", "ce1", "long")])).supplies
    assert supply.held
    assert supply.throttled == "queue SITE/ce1/long is held by olga: new kernel; it gets no job"


def test_queue_can_be_held_for_a_time(server: RunningServer, pilotage: Command) -> None:
    grid = WireGrid(server)
    grid.put_tree()
    grid.submit(a_job())
    pilot = a_pilot(grid, "node")
    assert pilotage("health", "hold", "site/ce1/long", "--reason", "new kernel", "--for", "1 h").startswith(
        "SITE/ce1/long is held until "
    )
    assert not pilot.request_jobs().matches
    assert "new kernel" in pilotage("health", "list")
    pilotage("health", "open", "SITE/ce1/long")
    assert len(pilot.request_jobs().matches) == 1
    grid.close()


def test_holding_an_unknown_node_prints_a_warning(server: RunningServer, pilotage: Command) -> None:
    WireGrid(server).put_tree()
    held = pilotage.run("health", "hold", "site/n17", "--reason", "new disk")
    assert (held.returncode, held.stdout) == (0, "SITE/n17 is held\n")
    assert held.stderr == "warning: no pilot has reported a node n17 at SITE; it is held for when one comes\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["hold", "SITE//x", "--reason", "r"], "is not a place; write SITE, SITE/NODE or SITE/CE/QUEUE"),
        (["hold", "SITE", "--reason", " "], "reason: is missing"),
        (["open", "SITE/never"], "node SITE/never"),
    ],
)
def test_invalid_health_command_prints_its_error(
    server: RunningServer, pilotage: Command, arguments: list[str], message: str
) -> None:
    WireGrid(server).put_tree()
    rejected = pilotage.run("health", *arguments)
    assert (rejected.returncode, rejected.stdout) == (2, "")
    assert message in rejected.stderr
