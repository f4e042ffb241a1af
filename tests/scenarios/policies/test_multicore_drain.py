"""Draining for multicore jobs: a node whose OnlyMulticore is set to True takes only jobs of eight cores.

Under the shipped policy and the published one, on a node with sixteen cores.
"""

from __future__ import annotations

import pytest

from pilotage.errors import InvalidInputError
from pilotage_pilot.core.events import ContactRequested, StopRequested
from pilotage_server.core.pilots.nodes import NodeId
from pilotage_server.operations.pilots.nodes import list_slots, set_node_attributes
from support.jobs import an_operator
from support.site_policies import SitePolicies
from support.virtual_grid import VirtualGrid
from support.virtual_node import VirtualNode

NODE = NodeId("CERN", "node1")
HEARTBEAT_INTERVAL_S = 31.0
CORES = 16


@pytest.fixture(params=["multicore-drain.conf", "fallow.conf"])
def policy(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def node(policy: str, grid: VirtualGrid, policies: SitePolicies) -> VirtualNode:
    """Return a node whose pilot has reported."""
    started = grid.node(policies.path(policy), cpus=CORES)
    grid.pass_time(2)
    return started


def set_attribute(
    grid: VirtualGrid, expression: str, name: str = "OnlyMulticore", wait_s: float = HEARTBEAT_INTERVAL_S
) -> None:
    """Set an attribute of the node through the server, and wait until its pilot has it."""
    change = ({name: expression}, ())
    grid.grid.write(lambda transaction, state: set_node_attributes(transaction, state, an_operator(), [NODE], change))
    grid.pass_time(wait_s)


def jobs_of(grid: VirtualGrid, *widths: int, run_s: float = 600.0) -> list[int]:
    """Submit one job for each of these numbers of cores."""
    return [grid.submit(run_s, request_cpus=cpus) for cpus in widths]


def cores_in_use(grid: VirtualGrid, jobs: list[int], widths: list[int]) -> list[int]:
    """Return the widths of the jobs that are in a slot."""
    return [cpus for job, cpus in zip(jobs, widths, strict=True) if grid.place(job)]


@pytest.mark.parametrize("widths", [[1, 4, 8], [16], [1] * 16])
def test_node_takes_jobs_of_any_width_by_default(grid: VirtualGrid, node: VirtualNode, widths: list[int]) -> None:
    jobs = jobs_of(grid, *widths)
    grid.pass_time(5)
    assert cores_in_use(grid, jobs, widths) == widths


def test_draining_node_takes_only_jobs_of_eight_cores(grid: VirtualGrid, node: VirtualNode) -> None:
    set_attribute(grid, "True")
    widths = [1, 4, 16, 8]
    jobs = jobs_of(grid, *widths)
    grid.pass_time(60)
    assert cores_in_use(grid, jobs, widths) == [8]


def test_waiting_pilot_receives_the_attribute_at_once(grid: VirtualGrid, node: VirtualNode) -> None:
    set_attribute(grid, "True", wait_s=0)
    (single,) = jobs_of(grid, 1)
    grid.pass_time(5)
    assert grid.states(single) == ["WAITING"]
    assert grid.job(single).attempt == 0


def are_shown_draining(grid: VirtualGrid) -> bool:
    """Return whether the server shows all slots of the node with OnlyMulticore = True."""
    shown = grid.grid.read(lambda transaction, _: list_slots(transaction))
    return len(shown) == len(grid.grid.read(lambda transaction, _: list_slots(transaction, None, "OnlyMulticore")))


@pytest.mark.parametrize("changes", [["True"], ["False", "True"], ["True", "False", "True"]], ids=len)
def test_full_pilot_with_a_broker_shows_the_attribute_within_two_seconds(
    grid: VirtualGrid, node: VirtualNode, changes: list[str]
) -> None:
    jobs_of(grid, *[1] * CORES)
    grid.pass_time(60)
    hints: list[str] = []
    grid.grid.state.command_listeners.append(hints.append)
    for expression in changes:
        set_attribute(grid, expression, wait_s=0)
        assert hints, "the server publishes a message for the pilot"
        hints.clear()
        node.feed(ContactRequested())
    grid.pass_time(2)
    assert are_shown_draining(grid)


def test_full_pilot_without_broker_starts_no_job_before_it_has_the_attribute(
    grid: VirtualGrid, node: VirtualNode
) -> None:
    jobs_of(grid, *[1] * (CORES - 1))
    last = grid.submit(70, request_cpus=1)
    grid.pass_time(1)
    (late,) = jobs_of(grid, 1)
    grid.pass_time(68)
    set_attribute(grid, "True", wait_s=0)
    grid.until(lambda: grid.finished(last), within_s=5)
    grid.pass_time(60)
    assert (grid.states(late), grid.job(late).attempt) == (["WAITING"], 0)


def test_full_pilot_without_broker_has_the_attribute_after_its_heartbeat(grid: VirtualGrid, node: VirtualNode) -> None:
    jobs_of(grid, *[1] * CORES)
    grid.pass_time(60)
    set_attribute(grid, "True", wait_s=HEARTBEAT_INTERVAL_S + 1)
    assert are_shown_draining(grid)


@pytest.mark.parametrize("expression", ["False", '"True"', "1", "undefined"])
def test_only_boolean_true_starts_a_drain(grid: VirtualGrid, node: VirtualNode, expression: str) -> None:
    set_attribute(grid, expression)
    (job,) = jobs_of(grid, 1)
    assert grid.place(job) == "node1/slot1_1"


def test_drain_evicts_nothing_and_makes_room_for_eight_cores(grid: VirtualGrid, node: VirtualNode) -> None:
    singles = [*jobs_of(grid, *[1] * 8, run_s=120), *jobs_of(grid, *[1] * 8, run_s=900)]
    grid.pass_time(60)
    set_attribute(grid, "True")
    (late,) = jobs_of(grid, 1)
    (wide,) = jobs_of(grid, 8, run_s=60)
    grid.until(lambda: grid.place(wide) != "")
    assert grid.finished(*singles[:8])
    assert [grid.job(job).attempt for job in singles] == [1] * 16
    assert grid.states(late) == ["WAITING"], "although it was submitted first"
    grid.until(lambda: grid.finished(wide))
    assert grid.states(late) == ["WAITING"]


def test_node_takes_single_core_jobs_after_the_drain(grid: VirtualGrid, node: VirtualNode) -> None:
    set_attribute(grid, "True")
    (single,) = jobs_of(grid, 1)
    grid.pass_time(60)
    assert grid.states(single) == ["WAITING"]
    set_attribute(grid, "False")
    assert grid.states(single) == ["RUNNING"]


def test_attribute_survives_a_restart_of_the_pilot(
    grid: VirtualGrid, node: VirtualNode, policy: str, policies: SitePolicies
) -> None:
    set_attribute(grid, "True")
    node.feed(StopRequested("the site restarts its nodes"))
    grid.until(lambda: node.ended is not None, within_s=60)
    (single,) = jobs_of(grid, 1)
    again = grid.node(policies.path(policy), cpus=CORES, name="node1")
    (wide,) = jobs_of(grid, 8)
    grid.pass_time(HEARTBEAT_INTERVAL_S)
    assert list(again.running().values()) == [wide]
    assert grid.job(single).attempt == 0, "it was not matched even at the start of the pilot"
    set_attribute(grid, "False")
    assert grid.states(single) == ["RUNNING"]


def test_only_settable_attributes_can_be_set(grid: VirtualGrid, node: VirtualNode) -> None:
    with pytest.raises(InvalidInputError, match="SETTABLE_ATTRS_ADMINISTRATOR"):
        set_attribute(grid, "10", "Memory")


def test_start_jobs_false_stops_all_jobs(grid: VirtualGrid, policies: SitePolicies) -> None:
    grid.node(policies.path("multicore-drain.conf"), cpus=CORES)
    grid.pass_time(2)
    set_attribute(grid, "False", "StartJobs")
    jobs = jobs_of(grid, 1, 8)
    grid.pass_time(30)
    assert grid.states(*jobs) == ["WAITING"] * 2
