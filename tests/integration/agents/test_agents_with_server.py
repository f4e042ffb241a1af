"""The agents' commands against a real server, with the local batch system."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from pilotage.job_description import JobDescription
from pilotage.jobs.wire import description_to_wire
from pilotage.processes import exclusive_folder
from pilotage.v1 import (
    job_service_pb2,
    node_service_pb2,
    pilot_service_pb2,
    pool_service_pb2,
    resource_service_pb2,
    values_pb2,
)
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.v1.matcher_service_pb2 import NodeState, ReportStateRequest, SlotState
from pilotage.v1.matcher_service_pb2_grpc import MatcherServiceStub
from pilotage.v1.node_service_pb2_grpc import NodeServiceStub
from pilotage.v1.pilot_service_pb2_grpc import PilotServiceStub
from pilotage.v1.pool_service_pb2_grpc import PoolServiceStub
from pilotage.v1.resource_service_pb2_grpc import ResourceServiceStub
from pilotage.v1.values_pb2 import Amounts
from pilotage.values.leadership import Leadership, ServedQueues
from pilotage_agents.batch_systems.local import facts_of
from pilotage_agents.drain_controller.planning import NodeName
from pilotage_agents.main import run
from pilotage_agents.server_link import AgentServerLink
from pilotage_server.core.identity import AGENT_NAMES, AgentBounds, Role
from support.leadership import LONG_LEADERSHIP, with_short_leadership
from support.metrics import Scrape, get, promtool
from support.otlp_receiver import an_otlp_receiver
from support.processes import until
from support.server import RunningServer, request_id
from support.wire_grid import WireGrid

TREE = """
[sites.Lyon.ces.ce1]
CEType = "local"
CPUs = 1
queues = { short = { Memory = 1000 }, long = { Memory = 8000 } }
"""


class Operator:
    """An operator who also submits jobs."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._jobs, self._pools = JobServiceStub(channel), PoolServiceStub(channel)
        self._nodes = NodeServiceStub(channel)
        self._pilots, self._resources = PilotServiceStub(channel), ResourceServiceStub(channel)

    def put_tree(self, text: str) -> None:
        self._resources.PutTree(resource_service_pb2.PutTreeRequest(request_id=request_id(), text=text, format="toml"))

    def submit(self, count: int, *, cpus: int = 1, **requirements: int) -> list[int]:
        job = JobDescription("/bin/true", requirements=requirements or None, count=count, request_cpus=cpus)
        request = job_service_pb2.SubmitJobsRequest(request_id=request_id(), descriptions=[description_to_wire(job)])
        return list(self._jobs.SubmitJobs(request).job_ids)

    def remove(self, job_ids: list[int]) -> None:
        change = job_service_pb2.JOB_CHANGE_REMOVE
        self._jobs.ChangeJobs(
            job_service_pb2.ChangeJobsRequest(request_id=request_id(), job_ids=job_ids, change=change)
        )

    def pilots(self) -> list[pilot_service_pb2.Pilot]:
        return list(self._pilots.ListPilots(pilot_service_pb2.ListPilotsRequest(ended=True)).pilots)

    def node_attributes(self) -> dict[str, tuple[str, str, str]]:
        """Return name, expression and author of the attribute that is set on each node."""
        answer = self._nodes.ListNodeAttributes(node_service_pb2.ListNodeAttributesRequest())
        return {
            node.node.node: (setting.name, setting.expression, setting.set_by)
            for node in answer.nodes
            for setting in node.settings
        }

    def register(self) -> pilot_service_pb2.PilotCredential:
        """Register a pilot of the long queue."""
        queue = values_pb2.QueueId(site="Lyon", ce="ce1", queue="long")
        request = pilot_service_pb2.RegisterPilotsRequest(request_id=request_id(), queue=queue, count=1)
        return self._pilots.RegisterPilots(request).pilots[0]

    def pools(self) -> list[pool_service_pb2.Pool]:
        return list(self._pools.ListPools(pool_service_pb2.ListPoolsRequest()).pools)


@pytest.fixture
def operator(server: RunningServer) -> Iterator[Operator]:
    with server.channel(server.token(Role.USER, Role.OPERATOR)) as channel:
        operator = Operator(channel)
        operator.put_tree(TREE)
        yield operator


