"""What operators do to policies while pilots run, by the commands and signals that they have for it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.policy_processes import PolicyProcesses, policy_processes

COLOURED = 'START = TARGET.Colour =?= "{}"\n'
NODE = ("--node", "SITE/node1")


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[PolicyProcesses]:
    with policy_processes(tmp_path) as grid:
        yield grid


def shown(grid: PolicyProcesses) -> str:
    """Return what an operator sees of the slots."""
    return grid.as_operator("slots", "--af", "Name", "OnlyMulticore", "State")


def test_an_attribute_set_from_afar_bars_single_core_jobs_and_outlives_the_pilot(grid: PolicyProcesses) -> None:
    policy = grid.shipped("multicore-drain.conf", "MULTICORE_WIDTH = 2")
    with grid.pilot(policy) as pilot:
        grid.until(lambda: bool(grid.user.slots()))
        assert shown(grid) == "slot1@node1 false Unclaimed\n"
        said = grid.as_operator("node", "set", *NODE, "OnlyMulticore=True")
        assert said.splitlines()[1].split()[:3] == ["SITE/node1", "OnlyMulticore", "True"]
        grid.until(lambda: bool(grid.user.slots('OnlyMulticore && State == "Owner"')))
        assert shown(grid) == "slot1@node1 true Owner\n"
        single = grid.submit("echo single")
        assert grid.ended(grid.submit("echo wide", request_cpus=2)).state == "DONE"
        assert grid.states(single) == ["WAITING"]
        assert pilot.stop() == 0
    with grid.pilot(policy):
        grid.until(lambda: bool(grid.user.slots('OnlyMulticore && State == "Owner"')))
        assert shown(grid) == "slot1@node1 true Owner\n"
        assert grid.ended(grid.submit("echo wide", request_cpus=2)).state == "DONE"
        assert grid.states(single) == ["WAITING"]
        grid.as_operator("node", "unset", *NODE, "OnlyMulticore")
        assert grid.ended(single).state == "DONE"
        grid.until(lambda: bool(grid.user.slots("OnlyMulticore == False")))


def test_a_pilot_whose_policy_is_broken_does_not_start_and_says_where(grid: PolicyProcesses) -> None:
    policy = grid.policy("POLLING_INTERVAL = 1\nSTART ( TARGET.Owner\n")
    with grid.pilot(policy) as pilot:
        assert pilot.process.wait(30) == 2
        why = f"{policy}, line 2: HTCondor's parser does not understand this: START ( TARGET.Owner"
        assert pilot.log().splitlines()[-1] == f"pilotage-pilot: {why}"


def test_a_broken_policy_changes_nothing_when_it_is_read_again_and_a_good_one_does(grid: PolicyProcesses) -> None:
    policy = grid.policy(COLOURED.format("green"))
    fault = "START: ( is not closed: TARGET.Colour =?= ("
    with grid.pilot(policy) as pilot:
        blue = grid.submit("echo blue", attributes={"Colour": "blue"})
        assert grid.ended(grid.submit("echo green", attributes={"Colour": "green"})).state == "DONE"
        grid.policy("START = TARGET.Colour =?= (\n")
        pilot.hang_up()
        grid.until(lambda: bool(grid.user.slots("PolicyFault =!= undefined")))
        assert grid.as_operator("slots", "--af", "PolicyFault") == f"{policy}, line 1: {fault}\n"
        (warning,) = pilot.lines("policy not read again")
        assert warning["reason"] == f"{policy}, line 1: {fault}"
        assert grid.ended(grid.submit("echo green", attributes={"Colour": "green"})).state == "DONE"
        assert grid.states(blue) == ["WAITING"]
        assert 'TARGET.Colour =?= "green" is false' in grid.pilotage("why", blue)
        grid.policy(COLOURED.format("blue"))
        pilot.hang_up()
        assert grid.ended(blue).state == "DONE"
        grid.until(lambda: bool(grid.user.slots("Policy =!= undefined && PolicyFault =?= undefined")))
        green = grid.submit("echo green", attributes={"Colour": "green"})
        assert grid.ended(grid.submit("echo blue", attributes={"Colour": "blue"})).state == "DONE"
        assert grid.states(green) == ["WAITING"]
