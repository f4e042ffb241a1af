"""Black holes over the wire: a real server finds one, and an operator sees and changes what it knows."""

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


async def test_a_node_on_which_jobs_fail_is_throttled_and_its_operator_opens_it(
    server: RunningServer, pilotage: Command
) -> None:
    grid = WireGrid(server)
    grid.put_tree()
    grid.submit(*[a_job() for _ in range(40)])
    fine, hole = a_pilot(grid, "fine"), a_pilot(grid, "hole")

    known: list[dict[str, object]] = []

    def is_found() -> bool:
        """Let the good node do a job, and the bad one eat what it gets; whether the server has found it out."""
        for match in fine.ask().matches:
            fine.report(match.job_id, outcome=jobs_pb2.OUTCOME_EXITED, exit_code=0)
        for match in hole.ask().matches:
            hole.report(match.job_id, outcome=jobs_pb2.OUTCOME_EXITED, exit_code=1)
        known[:] = pilotage.objects("health", "list")
        return bool(known)

    await until(is_found)
    (throttle,) = known
    assert list(throttle) == list(KEYS["health list"])
    assert (throttle["place"], throttle["state"], throttle["node"]) == ("SITE/hole", "throttled", "hole")
    assert not hole.ask().matches
    assert pilotage("health", "open", "SITE/hole") == "SITE/hole is open\n"
    assert len(hole.ask().matches) == 1
    grid.close()


async def test_a_site_director_hears_that_a_queue_is_held_and_why(server: RunningServer, pilotage: Command) -> None:
    WireGrid(server).put_tree()
    pilotage("health", "hold", "SITE/ce1/long", "--reason", "new kernel")
    async with server.async_channel(server.token(Role.AGENT, owner="agent:director")) as channel:
        (there,) = (await AgentServerLink(channel).demand([QueueId("SITE", "ce1", "long")])).supplies
    assert there.held
    assert there.throttled == "queue SITE/ce1/long is held by olga: new kernel; it gets no job"


def test_an_operator_holds_a_queue_for_a_while(server: RunningServer, pilotage: Command) -> None:
    grid = WireGrid(server)
    grid.put_tree()
    grid.submit(a_job())
    pilot = a_pilot(grid, "node")
    assert pilotage("health", "hold", "site/ce1/long", "--reason", "new kernel", "--for", "1 h").startswith(
        "SITE/ce1/long is held until "
    )
    assert not pilot.ask().matches
    assert "new kernel" in pilotage("health", "list")
    pilotage("health", "open", "SITE/ce1/long")
    assert len(pilot.ask().matches) == 1
    grid.close()


def test_an_operator_who_holds_a_node_that_nobody_knows_is_warned(server: RunningServer, pilotage: Command) -> None:
    WireGrid(server).put_tree()
    held = pilotage.run("health", "hold", "site/n17", "--reason", "new disk")
    assert (held.returncode, held.stdout) == (0, "SITE/n17 is held\n")
    assert held.stderr == "warning: no pilot has reported a node n17 at SITE; it is held for when one comes\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["hold", "SITE//x", "--reason", "r"], "is not a place; write SITE, SITE/NODE or SITE/CE/QUEUE"),
        (["hold", "SITE", "--reason", " "], "reason: is missing"),
        (["open", "SITE/never"], "node SITE/never"),
    ],
)
def test_what_cannot_be_done_is_one_clear_line(
    server: RunningServer, pilotage: Command, words: list[str], told: str
) -> None:
    WireGrid(server).put_tree()
    refused = pilotage.run("health", *words)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert told in refused.stderr