@pytest.fixture
def config(server: RunningServer, tmp_path: Path) -> Path:
    (tmp_path / "agent.token").write_text(server.token(*AGENT_NAMES, owner="agent:test"))
    path = tmp_path / "agents.toml"
    path.write_text(f"""
server = "{server.address}"
token_file = "agent.token"
{LONG_LEADERSHIP}
[site_director]
folder = "director"
pilot_command = ["sh", "-c", "exec sleep 1000"]
[site_director.batch_systems.local]
type = "local"
[pool_cleanup]
refresh_older_than_s = 0
grace_s = 0
""")
    return path


def report_node(
    server: RunningServer, operator: Operator, name: str, *, free: int, single: int, settable: bool
) -> Callable[..., None]:
    """Report the slots of a pilot on a node of 16 cores; return a function that reports again."""
    token = server.enrolled(operator.register().token)

    def report(free: int, single: int) -> None:
        whole = values_pb2.Amounts(cpus=16)
        slots = [SlotState(name="slot1", partitionable=True, amounts=whole, free=values_pb2.Amounts(cpus=free))]
        one = values_pb2.Amounts(cpus=1)
        slots += (SlotState(name=f"slot1_{number}", amounts=one, job_id=number + 1) for number in range(single))
        node = NodeState(name=name, amounts=whole, slots=slots, settable_attributes=["OnlyMulticore"] * settable)
        with server.channel(token) as channel:
            MatcherServiceStub(channel).ReportState(ReportStateRequest(request_id=request_id(), node=node))

    report(free, single)
    return report


def has_ended(pilot: pilot_service_pb2.Pilot) -> bool:
    return pilot.state == pilot_service_pb2.PILOT_STATE_ENDED


def kill(pilot: pilot_service_pb2.Pilot) -> None:
    """Kill the process of a pilot, which is a child of this test, and wait for its end."""
    pid = int(pilot.glidein_id.split(".")[1])
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_director_sends_pilots_and_reports_ended_ones(config: Path, operator: Operator) -> None:
    operator.submit(2, Memory=4000)
    for _ in range(2):
        assert run(["site-director", "--once", "--config", str(config)]) == 0
    pilots = operator.pilots()
    assert {pilot.queue.queue for pilot in pilots} == {"long"}
    assert len(pilots) == 2
    assert not any(map(has_ended, pilots))
    for pilot in pilots:
        kill(pilot)
    operator.remove([1, 2])
    assert run(["site-director", "--once", "--config", str(config)]) == 0
    assert [pilot.reason for pilot in operator.pilots() if has_ended(pilot)] == ["exit code 137"] * 2
    assert all(facts_of(int(pilot.glidein_id.split(".")[1])) is None for pilot in pilots)


