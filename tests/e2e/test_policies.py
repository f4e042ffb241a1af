"""Site policies with a real server, pilot processes and payloads, and operators who change them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage_pilot.node.node import identity
from pilotage_pilot.supervise.proc import living
from support.live_slots import SHIPPED
from support.policy_processes import PolicyPilot, PolicyProcesses, cpu_s_of, is_stopped, nice_of, policy_processes

SUSPEND_POLICY = """
STARTD_ATTRS = $(STARTD_ATTRS) Hush
STARTD.SETTABLE_ATTRS_ADMINISTRATOR = Hush
ENABLE_PERSISTENT_CONFIG = True
Hush = False
POLLING_INTERVAL = 1
WANT_SUSPEND = True
SUSPEND = Hush && TARGET.Loud =?= True
CONTINUE = Hush =!= True
"""
SPINS = "while [ ! -e go ]; do :; done"


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[PolicyProcesses]:
    with policy_processes(tmp_path) as grid:
        yield grid


@pytest.mark.parametrize("cgroups", [False, True])
def test_suspended_job_stops_all_processes_and_resumes(grid: PolicyProcesses, cgroups: bool) -> None:
    def stopped_processes() -> list[bool]:
        return [is_stopped(process) for process in pilot.processes_of(loud)]

    loud = grid.submit(f"setsid sh -c '{SPINS}' & (sh -c '{SPINS}' &); {SPINS}; wait", attributes={"Loud": True})
    other = grid.submit(SPINS)
    with grid.pilot(grid.policy(SUSPEND_POLICY), cgroups=cgroups) as pilot:
        grid.until(
            lambda: (
                len(stopped_processes()) == 3
                and cpu_s_of(pilot.processes_of(loud)) > 0.1
                and bool(pilot.processes_of(other))
            )
        )
        grid.as_operator("node", "set", "--node", "SITE/node1", "Hush=True")
        grid.wait_for_states(loud, "RUNNING", "SUSPENDED")
        grid.until(lambda: stopped_processes() == [True] * 3)
        before, other_before = cpu_s_of(pilot.processes_of(loud)), cpu_s_of(pilot.processes_of(other))
        grid.until(lambda: cpu_s_of(pilot.processes_of(other)) > other_before + 0.5)
        assert cpu_s_of(pilot.processes_of(loud)) == before
        grid.as_operator("node", "unset", "--node", "SITE/node1", "Hush")
        grid.wait_for_states(loud, "RUNNING", "SUSPENDED", "RUNNING")
        grid.until(lambda: stopped_processes() == [False] * 3 and cpu_s_of(pilot.processes_of(loud)) > before)
        pilot.put_file(loud, "go")
        job = grid.ended(loud)
    assert (job.state, job.exit_code, job.attempt) == ("DONE", 0, 1)


def test_bologna_jobs_have_their_nice_values(grid: PolicyProcesses) -> None:
    script = "setsid sleep 600 & sleep 600"
    short = grid.submit_file(script, "--template", "bologna-short")
    long = grid.submit_file(script, "--template", "bologna-long")
    with grid.pilot(SHIPPED / "bologna.conf") as pilot:
        own = nice_of(pilot.process.pid)
        grid.until(lambda: [len(pilot.processes_of(job)) for job in (short, long)] == [3, 3])
        nice_values = [{nice_of(process.pid) - own for process in pilot.processes_of(job)} for job in (short, long)]
        assert nice_values == [{5}, {15}]
        slots = [grid.user.jobs([job])[0].slot for job in (short, long)]
    assert slots[0] in {"slot1", "slot2"}
    assert slots[1] not in {"slot1", "slot2"}


def test_bbs_submit_commands_submit_their_kinds_of_jobs(grid: PolicyProcesses) -> None:
    file = grid.folder / "foo.sub"
    file.write_text("universe = vanilla\nexecutable = /bin/ls\noutput = ls.out\nerror = ls.err\nlog = ls.log\nqueue\n")

    def submit(kind: str) -> int:
        return int(json.loads(run(f"bbs_submit_{kind}", "-a", "arguments = -d /", "--json", str(file)))["jobs"][0])

    def run(*command: str) -> str:
        done = subprocess.run(command, env=grid.pilotage.environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert run("bbs_submit_long", "--help").startswith("Usage: pilotage submit [OPTIONS] [FILE...]")
    short, long, alice = map(submit, ("short", "long", "alice"))
    with grid.pilot(SHIPPED / "bologna.conf"):
        slots = [grid.ended(job).slot for job in (short, long)]
    assert slots[0] in {"slot1", "slot2"}
    assert slots[1] in {"slot3", "slot4", "slot5", "slot6"}
    assert grid.states(alice)[-1] == "WAITING"
    with grid.pilot(SHIPPED / "bologna-alice.conf"):
        assert grid.ended(alice).slot in {"slot3", "slot4"}
    (output,) = [each for each in grid.user.output_files(alice) if each.name == "ls.out"]
    assert grid.user.read_output(alice, output) == b"/\n"


def test_short_job_over_its_limit_is_killed_and_removed(grid: PolicyProcesses) -> None:
    template = grid.folder / "short.toml"
    template.write_text((SHIPPED.parent / "templates" / "bologna-short.toml").read_text().replace("60 * 60", "8"))
    policy = grid.shipped("bologna.conf", "BB_SHORT_JOB_S = 8", "POLLING_INTERVAL = 1", "MachineMaxVacateTime = 1")
    ignores_term = "trap '' TERM; setsid sleep 600 & (sleep 600 & sleep 600) & while :; do wait; done"
    job_id = grid.submit_file(ignores_term, "--template", template)
    with grid.pilot(policy) as pilot:
        grid.until(lambda: len(pilot.processes_of(job_id)) == 4)
        pids = [process.pid for process in pilot.processes_of(job_id)]
        job = grid.ended(job_id)
        assert list(living(pids)) == []
    assert (job.state, job.attempt) == ("REMOVED", 1)
    assert "periodic_remove" in job.reason, job
    (eviction,) = [event for event in grid.user.events(job_id) if event.after == "WAITING" and event.attempt]
    assert "PREEMPT" in eviction.reason, eviction


def test_batch_job_preempts_another_job_which_is_requeued(grid: PolicyProcesses) -> None:
    policy = grid.shipped("bologna.conf", "BB_SHORT_SLOTS = 1", "BB_QUIET = True")
    traps_term = (
        f"trap 'wait; echo signal > {grid.folder}/$NAME; exit' TERM; echo up > $NAME; while :; do sleep 0.05; done"
    )
    program = grid.folder / "program"
    program.write_text(f"{traps_term}\n")
    other = grid.submit(f"NAME=child setsid sh {program} & NAME=main; . {program}")
    with grid.pilot(policy) as pilot:
        grid.until(lambda: pilot.has_file(other, "main") and pilot.has_file(other, "child"))
        pids = [process.pid for process in pilot.processes_of(other)]
        batch = grid.submit_file("echo batch", "--template", "bologna-short")
        job = grid.ended(batch)
        assert (job.state, job.slot) == ("DONE", "slot1")
        assert (grid.folder / "main").exists()
        assert (grid.folder / "child").exists()
        assert list(living(pids)) == []
        events = grid.wait_for_states(other, "RUNNING", "WAITING", "RUNNING")
    requeued = next(event for event in events if event.after == "WAITING" and event.attempt)
    assert "RANK" in requeued.reason, requeued


def test_job_runs_in_the_site_wrapper_with_its_machine_ad(grid: PolicyProcesses) -> None:
    wrapper = grid.folder / "wrapper"
    wrapper.write_text('#!/bin/sh\necho "wrapped: $1 $2"\nexec "$@"\n')
    wrapper.chmod(0o755)
    policy = grid.policy(f'USER_JOB_WRAPPER = {wrapper}\nColour = "green"\nSTARTD_ATTRS = $(STARTD_ATTRS) Colour\n')
    job_id = grid.submit('grep -E "^(Colour|Machine|Cpus) " "$_CONDOR_MACHINE_AD"')
    with grid.pilot(policy):
        assert grid.ended(job_id).state == "DONE"
    first, *ad = grid.output(job_id).splitlines()
    assert first == "wrapped: /bin/sh -c"
    assert sorted(ad) == ['Colour = "green"', "Cpus = 1", 'Machine = "node1"']


COLOUR_POLICY = 'START = TARGET.Colour =?= "{}"\n'
NODE = ("--node", "SITE/node1")


def slots_of_operator(grid: PolicyProcesses) -> str:
    """Return the slots as an operator lists them."""
    return grid.as_operator("slots", "--af", "Name", "OnlyMulticore", "State")


def test_attribute_set_by_operator_outlives_the_pilot(grid: PolicyProcesses) -> None:
    policy = grid.shipped("multicore-drain.conf", "MULTICORE_WIDTH = 2")
    with grid.pilot(policy) as pilot:
        grid.until(lambda: bool(grid.user.slots()))
        assert slots_of_operator(grid) == "slot1@node1 false Unclaimed\n"
        printed = grid.as_operator("node", "set", *NODE, "OnlyMulticore=True")
        assert printed.splitlines()[1].split()[:3] == ["SITE/node1", "OnlyMulticore", "True"]
        grid.until(lambda: bool(grid.user.slots('OnlyMulticore && State == "Owner"')))
        assert slots_of_operator(grid) == "slot1@node1 true Owner\n"
        single = grid.submit("echo single")
        assert grid.ended(grid.submit("echo wide", request_cpus=2)).state == "DONE"
        assert grid.states(single) == ["WAITING"]
        assert pilot.stop() == 0
    with grid.pilot(policy):
        grid.until(lambda: bool(grid.user.slots('OnlyMulticore && State == "Owner"')))
        assert slots_of_operator(grid) == "slot1@node1 true Owner\n"
        assert grid.ended(grid.submit("echo wide", request_cpus=2)).state == "DONE"
        assert grid.states(single) == ["WAITING"]
        grid.as_operator("node", "unset", *NODE, "OnlyMulticore")
        assert grid.ended(single).state == "DONE"
        grid.until(lambda: bool(grid.user.slots("OnlyMulticore == False")))


def test_pilot_with_invalid_policy_does_not_start(grid: PolicyProcesses) -> None:
    policy = grid.policy("POLLING_INTERVAL = 1\nSTART ( TARGET.Owner\n")
    with grid.pilot(policy) as pilot:
        assert pilot.process.wait(30) == 2
        message = f"{policy}, line 2: HTCondor's parser does not understand this: START ( TARGET.Owner"
        assert pilot.log().splitlines()[-1] == f"pilotage-pilot: {message}"


def test_only_a_valid_policy_is_reloaded(grid: PolicyProcesses) -> None:
    policy = grid.policy(COLOUR_POLICY.format("green"))
    fault = "START: ( is not closed: TARGET.Colour =?= ("
    with grid.pilot(policy) as pilot:
        blue = grid.submit("echo blue", attributes={"Colour": "blue"})
        assert grid.ended(grid.submit("echo green", attributes={"Colour": "green"})).state == "DONE"
        grid.policy("START = TARGET.Colour =?= (\n")
        pilot.reload_policy()
        grid.until(lambda: bool(grid.user.slots("PolicyFault =!= undefined")))
        assert grid.as_operator("slots", "--af", "PolicyFault") == f"{policy}, line 1: {fault}\n"
        (warning,) = pilot.lines("policy not read again")
        assert warning["reason"] == f"{policy}, line 1: {fault}"
        assert grid.ended(grid.submit("echo green", attributes={"Colour": "green"})).state == "DONE"
        assert grid.states(blue) == ["WAITING"]
        assert 'TARGET.Colour =?= "green" is false' in grid.pilotage("why", blue)
        grid.policy(COLOUR_POLICY.format("blue"))
        pilot.reload_policy()
        assert grid.ended(blue).state == "DONE"
        grid.until(lambda: bool(grid.user.slots("Policy =!= undefined && PolicyFault =?= undefined")))
        green = grid.submit("echo green", attributes={"Colour": "green"})
        assert grid.ended(grid.submit("echo blue", attributes={"Colour": "blue"})).state == "DONE"
        assert grid.states(green) == ["WAITING"]


UNTIL_GO = "while ! [ -e go ]; do sleep 0.05; done"
EACH_SECOND = "POLLING_INTERVAL = 1"


def start_two_single_core_jobs(grid: PolicyProcesses) -> list[int]:
    singles = [grid.submit(UNTIL_GO) for _ in range(2)]
    for job in singles:
        grid.wait_for_states(job, "RUNNING")
    return singles


def submit_whole_machine_job(grid: PolicyProcesses, script: str) -> int:
    expression = "CAN_RUN_WHOLE_MACHINE =?= True"
    attributes = {"RequiresWholeMachine": True}
    return grid.submit(script, request_cpus=2, attributes=attributes, requirements_expression=expression)


def release(grid: PolicyProcesses, pilot: PolicyPilot, jobs: list[int]) -> int:
    """Let jobs end; return the feed position of the last end."""
    for job in jobs:
        pilot.put_file(job, "go")
        assert grid.ended(job).state == "DONE"
    return max(grid.user.events(job)[-1].position for job in jobs)


def test_whole_machine_job_is_suspended_until_single_core_jobs_end(grid: PolicyProcesses) -> None:
    with grid.pilot(grid.shipped("whole-machine.conf", EACH_SECOND)) as pilot:
        singles = start_two_single_core_jobs(grid)
        whole = submit_whole_machine_job(grid, f"{UNTIL_GO}; echo through")
        grid.wait_for_states(whole, "RUNNING", "SUSPENDED")
        grid.until(lambda: bool(tree := pilot.processes_of(whole)) and all(map(is_stopped, tree)))
        last_end = release(grid, pilot, singles)
        events = grid.wait_for_states(whole, "RUNNING", "SUSPENDED", "RUNNING")
        release(grid, pilot, [whole])
        (job,) = grid.user.jobs([whole])
    assert (job.slot, job.attempt, grid.output(whole)) == ("slot3", 1, "through\n")
    assert [event.position > last_end for event in events if event.after == "RUNNING"] == [False, True]


def test_pause_after_a_whole_machine_job_outlives_its_pilot(grid: PolicyProcesses) -> None:
    policy = grid.shipped("whole-machine-sticky.conf")
    scratch = {"scratch": str(grid.folder / "scratch")}
    with grid.pilot(policy, **scratch) as pilot:
        assert grid.ended(grid.submit("true")).state == "DONE"
        assert grid.ended(submit_whole_machine_job(grid, "true")).state == "DONE"
        assert pilot.stop() == 0
    with grid.pilot(policy, **scratch):
        grid.until(lambda: len(grid.user.slots("slot3_LastClaimEnd =!= undefined")) == 3)
        single = grid.submit("true")
        assert grid.ended(submit_whole_machine_job(grid, "true")).state == "DONE"
        assert grid.states(single)[-1] == "WAITING"
        assert "slot3_LastClaimEnd" in grid.pilotage("why", single)
    with grid.pilot(policy):
        assert grid.ended(single).state == "DONE", "this pilot's scratch remembers no whole-machine job"


def test_waiting_wrapper_prevents_suspension_of_started_jobs(
    grid: PolicyProcesses,
) -> None:
    shipped = (SHIPPED / "whole_machine_job_wrapper").read_text()
    wrapper = grid.folder / "wrapper"
    wrapper.write_text(shipped.replace("sleep_time=10", "sleep_time=3"))
    wrapper.chmod(0o755)
    with grid.pilot(grid.shipped("whole-machine.conf", EACH_SECOND, f"USER_JOB_WRAPPER = {wrapper}")) as pilot:
        singles = start_two_single_core_jobs(grid)
        whole = submit_whole_machine_job(grid, "touch begun; date +%s.%N")
        grid.wait_for_states(whole, "RUNNING", "SUSPENDED")
        assert not pilot.has_file(whole, "begun")
        release(grid, pilot, singles)
        assert grid.ended(whole).state == "DONE"
    began_s = float(grid.output(whole))
    times = [event.time.timestamp() for event in grid.user.events(whole) if event.after == "SUSPENDED" and event.time]
    assert times
    assert max(times) < began_s


def test_slots_of_a_whole_machine_node_print_like_condor_status(grid: PolicyProcesses) -> None:
    with grid.pilot(SHIPPED / "whole-machine.conf"):
        grid.until(lambda: len(grid.user.slots()) == 3)
        head, *rows, _, counts = grid.pilotage("slots").splitlines()
        assert head.split() == ["NAME", "STATE", "ACTIVITY", "LOADAV", "MEM", "ACTVTYTIME", "CPUS", "JOB", "QUEUE"]
        columns = [(row.split()[:3], row.split()[4], row.split()[6:]) for row in rows]
        queue = "SITE/ce01/long"
        assert columns == [
            (["slot1@node1", "Unclaimed", "Idle"], "2000", ["1", queue]),
            (["slot2@node1", "Unclaimed", "Idle"], "2000", ["1", queue]),
            (["slot3@node1", "Owner", "Idle"], "4000", ["2", queue]),
        ]
        assert counts == "3 slots: 1 Owner, 2 Unclaimed"
        owned = grid.pilotage.json_objects("slots", "--constraint", 'State == "Owner"')
        assert [(slot["name"], slot["state"], slot["job"]) for slot in owned] == [("slot3", "Owner", None)]
        attributes = ("--af", "Name", "CAN_RUN_WHOLE_MACHINE", "Cpus * 2", "slot3_State", "NoSuch")
        singles = grid.pilotage("slots", "--constraint", "CAN_RUN_WHOLE_MACHINE == False", *attributes)
        assert singles == "slot1@node1 false 2 Owner undefined\nslot2@node1 false 2 Owner undefined\n"
        everywhere = grid.pilotage("slots", "--af", "OpSys", "Arch", "SlotWeight").splitlines()
        system = f"LINUX {identity()['Arch']}"
        assert everywhere == [f"{system} 1", f"{system} 1", f"{system} 2"]
        whole = grid.pilotage("slots", "--long", "--constraint", "CAN_RUN_WHOLE_MACHINE").splitlines()
        assert {"CAN_RUN_WHOLE_MACHINE = true", 'Name = "slot3@node1"', 'State = "Owner"', "Cpus = 2"} <= {*whole}
        assert any(line.startswith("Start = ") and "slot3_State" in line for line in whole)


def test_costly_policy_loses_its_slot_with_a_visible_reason(grid: PolicyProcesses) -> None:
    texts = [f'S{n} = "{"+".join([f"eval(S{n - 1})"] * 8)}"' for n in range(2, 9)]
    names = " ".join(f"S{n}" for n in range(1, 9))
    policy = ["NUM_SLOTS = 1", 'S1 = "1"', *texts, f"STARTD_ATTRS = $(STARTD_ATTRS) {names}", "START = eval(S8) > 0"]
    job = grid.submit("true")
    with grid.pilot(grid.policy("\n".join((*policy, ""))), wait_s=1) as pilot:
        why = "START costs too much to evaluate: "
        grid.until(lambda: why in pilot.log())
        grid.until(lambda: why in grid.as_operator("slots"))
        (slot,) = grid.as_operator.json_objects("slots")
        assert slot["policy_fault"].startswith(why)
        assert "slot's START costs too much to evaluate" in grid.pilotage("why", job)
        assert grid.states(job)[-1] == "WAITING"
