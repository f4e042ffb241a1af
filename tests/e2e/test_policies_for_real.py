"""Policies at work on real processes: a real server, pilots as people start them, payloads that are looked at."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage_pilot.supervise.proc import living
from support.live_slots import SHIPPED
from support.policy_processes import PolicyProcesses, cpu_s_of, nice_of, policy_processes, stands_still

HUSH = """
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
def test_a_suspended_job_stands_still_with_all_its_processes_and_goes_on_where_it_was(
    grid: PolicyProcesses, cgroups: bool
) -> None:
    def tree() -> list[bool]:
        return [stands_still(process) for process in pilot.tree_of(loud)]

    loud = grid.submit(f"setsid sh -c '{SPINS}' & (sh -c '{SPINS}' &); {SPINS}; wait", attributes={"Loud": True})
    other = grid.submit(SPINS)
    with grid.pilot(grid.policy(HUSH), cgroups=cgroups) as pilot:
        grid.until(lambda: len(tree()) == 3 and cpu_s_of(pilot.tree_of(loud)) > 0.1 and bool(pilot.tree_of(other)))
        grid.as_operator("node", "set", "--node", "SITE/node1", "Hush=True")
        grid.went_on(loud, "RUNNING", "SUSPENDED")
        grid.until(lambda: tree() == [True] * 3)
        before, meanwhile = cpu_s_of(pilot.tree_of(loud)), cpu_s_of(pilot.tree_of(other))
        grid.until(lambda: cpu_s_of(pilot.tree_of(other)) > meanwhile + 0.5)
        assert cpu_s_of(pilot.tree_of(loud)) == before
        grid.as_operator("node", "unset", "--node", "SITE/node1", "Hush")
        grid.went_on(loud, "RUNNING", "SUSPENDED", "RUNNING")
        grid.until(lambda: tree() == [False] * 3 and cpu_s_of(pilot.tree_of(loud)) > before)
        pilot.put(loud, "go")
        job = grid.ended(loud)
    assert (job.state, job.exit_code, job.attempt) == ("DONE", 0, 1)


def test_bologna_jobs_have_the_nice_values_of_their_kind(grid: PolicyProcesses) -> None:
    script = "setsid sleep 600 & sleep 600"
    short = grid.submit_file(script, "--template", "bologna-short")
    long = grid.submit_file(script, "--template", "bologna-long")
    with grid.pilot(SHIPPED / "bologna.conf") as pilot:
        own = nice_of(pilot.process.pid)
        grid.until(lambda: [len(pilot.tree_of(job)) for job in (short, long)] == [3, 3])
        seen = [{nice_of(process.pid) - own for process in pilot.tree_of(job)} for job in (short, long)]
        assert seen == [{5}, {15}]
        slots = [grid.user.jobs([job])[0].slot for job in (short, long)]
    assert slots[0] in {"slot1", "slot2"}
    assert slots[1] not in {"slot1", "slot2"}


def test_a_short_job_over_its_limit_is_killed_as_a_tree_and_leaves_the_queue(grid: PolicyProcesses) -> None:
    template = grid.folder / "short.toml"
    template.write_text((SHIPPED.parent / "templates" / "bologna-short.toml").read_text().replace("60 * 60", "8"))
    policy = grid.shipped("bologna.conf", "BB_SHORT_JOB_S = 8", "POLLING_INTERVAL = 1", "MachineMaxVacateTime = 1")
    stubborn = "trap '' TERM; setsid sleep 600 & (sleep 600 & sleep 600) & while :; do wait; done"
    job_id = grid.submit_file(stubborn, "--template", template)
    with grid.pilot(policy) as pilot:
        grid.until(lambda: len(pilot.tree_of(job_id)) == 4)
        pids = [process.pid for process in pilot.tree_of(job_id)]
        job = grid.ended(job_id)
        assert list(living(pids)) == []
    assert (job.state, job.attempt) == ("REMOVED", 1)
    assert "periodic_remove" in job.reason, job
    (eviction,) = [event for event in grid.user.events(job_id) if event.after == "WAITING" and event.attempt]
    assert "PREEMPT" in eviction.reason, eviction


def test_a_batch_job_takes_the_slot_of_an_other_job_which_is_told_and_goes_back(grid: PolicyProcesses) -> None:
    policy = grid.shipped("bologna.conf", "BB_SHORT_SLOTS = 1", "BB_QUIET = True")
    told = f"trap 'wait; echo told > {grid.folder}/$NAME; exit' TERM; echo up > $NAME; while :; do sleep 0.05; done"
    program = grid.folder / "program"
    program.write_text(f"{told}\n")
    other = grid.submit(f"NAME=child setsid sh {program} & NAME=main; . {program}")
    with grid.pilot(policy) as pilot:
        grid.until(lambda: pilot.has(other, "main") and pilot.has(other, "child"))
        pids = [process.pid for process in pilot.tree_of(other)]
        batch = grid.submit_file("echo batch", "--template", "bologna-short")
        job = grid.ended(batch)
        assert (job.state, job.slot) == ("DONE", "slot1")
        assert (grid.folder / "main").exists()
        assert (grid.folder / "child").exists()
        assert list(living(pids)) == []
        events = grid.went_on(other, "RUNNING", "WAITING", "RUNNING")
    back = next(event for event in events if event.after == "WAITING" and event.attempt)
    assert "RANK" in back.reason, back


def test_a_job_is_run_by_the_sites_wrapper_and_reads_its_slots_ad(grid: PolicyProcesses) -> None:
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
