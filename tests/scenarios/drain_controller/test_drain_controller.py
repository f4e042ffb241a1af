"""The drain controller with pilots under its policies, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from structlog.testing import capture_logs

from pilotage.errors import LeadershipLostError, NotFoundError
from pilotage.resources.tree import QueueId
from pilotage_agents.drain_controller.controller import DrainController
from pilotage_agents.drain_controller.planning import Farm, FarmDemand, FarmNode, NodeName, NodePart
from pilotage_agents.drain_controller.settings import DrainControllerSettings
from support.grid import LONG, a_tree
from support.simulated_farm import GridDrainLink
from support.site_policies import SitePolicies
from support.virtual_grid import VirtualGrid

CORES = 16
LYON = "Lyon/ce1/q"
HEARTBEAT_INTERVAL_S = 31.0


@pytest.fixture
def link(grid: VirtualGrid) -> GridDrainLink:
    return GridDrainLink(grid)


def a_controller(link: GridDrainLink, setpoint: int = 16, **settings: object) -> DrainController:
    validated = DrainControllerSettings.model_validate({"setpoint": setpoint, "interval_s": 60, **settings})
    return DrainController(validated, link, link)


def busy_nodes(grid: VirtualGrid, policies: SitePolicies, policy: str, count: int = 2) -> list[int]:
    """Start nodes full of single-core jobs, of which two end in a minute, and queue more; return all jobs."""
    for _ in range(count):
        grid.node(policies.path(policy), cpus=CORES)
    jobs = [grid.submit(30.0 * (number % CORES + 1), request_cpus=1) for number in range(count * CORES)]
    jobs += [grid.submit(900.0, request_cpus=1) for _ in range(count * CORES)]
    grid.pass_time(HEARTBEAT_INTERVAL_S)
    return jobs


def running(grid: VirtualGrid, jobs: list[int]) -> list[int]:
    return [job for job in jobs if grid.place(job)]


@pytest.mark.parametrize("policy", ["multicore-drain.conf", "fallow.conf"])
async def test_multicore_jobs_get_cores_before_waiting_single_core_jobs(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink, policy: str
) -> None:
    single_core = busy_nodes(grid, policies, policy)
    multicore = [grid.submit(36000.0, request_cpus=8) for _ in range(3)]
    grid.pass_time(60)
    assert running(grid, multicore) == []
    controller = a_controller(link, setpoint=8)
    for _ in range(8):
        await controller.run_once()
        grid.pass_time(60)
    assert len(running(grid, multicore)) == 1
    assert all(job.attempt <= 1 for job in grid.grid.jobs(single_core).values())
    assert [node.only_multicore for node in (await link.farm(())).nodes] == [False] * 2
    assert len(running(grid, single_core)) == 2 * CORES - 8, "single-core jobs use the other cores"


async def test_drained_node_takes_all_jobs_only_after_the_negotiation_delay(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink
) -> None:
    grid.node(policies.path("multicore-drain.conf"), cpus=CORES)
    grid.pass_time(2)
    await link.set_only_multicore([NodeName("CERN", "node1")], True)
    link.changes.clear()
    for cores in (1, 4):
        grid.submit(3600.0, request_cpus=cores)
    grid.pass_time(HEARTBEAT_INTERVAL_S)
    before = grid.clock()
    await a_controller(link, negotiation_delay_s=45).run_once()
    assert link.changes == [("node1", False)]
    assert (grid.clock() - before).total_seconds() == 45


@pytest.mark.parametrize("waiting", [(), (1,), (4,)])
async def test_negotiation_delay_applies_without_both_kinds_of_waiting_jobs(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink, waiting: tuple[int, ...]
) -> None:
    grid.node(policies.path("multicore-drain.conf"), cpus=CORES)
    grid.pass_time(2)
    await link.set_only_multicore([NodeName("CERN", "node1")], True)
    for cores in waiting:
        grid.submit(3600.0, request_cpus=cores)
    grid.pass_time(HEARTBEAT_INTERVAL_S)
    before = grid.clock()
    await a_controller(link, negotiation_delay_s=45).run_once()
    assert link.changes[1:] == [("node1", False)]
    assert (grid.clock() - before).total_seconds() == 45


async def test_overlapping_controllers_leave_each_others_nodes_alone_with_a_warning(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink
) -> None:
    busy_nodes(grid, policies, "multicore-drain.conf", count=3)
    for _ in range(3):
        grid.submit(60.0, request_cpus=8)
    other = GridDrainLink(grid, "drain controller of cern/*/*")
    first, second = a_controller(link, setpoint=8), a_controller(other, setpoint=16)
    await first.run_once()
    with capture_logs() as logs:
        for _ in range(4):
            await second.run_once()
            await first.run_once()
    assert link.changes == [("node1", True), ("node1", False)], "at the lower setpoint one drain is too many"
    assert other.changes == [("node2", True), ("node1", True)], "no controller cancels a drain of the other"
    warnings = [entry["nodes"] for entry in logs if entry["log_level"] == "warning"]
    assert warnings == [{"drain controller": 1}, {"drain controller of cern/*/*": 1}]
    line = "2 nodes drain for another controller and are left to it: drain controller of cern/*/*"
    assert (await first.dry_run())[0] == line


async def test_controller_takes_over_nodes_of_one_that_lost_leadership(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink
) -> None:
    busy_nodes(grid, policies, "multicore-drain.conf", count=1)
    grid.submit(60.0, request_cpus=8)
    await a_controller(link, setpoint=8).run_once()
    other = GridDrainLink(grid, "drain controller of cern/*/*")
    await a_controller(other, setpoint=0).run_once()
    assert other.changes == []
    link.release_leadership()
    await a_controller(other, setpoint=0).run_once()
    assert other.changes == [("node1", False)]


async def test_drains_end_when_no_multicore_job_waits(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink
) -> None:
    busy_nodes(grid, policies, "multicore-drain.conf")
    multicore = grid.submit(60.0, request_cpus=8, sites=("CERN",))
    controller = a_controller(link, setpoint=800)
    await controller.run_once()
    assert link.changes == [("node1", True), ("node2", True)]
    grid.until(lambda: grid.place(multicore) != "", within_s=1200)
    await controller.run_once()
    assert sorted(link.changes[2:]) == [("node1", False), ("node2", False)]


async def test_dry_run_reports_planned_drains_with_reasons_and_changes_nothing(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink
) -> None:
    busy_nodes(grid, policies, "multicore-drain.conf")
    grid.submit(60.0, request_cpus=8)
    assert await a_controller(link, setpoint=8).dry_run() == (
        "8 cores are 1 multicore jobs; 0 run and 0 nodes drain for one: 1 missing",
        "CERN/node1: OnlyMulticore = True"
        " (it has 0 cores free beside 16 single-core jobs, and is nearest to room for 8)",
    )
    assert link.changes == []


async def test_controller_drains_only_nodes_of_its_queues(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink
) -> None:
    busy_nodes(grid, policies, "multicore-drain.conf", count=1)
    grid.submit(60.0, request_cpus=8)
    await a_controller(link, queues=("Lyon/*/*",)).run_once()
    assert link.changes == []
    await a_controller(link, queues=("Lyon/*/*", LONG.lower())).run_once()
    assert link.changes == [("node1", True)]


async def test_pattern_without_queue_is_logged_once(link: GridDrainLink) -> None:
    controller = a_controller(link, queues=("CERN/*/*", "CENR/*/*"))
    with capture_logs() as logs:
        for _ in range(2):
            await controller.run_once()
    assert [entry["patterns"] for entry in logs if entry["log_level"] == "warning"] == [("CENR/*/*",)]
    assert (await controller.dry_run())[0] == "CENR/*/*: no queue of the tree is called so"


async def test_drains_only_nodes_that_waiting_multicore_jobs_may_use(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink
) -> None:
    grid.grid.put(a_tree(LONG, LYON))
    policy = policies.path("multicore-drain.conf")
    for queue in (LONG, LONG, LYON):
        grid.node(policy, cpus=CORES, queue=queue)
    for _ in range(4 * CORES):
        grid.submit(900.0, request_cpus=1)
    grid.pass_time(HEARTBEAT_INTERVAL_S)
    grid.submit(60.0, request_cpus=8, sites=("Lyon",))
    controller = a_controller(link, setpoint=800)
    await controller.run_once()
    assert link.changes == [("node3", True)]
    grid.submit(60.0, request_cpus=8, sites=("CERN",))
    await controller.run_once()
    assert link.changes[1:] == [("node1", True), ("node2", True)]


class FlakyLink(GridDrainLink):
    """A server with five full nodes, some of which end before their attribute is set."""

    ended_nodes: frozenset[str] = frozenset()
    is_leader = True

    async def farm(self, queues: Sequence[QueueId]) -> Farm:
        nodes = tuple(FarmNode(NodeName("CERN", f"n{number}"), (NodePart(0, {1: 16}),)) for number in range(5))
        return Farm(nodes, tuple(FarmDemand(cores, 1, frozenset({0})) for cores in (1, 8)))

    async def set_only_multicore(self, nodes: Sequence[NodeName], value: bool) -> None:
        if not self.is_leader:
            raise LeadershipLostError("drain controller")
        for name in nodes:
            if name.node in self.ended_nodes:
                raise NotFoundError("live pilot on node", str(name))
        self.changes += [(name.node, value) for name in nodes]


async def test_ended_nodes_do_not_stop_changes_of_other_nodes(grid: VirtualGrid) -> None:
    link = FlakyLink(grid)
    link.ended_nodes = frozenset({"n1", "n4"})
    await a_controller(link, setpoint=800).run_once()
    assert link.changes == [("n0", True), ("n2", True), ("n3", True)]


async def test_lost_leadership_ends_the_cycle(grid: VirtualGrid) -> None:
    link = FlakyLink(grid)
    link.is_leader = False
    with pytest.raises(LeadershipLostError):
        await a_controller(link, setpoint=800).run_once()
