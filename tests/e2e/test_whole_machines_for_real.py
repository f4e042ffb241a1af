"""The whole-machine policy on real processes: who waits for whom, and how the node's slots are shown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.live_slots import SHIPPED
from support.policy_processes import PolicyPilot, PolicyProcesses, policy_processes, stands_still

UNTIL_TOLD = "while ! [ -e go ]; do sleep 0.05; done"
EACH_SECOND = "POLLING_INTERVAL = 1"


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[PolicyProcesses]:
    with policy_processes(tmp_path) as grid:
        yield grid


def two_singles(grid: PolicyProcesses) -> list[int]:
    singles = [grid.submit(UNTIL_TOLD) for _ in range(2)]
    for job in singles:
        grid.went_on(job, "RUNNING")
    return singles


def a_whole(grid: PolicyProcesses, script: str) -> int:
    expression = "CAN_RUN_WHOLE_MACHINE =?= True"
    attributes = {"RequiresWholeMachine": True}
    return grid.submit(script, request_cpus=2, attributes=attributes, requirements_expression=expression)


def release(grid: PolicyProcesses, pilot: PolicyPilot, jobs: list[int]) -> int:
    """Let jobs end; returns the position of the last one's end in the feed of events."""
    for job in jobs:
        pilot.put(job, "go")
        assert grid.ended(job).state == "DONE"
    return max(grid.user.events(job)[-1].position for job in jobs)


def test_a_whole_machine_job_waits_suspended_for_two_single_core_jobs_and_then_runs(grid: PolicyProcesses) -> None:
    with grid.pilot(grid.shipped("whole-machine.conf", EACH_SECOND)) as pilot:
        singles = two_singles(grid)
        whole = a_whole(grid, f"{UNTIL_TOLD}; echo through")
        grid.went_on(whole, "RUNNING", "SUSPENDED")
        grid.until(lambda: bool(tree := pilot.tree_of(whole)) and all(map(stands_still, tree)))
        last_end = release(grid, pilot, singles)
        events = grid.went_on(whole, "RUNNING", "SUSPENDED", "RUNNING")
        release(grid, pilot, [whole])
        (job,) = grid.user.jobs([whole])
    assert (job.slot, job.attempt, grid.output(whole)) == ("slot3", 1, "through\n")
    assert [event.position > last_end for event in events if event.after == "RUNNING"] == [False, True]


def test_with_the_waiting_wrapper_a_whole_machine_job_is_never_suspended_once_it_has_begun(
    grid: PolicyProcesses,
) -> None:
    shipped = (SHIPPED / "whole_machine_job_wrapper").read_text()
    wrapper = grid.folder / "wrapper"
    wrapper.write_text(shipped.replace("sleep_time=10", "sleep_time=3"))
    wrapper.chmod(0o755)
    with grid.pilot(grid.shipped("whole-machine.conf", EACH_SECOND, f"USER_JOB_WRAPPER = {wrapper}")) as pilot:
        singles = two_singles(grid)
        whole = a_whole(grid, "touch begun; date +%s.%N")
        grid.went_on(whole, "RUNNING", "SUSPENDED")
        assert not pilot.has(whole, "begun")
        release(grid, pilot, singles)
        assert grid.ended(whole).state == "DONE"
    began_s = float(grid.output(whole))
    times = [event.time.timestamp() for event in grid.user.events(whole) if event.after == "SUSPENDED" and event.time]
    assert times
    assert max(times) < began_s


def test_people_see_the_slots_of_a_whole_machine_node_as_condor_status_shows_them(grid: PolicyProcesses) -> None:
    with grid.pilot(SHIPPED / "whole-machine.conf"):
        grid.until(lambda: len(grid.user.slots()) == 3)
        head, *rows, _, counts = grid.pilotage("slots").splitlines()
        assert head.split() == ["NAME", "STATE", "ACTIVITY", "LOADAV", "MEM", "ACTVTYTIME", "CPUS", "JOB", "QUEUE"]
        shown = [(row.split()[:3], row.split()[4], row.split()[6:]) for row in rows]
        queue = "SITE/ce01/long"
        assert shown == [
            (["slot1@node1", "Unclaimed", "Idle"], "2000", ["1", queue]),
            (["slot2@node1", "Unclaimed", "Idle"], "2000", ["1", queue]),
            (["slot3@node1", "Owner", "Idle"], "4000", ["2", queue]),
        ]
        assert counts == "3 slots: 1 Owner, 2 Unclaimed"
        owned = grid.pilotage.objects("slots", "--constraint", 'State == "Owner"')
        assert [(slot["name"], slot["state"], slot["job"]) for slot in owned] == [("slot3", "Owner", None)]
        asked = ("--af", "Name", "CAN_RUN_WHOLE_MACHINE", "Cpus * 2", "slot3_State", "NoSuch")
        singles = grid.pilotage("slots", "--constraint", "CAN_RUN_WHOLE_MACHINE == False", *asked)
        assert singles == "slot1@node1 false 2 Owner undefined\nslot2@node1 false 2 Owner undefined\n"
        whole = grid.pilotage("slots", "--long", "--constraint", "CAN_RUN_WHOLE_MACHINE").splitlines()
        assert {"CAN_RUN_WHOLE_MACHINE = true", 'Name = "slot3@node1"', 'State = "Owner"', "Cpus = 2"} <= {*whole}
        assert any(line.startswith("Start = ") and "slot3_State" in line for line in whole)
