"""The drain controller with real pilots under the policies for it, in virtual time."""

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
A_HEARTBEAT_S = 31.0


@pytest.fixture
def link(grid: VirtualGrid) -> GridDrainLink:
    return GridDrainLink(grid)


def a_controller(link: GridDrainLink, setpoint: int = 16, **settings: object) -> DrainController:
    read = DrainControllerSettings.model_validate({"setpoint": setpoint, "interval_s": 60, **settings})
    return DrainController(read, link, link)


def busy_nodes(grid: VirtualGrid, policies: SitePolicies, policy: str, count: int = 2) -> list[int]:
    """Start nodes that are full of single-core jobs, of which two end in a minute; return the jobs, and more wait."""
    for _ in range(count):
        grid.node(policies.path(policy), cpus=CORES)
    jobs = [grid.submit(30.0 * (number % CORES + 1), request_cpus=1) for number in range(count * CORES)]
    jobs += [grid.submit(900.0, request_cpus=1) for _ in range(count * CORES)]
    grid.pass_time(A_HEARTBEAT_S)
    return jobs


def running(grid: VirtualGrid, jobs: list[int]) -> list[int]:
    return [job for job in jobs if grid.place(job)]


@pytest.mark.parametrize("policy", ["multicore-drain.conf", "fallow.conf"])
async def test_multicore_jobs_get_their_cores_though_single_core_jobs_wait_and_no_job_is_stopped(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink, policy: str
) -> None:
    single = busy_nodes(grid, policies, policy)
    wide = [grid.submit(36000.0, request_cpus=8) for _ in range(3)]
    grid.pass_time(60)
    assert running(grid, wide) == []
    controller = a_controller(link, setpoint=8)
    for _ in range(8):
        await controller.run_once()
        grid.pass_time(60)
    assert len(running(grid, wide)) == 1
    assert all(job.attempt <= 1 for job in grid.grid.jobs(single).values())
    assert [node.only_multicore for node in (await link.farm(())).nodes] == [False] * 2
    assert len(running(grid, single)) == 2 * CORES - 8, "the rest of the cores is used"


async def test_a_drained_node_is_put_back_only_after_the_negotiation_delay(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink
) -> None:
    grid.node(policies.path("multicore-drain.conf"), cpus=CORES)
    grid.pass_time(2)
    await link.set_only_multicore([NodeName("CERN", "node1")], True)
    link.told.clear()
    for cores in (1, 4):
        grid.submit(3600.0, request_cpus=cores)
    grid.pass_time(A_HEARTBEAT_S)
    before = grid.clock()
    await a_controller(link, negotiation_delay_s=45).run_once()
    assert link.told == [("node1", False)]
    assert (grid.clock() - before).total_seconds() == 45


@pytest.mark.parametrize("waiting", [(), (1,), (4,)])
async def test_a_drained_node_waits_for_the_delay_also_while_nothing_or_one_kind_of_jobs_waits(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink, waiting: tuple[int, ...]
) -> None:
    grid.node(policies.path("multicore-drain.conf"), cpus=CORES)
    grid.pass_time(2)
    await link.set_only_multicore([NodeName("CERN", "node1")], True)
    for cores in waiting:
        grid.submit(3600.0, request_cpus=cores)
    grid.pass_time(A_HEARTBEAT_S)
    before = grid.clock()
    await a_controller(link, negotiation_delay_s=45).run_once()
    assert link.told[1:] == [("node1", False)]
    assert (grid.clock() - before).total_seconds() == 45


