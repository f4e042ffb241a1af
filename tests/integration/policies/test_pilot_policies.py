"""A pilot with a site policy and real payloads: nice values, ads, preemption, reload and wrapper."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from pilotage import clock
from pilotage.classads.library import AdValue
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import Outcome
from pilotage_pilot.core.ads.attributes import NodeFacts as SlotsNode
from pilotage_pilot.core.ads.policy_ads import SlotAds
from pilotage_pilot.core.events import PoolsRead
from pilotage_pilot.core.instructions import RequestJobs
from pilotage_pilot.core.machine import PilotMachine
from pilotage_pilot.core.model import GrantedJob, Now, Report
from pilotage_pilot.core.node.node_slots import NodeSlots
from pilotage_pilot.core.rules import Lifetime, PilotRules
from pilotage_pilot.link.base import NodeDescription
from pilotage_pilot.policy.loading import PolicyKeeper, PolicySource
from pilotage_pilot.runner import PilotPorts, PilotRunner
from support.live_slots import SHIPPED
from support.pilot_bench import with_ad
from support.pilot_ports import FakeNode, FakeServerLink, PayloadBench, a_payload_runner
from support.processes import line_written, payload_processes, process_states, shell_job, until

NODE = Amounts(2, 4000, 10_000)
QUICK = PilotRules(wait_s=5, heartbeat_s=0.2, node_report_s=0.1, sample_s=0.2, grace_s=0.5, goodbye_timeout_s=2)
OWN_NICE = os.getpriority(os.PRIO_PROCESS, 0)


@dataclass
class MatchingLink(FakeServerLink):
    """A fake server that grants a job when its slot is offered."""

    def _fitting(self, call: RequestJobs) -> tuple[GrantedJob, ...]:
        offered = {slot.name for slot in call.slots}
        jobs = tuple(job for job in self.waiting if job.slot in offered)
        self.waiting = deque(job for job in self.waiting if job.slot not in offered)
        return jobs


@dataclass
class RunningPilot:
    """A running pilot with a policy, its fake server and its payloads."""

    link: FakeServerLink
    runner: PilotRunner
    bench: PayloadBench
    keeper: PolicyKeeper

    async def report_of(self, job: GrantedJob) -> Report:
        """Return the report with the outcome of a job."""
        await until(lambda: any(report.key == job.key and report.outcome for report in self.link.reports))
        return next(report for report in self.link.reports if report.key == job.key and report.outcome)

    async def output(self, job: GrantedJob) -> str:
        report = await self.report_of(job)
        assert report.outcome is Outcome.EXITED, report
        return next(file.content or b"" for file in report.output_files if file.name == "stdout").decode()


@asynccontextmanager
async def a_pilot(folder: Path, policy: Path) -> AsyncIterator[RunningPilot]:
    keeper = PolicyKeeper(PolicySource(policy, NODE))
    now = Now(clock.now(), clock.boot_time_s())
    ads = SlotAds(keeper.policy, SlotsNode.of("node1", NODE, keeper.layout))
    machine = PilotMachine("pilot", NodeSlots(keeper.layout, ads, now), QUICK, Lifetime(), now)

    async def pools(fresh: bool) -> PoolsRead:
        return PoolsRead(True, ("a" * 64,))

    async with a_payload_runner(folder / "scratch") as bench:
        link = MatchingLink()
        ports = PilotPorts(link, bench.payload_runner, FakeNode(NODE), clock.now, clock.boot_time_s, keeper)
        runner = PilotRunner(machine, ports, NodeDescription("node1", NODE), pools)
        task = asyncio.create_task(runner.run())
        try:
            yield RunningPilot(link, runner, bench, keeper)
        finally:
            task.cancel()
            await asyncio.wait([task])


def a_policy(folder: Path, text: str) -> Path:
    path = folder / "policy.conf"
    path.write_text(text)
    return path


async def test_bologna_policy_sets_nice_values(tmp_path: Path) -> None:
    batch: dict[str, AdValue] = {"BolognaBatchJob": True, "SUBMIT_SITE_DOMAIN": "bo.infn.it"}
    short = with_ad(shell_job("nice", 1), **batch)
    long = with_ad(shell_job("nice", 2, slot="slot3"), LongRunningJob=True, **batch)
    async with a_pilot(tmp_path, SHIPPED / "bologna.conf") as pilot:
        await pilot.link.put(short, long)
        output = [int(await pilot.output(job)) - OWN_NICE for job in (short, long)]
    assert output == [5, 15]


async def test_machine_ad_shows_a_whole_machine_slot(tmp_path: Path) -> None:
    script = 'grep -i ^CAN_RUN_WHOLE_MACHINE "$_CONDOR_MACHINE_AD"; grep ^Owner "$_CONDOR_JOB_AD"; echo $_CONDOR_SLOT'
    single = with_ad(shell_job(script, 1), Owner="ann")
    whole = with_ad(shell_job(script, 2, slot="slot3"), Owner="ann", RequiresWholeMachine=True)
    async with a_pilot(tmp_path, SHIPPED / "whole-machine.conf") as pilot:
        await pilot.link.put(single)
        assert (await pilot.output(single)).splitlines()[:2] == ["CAN_RUN_WHOLE_MACHINE = false", 'Owner = "ann"']
        await pilot.link.put(whole)
        output = (await pilot.output(whole)).splitlines()
    assert output == ["CAN_RUN_WHOLE_MACHINE = true", 'Owner = "ann"', "slot3"]


async def test_preempted_job_is_resumed_vacated_and_killed(tmp_path: Path) -> None:
    policy = a_policy(
        tmp_path,
        "POLLING_INTERVAL = 1\nWANT_SUSPEND = True\nSUSPEND = True\nCONTINUE = False\nMachineMaxVacateTime = 5\n"
        'PREEMPT = Activity == "Suspended" && time() - EnteredCurrentActivity >= 3\n',
    )
    job = with_ad(
        shell_job("trap 'echo signal >> signals' TERM; setsid sleep 600 & echo up > up; while :; do wait; done")
    )
    async with a_pilot(tmp_path, policy) as pilot:
        await pilot.link.put(job)
        await until(lambda: process_states(job.key) == {"T"})
        work = pilot.bench.work_folder(job.key)
        await until(line_written(work / "signals"))
        report = await pilot.report_of(job)
        assert report.outcome is Outcome.EVICTED
        assert report.reason
        assert payload_processes(job.key) == set()


async def test_reloaded_policy_applies_and_its_faults_are_reported(
    tmp_path: Path,
) -> None:
    policy = a_policy(tmp_path, "START = True\n")
    async with a_pilot(tmp_path, policy) as pilot:
        reports = pilot.link.nodes
        await until(lambda: bool(reports))
        assert reports[-1].attributes == {"Policy": str(policy)}
        a_policy(tmp_path, "START = (\n")
        pilot.runner.reload_policy()
        await until(lambda: "PolicyFault" in reports[-1].attributes)
        assert "START" in str(reports[-1].attributes["PolicyFault"])
        before = with_ad(shell_job("nice", 1))
        await pilot.link.put(before)
        assert int(await pilot.output(before)) == OWN_NICE
        a_policy(tmp_path, "JOB_RENICE_INCREMENT = 4\n")
        pilot.runner.reload_policy()
        await until(lambda: "PolicyFault" not in reports[-1].attributes)
        after = with_ad(shell_job("nice", 2))
        await pilot.link.put(after)
        assert int(await pilot.output(after)) == OWN_NICE + 4


async def test_reload_applies_the_new_wrapper(tmp_path: Path) -> None:
    wrapper = tmp_path / "wrapper"
    wrapper.write_text('#!/bin/sh\necho wrapped\nexec "$@"\n')
    wrapper.chmod(0o755)
    policy = a_policy(tmp_path, f"USER_JOB_WRAPPER = {wrapper}\n")
    async with a_pilot(tmp_path, policy) as pilot:
        first = with_ad(shell_job("echo ran", 1))
        await pilot.link.put(first)
        assert await pilot.output(first) == "wrapped\nran\n"
        a_policy(tmp_path, "JOB_RENICE_INCREMENT = 1\n")
        pilot.runner.reload_policy()
        await until(lambda: pilot.keeper.wrapper is None)
        second = with_ad(shell_job("echo ran", 2))
        await pilot.link.put(second)
        assert await pilot.output(second) == "ran\n"