def test_dry_run_prints_the_planned_pilots(
    config: Path, operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    operator.submit(3, Memory=4000)
    assert run(["site-director", "--dry-run", "--config", str(config)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "Lyon/ce1/short: 0 pilots (no demand)",
        "Lyon/ce1/long: 3 pilots (3 jobs more to run)",
    ]
    assert operator.pilots() == []


def test_task_queue_director_sends_pilots_for_a_set_of_queues(
    config: Path, operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    config.write_text(
        config.read_text()
        .replace("[site_director", "[task_queue_director")
        .replace('"director"', '"director"\nqueues = ["Lyon/*/*"]')
    )
    operator.submit(2, Memory=4000)
    assert run(["task-queue-director", "--dry-run", "--config", str(config)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "Lyon/*/*: 2 pilots (2 jobs more to run)"
    assert operator.pilots() == []
    for _ in range(2):
        assert run(["task-queue-director", "--once", "--config", str(config)]) == 0
    pilots = operator.pilots()
    assert [(pilot.HasField("queue"), list(pilot.queue_set)) for pilot in pilots] == [(False, ["Lyon/*/*"])] * 2
    for pilot in pilots:
        kill(pilot)
    assert run(["task-queue-director", "--once", "--config", str(config)]) == 0
    assert all(map(has_ended, operator.pilots()[-2:]))


def test_pool_cleanup_refreshes_mappings_and_removes_idle_pools(
    config: Path, operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    kept, removed = operator.submit(1, Memory=4000), operator.submit(1, Memory=5000)
    assert len(operator.pools()) == 2
    mapped = {pool.id: pool.mapped.ToDatetime() for pool in operator.pools()}
    operator.remove(removed)
    assert run(["pool-cleanup", "--dry-run", "--config", str(config)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len([line for line in lines if line.startswith("refresh ")]) == 2
    assert len([line for line in lines if line.startswith("remove ")]) == 1
    for _ in range(2):  # a pool counts as idle from the first cycle that finds it idle
        assert run(["pool-cleanup", "--once", "--config", str(config)]) == 0
    (pool,) = operator.pools()
    assert pool.waiting == len(kept)
    assert pool.mapped.ToDatetime() > mapped[pool.id]


def test_second_director_of_one_folder_is_rejected(
    config: Path, operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    operator.submit(1)
    with exclusive_folder(config.parent / "director", "another site director"):
        assert run(["site-director", "--once", "--config", str(config)]) == 1
    assert "another site director works with" in capsys.readouterr().err
    assert operator.pilots() == []


@contextmanager
def pool_cleanup_process(
    config: Path, agent: str = "pool-cleanup", environment: Mapping[str, str] = os.environ
) -> Iterator[subprocess.Popen[str]]:
    """Run a pool cleanup, or another agent, as a separate process."""
    program = Path(sys.executable).with_name("pilotage-agents")
    command = [str(program), agent, "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        try:
            yield process
        finally:
            process.kill()


def logged_event(process: subprocess.Popen[str], event: str) -> dict[str, object]:
    """Return the next log entry of this event."""
    assert process.stderr is not None
    for line in process.stderr:
        entry: dict[str, object] = json.loads(line)
        if entry["event"] == event:
            return entry
    pytest.fail(f"it ended before it logged {event!r}")


def test_second_replica_takes_over_when_the_leader_is_killed(config: Path, operator: Operator) -> None:
    with_short_leadership(config)
    with pool_cleanup_process(config) as first:
        logged_event(first, "turn taken")
        with pool_cleanup_process(config) as second:
            assert f"(process {first.pid})" in str(logged_event(second, "another copy of the agent acts")["at"])
            first.kill()
            logged_event(second, "turn taken")


def test_cycle_of_an_agent_is_a_span(config: Path, operator: Operator) -> None:
    with an_otlp_receiver() as receiver:
        with pool_cleanup_process(config, environment=os.environ | receiver.environment) as process:
            logged_event(process, "turn taken")
            process.terminate()
            process.wait()
        (span,) = receiver.spans
    assert (span.service, span.span.name, span.parent) == ("pilotage-agents", "cycle", "")
    assert span.attributes["pilotage.agent"] == "pool cleanup"


def with_metrics(config: Path) -> None:
    config.write_text(f'metrics_listen = "127.0.0.1:0"\n{config.read_text()}')


def metrics_of(process: subprocess.Popen[str]) -> str:
    """Return where an agent that starts will serve its metrics."""
    return str(logged_event(process, "metrics are served")["url"]).split("/")[2]


async def test_replicas_export_who_leads_and_how_cycles_end(
    server: RunningServer, config: Path, operator: Operator
) -> None:
    with_metrics(config)
    agent = {"agent": "pool cleanup"}
    with pool_cleanup_process(config) as first:
        leader = metrics_of(first)
        await until(lambda: Scrape(leader).value("pilotage_agent_last_success_timestamp_seconds", **agent) is not None)
        with pool_cleanup_process(config) as second:
            standby = metrics_of(second)
            logged_event(second, "another copy of the agent acts")

            found, other = Scrape(leader), Scrape(standby)

            assert (found.value("pilotage_agent_leader", **agent), other.value("pilotage_agent_leader", **agent)) == (
                1,
                0,
            )
            assert (found.value("pilotage_agent_cycles_total", **agent) or 0) >= 1
            assert other.value("pilotage_agent_cycles_total", **agent) == 0
            assert found.value("pilotage_agent_errors_total", **agent) == 0
            assert (found.faults(), other.faults()) == ([], [])
            promtool("check", "metrics", text=found.text)
            assert get(leader, "/readyz") == get(standby, "/readyz") == (200, "ok\n")
        server.kill()

        await until(lambda: get(leader, "/readyz")[0] == 503)

        assert get(leader, "/readyz")[1].startswith("pool cleanup: ")
        assert (Scrape(leader).value("pilotage_agent_errors_total", **agent) or 0) >= 1


async def test_director_exports_sent_and_failed_pilots_by_queue(config: Path, operator: Operator) -> None:
    with_metrics(config)
    operator.submit(2, Memory=4000)
    place = {"site": "Lyon", "ce": "ce1", "queue": "long"}
    with pool_cleanup_process(config, "site-director") as process:
        address = metrics_of(process)

        await until(lambda: Scrape(address).value("pilotage_director_pilots_submitted_total", **place) is not None)

        found = Scrape(address)
        submitted, failed = (f"pilotage_director_pilots_{result}_total" for result in ("submitted", "failed"))
        assert (found.value(submitted, **place) or 0) >= 2
        assert found.value(failed, **place) == 0
        assert found.faults() == []
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    for pilot in operator.pilots():
        os.kill(int(pilot.glidein_id.split(".")[1]), signal.SIGKILL)


def test_stopped_replica_gives_leadership_back(
    config: Path, operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    with pool_cleanup_process(config) as first:
        logged_event(first, "turn taken")
        assert run(["pool-cleanup", "--once", "--config", str(config)]) == 1
        assert f"(process {first.pid})" in capsys.readouterr().err
        assert run(["pool-cleanup", "--dry-run", "--config", str(config)]) == 0
        first.send_signal(signal.SIGTERM)
        assert first.wait(30) == 0
    assert run(["pool-cleanup", "--once", "--config", str(config)]) == 0


def test_drain_controller_sets_attributes_of_reported_nodes(
    server: RunningServer, config: Path, operator: Operator, capsys: pytest.CaptureFixture[str]
) -> None:
    operator.put_tree(TREE.replace("CPUs = 1", "CPUs = 16"))
    report_again = report_node(server, operator, "node1", free=0, single=16, settable=True)
    report_node(server, operator, "node2", free=0, single=16, settable=False)
    operator.submit(3)
    operator.submit(2, cpus=8)
    assert run(["drain", "-s", "350", "-n", "0", "--dry-run", "--config", str(config)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "350 cores are 44 multicore jobs; 0 run and 0 nodes drain for one: 44 missing",
        "Lyon/node1: OnlyMulticore = True"
        " (it has 0 cores free beside 16 single-core jobs, and is nearest to room for 8)",
    ]
    assert operator.node_attributes() == {}
    assert run(["drain", "-s", "350", "-n", "0", "--once", "--config", str(config)]) == 0
    assert operator.node_attributes() == {"node1": ("OnlyMulticore", "True", "agent:test")}
    report_again(free=16, single=0)
    assert run(["drain", "-s", "0", "-n", "0", "--once", "--config", str(config)]) == 0
    assert operator.node_attributes() == {"node1": ("OnlyMulticore", "False", "agent:test")}


async def test_controllers_see_which_other_controller_set_a_node(server: RunningServer) -> None:
    grid = WireGrid(server)
    grid.put_tree()
    amounts = Amounts(cpus=16)
    slot = SlotState(name="slot1", partitionable=True, amounts=amounts, free=Amounts(cpus=1))
    node = NodeState(name="n1", amounts=amounts, slots=[slot], settable_attributes=["OnlyMulticore"])
    grid.start_pilot().heartbeat(node=node)
    own, others = Leadership("drain controller of */*/*", "one"), Leadership("drain controller of site/*/*", "two")

    async def flag_of(link: AgentServerLink) -> tuple[bool, str]:
        (node_use,) = (await link.farm(())).nodes
        return node_use.only_multicore, node_use.set_by

    async with server.async_channel(server.token(*AGENT_NAMES, owner="agent:drain")) as channel:
        first, second = AgentServerLink(channel, own), AgentServerLink(channel, others)
        for link, leadership in ((first, own), (second, others)):
            assert (await link.take_leadership(leadership, 60, "here")).granted
        await first.set_only_multicore([NodeName("SITE", "n1")], True)
        assert await flag_of(first) == (True, "")
        assert await flag_of(second) == (True, own.agent)
        await first.release_leadership(own)
        assert await flag_of(second) == (True, ""), "no acting controller owns the node"
    grid.close()


async def test_queues_without_a_site_director_are_shown(server: RunningServer) -> None:
    grid = WireGrid(server)
    grid.put_tree('{"sites": {"S": {"ces": {"C": {"CEType": "slurm", "queues": {"a": {}, "b": {}, "c": {}}}}}}}')
    director, served = Leadership("site director of some", "one"), ServedQueues(("s/c/A", "s/c/b"), ("Slurm",))
    token = server.token(Role.DIRECTOR, bounds=AgentBounds(queues=("S/C/a", "S/C/c")))

    def unserved() -> list[str]:
        queues = grid.resources.ListQueues(resource_service_pb2.ListQueuesRequest()).queues
        return [each.queue.queue for each in queues if each.pilot_problem == "no site director serves this queue"]

    async with server.async_channel(token) as channel:
        link = AgentServerLink(channel, director, served)
        assert unserved() == ["a", "b", "c"]
        await link.take_leadership(director, 60, "here")
        assert unserved() == ["b", "c"]
        await link.release_leadership(director)
    assert unserved() == ["a", "b", "c"]
    grid.close()