async def test_controllers_whose_queues_overlap_leave_each_others_nodes_alone_and_say_so(
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
    assert link.told == [("node1", True), ("node1", False)], "with the lower setpoint, one too many drains"
    assert other.told == [("node2", True), ("node1", True)], "and nobody cancels what the other has begun"
    warnings = [each["nodes"] for each in logs if each["log_level"] == "warning"]
    assert warnings == [{"drain controller": 1}, {"drain controller of cern/*/*": 1}]
    line = "2 nodes drain for another controller and are left to it: drain controller of cern/*/*"
    assert (await first.dry_run())[0] == line


async def test_nodes_of_a_controller_that_acts_no_more_are_taken_over(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink
) -> None:
    busy_nodes(grid, policies, "multicore-drain.conf", count=1)
    grid.submit(60.0, request_cpus=8)
    await a_controller(link, setpoint=8).run_once()
    other = GridDrainLink(grid, "drain controller of cern/*/*")
    await a_controller(other, setpoint=0).run_once()
    assert other.told == []
    link.give_back_turn()
    await a_controller(other, setpoint=0).run_once()
    assert other.told == [("node1", False)]


async def test_without_waiting_multicore_jobs_every_node_takes_all_jobs_again(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink
) -> None:
    busy_nodes(grid, policies, "multicore-drain.conf")
    wide = grid.submit(60.0, request_cpus=8, sites=("CERN",))
    controller = a_controller(link, setpoint=800)
    await controller.run_once()
    assert link.told == [("node1", True), ("node2", True)]
    grid.until(lambda: grid.place(wide) != "", within_s=1200)
    await controller.run_once()
    assert sorted(link.told[2:]) == [("node1", False), ("node2", False)]


async def test_a_dry_run_says_what_it_would_do_and_why_and_does_nothing(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink
) -> None:
    busy_nodes(grid, policies, "multicore-drain.conf")
    grid.submit(60.0, request_cpus=8)
    assert await a_controller(link, setpoint=8).dry_run() == (
        "8 cores are 1 multicore jobs; 0 run and 0 nodes drain for one: 1 missing",
        "CERN/node1: OnlyMulticore = True"
        " (it has 0 cores free beside 16 single-core jobs, and is nearest to room for 8)",
    )
    assert link.told == []


async def test_only_nodes_of_the_queues_that_it_serves_are_told(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink
) -> None:
    busy_nodes(grid, policies, "multicore-drain.conf", count=1)
    grid.submit(60.0, request_cpus=8)
    await a_controller(link, queues=("Lyon/*/*",)).run_once()
    assert link.told == []
    await a_controller(link, queues=("Lyon/*/*", LONG.lower())).run_once()
    assert link.told == [("node1", True)]


async def test_settings_that_name_no_queue_of_the_tree_are_told_once(link: GridDrainLink) -> None:
    controller = a_controller(link, queues=("CERN/*/*", "CENR/*/*"))
    with capture_logs() as logs:
        for _ in range(2):
            await controller.run_once()
    assert [each["patterns"] for each in logs if each["log_level"] == "warning"] == [("CENR/*/*",)]
    assert (await controller.dry_run())[0] == "CENR/*/*: no queue of the tree is called so"


async def test_only_nodes_to_which_waiting_multicore_jobs_could_go_drain(
    grid: VirtualGrid, policies: SitePolicies, link: GridDrainLink
) -> None:
    grid.grid.put(a_tree(LONG, LYON))
    policy = policies.path("multicore-drain.conf")
    for queue in (LONG, LONG, LYON):
        grid.node(policy, cpus=CORES, queue=queue)
    for _ in range(4 * CORES):
        grid.submit(900.0, request_cpus=1)
    grid.pass_time(A_HEARTBEAT_S)
    grid.submit(60.0, request_cpus=8, sites=("Lyon",))
    controller = a_controller(link, setpoint=800)
    await controller.run_once()
    assert link.told == [("node3", True)]
    grid.submit(60.0, request_cpus=8, sites=("CERN",))
    await controller.run_once()
    assert link.told[1:] == [("node1", True), ("node2", True)]


class FlakyLink(GridDrainLink):
    """A server that knows five full nodes, some of which are gone when they are to be told."""

    gone: frozenset[str] = frozenset()
    in_turn = True

    async def farm(self, queues: Sequence[QueueId]) -> Farm:
        nodes = tuple(FarmNode(NodeName("CERN", f"n{number}"), (NodePart(0, {1: 16}),)) for number in range(5))
        return Farm(nodes, tuple(FarmDemand(cores, 1, frozenset({0})) for cores in (1, 8)))

    async def set_only_multicore(self, nodes: Sequence[NodeName], value: bool) -> None:
        if not self.in_turn:
            raise LeadershipLostError("drain controller")
        for name in nodes:
            if name.node in self.gone:
                raise NotFoundError("live pilot on node", str(name))
        self.told += [(name.node, value) for name in nodes]


async def test_nodes_that_have_gone_meanwhile_keep_no_other_from_being_told(grid: VirtualGrid) -> None:
    link = FlakyLink(grid)
    link.gone = frozenset({"n1", "n4"})
    await a_controller(link, setpoint=800).run_once()
    assert link.told == [("n0", True), ("n2", True), ("n3", True)]


async def test_a_controller_that_has_lost_its_turn_ends_its_round(grid: VirtualGrid) -> None:
    link = FlakyLink(grid)
    link.in_turn = False
    with pytest.raises(LeadershipLostError):
        await a_controller(link, setpoint=800).run_once()
