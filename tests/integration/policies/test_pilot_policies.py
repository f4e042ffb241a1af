"""A pilot that follows a site's policy with real processes: their priority, their ads, how they are put out."""

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
from support.pilot_edges import Bench, FakeLink, FakeNode, a_workshop
from support.processes import of_payload, shell, states_of, until, wrote

NODE = Amounts(2, 4000, 10_000)
QUICK = PilotRules(wait_s=5, heartbeat_s=0.2, node_report_s=0.1, sample_s=0.2, grace_s=0.5, goodbye_timeout_s=2)
OWN_NICE = os.getpriority(os.PRIO_PROCESS, 0)


@dataclass
class MatchingLink(FakeLink):
    """A server that grants a job to the slot that it names, once that is offered."""

    def _fitting(self, call: RequestJobs) -> tuple[GrantedJob, ...]:
        offered = {slot.name for slot in call.slots}
        jobs = tuple(job for job in self.waiting if job.slot in offered)
        self.waiting = deque(job for job in self.waiting if job.slot not in offered)
        return jobs


@dataclass
class Running:
    """A pilot at work under a policy, with its server and its payloads."""

    link: FakeLink
    runner: PilotRunner
    bench: Bench
    keeper: PolicyKeeper

    async def outcome(self, job: GrantedJob) -> Report:
        """Return the outcome of a job as soon as the server has it."""
        await until(lambda: any(report.key == job.key and report.outcome for report in self.link.reports))
        return next(report for report in self.link.reports if report.key == job.key and report.outcome)

    async def output(self, job: GrantedJob) -> str:
        report = await self.outcome(job)
        assert report.outcome is Outcome.EXITED, report
        return next(file.content or b"" for file in report.output_files if file.name == "stdout").decode()


@asynccontextmanager
async def a_pilot(folder: Path, policy: Path) -> AsyncIterator[Running]:
    keeper = PolicyKeeper(PolicySource(policy, NODE))
    now = Now(clock.now(), clock.boot_time_s())
    ads = SlotAds(keeper.policy, SlotsNode.of("node1", NODE, keeper.layout))
    machine = PilotMachine("pilot", NodeSlots(keeper.layout, ads, now), QUICK, Lifetime(), now)

    async def pools(fresh: bool) -> PoolsRead:
        return PoolsRead(True, ("a" * 64,))

    async with a_workshop(folder / "scratch") as bench:
        link = MatchingLink()
        edges = PilotPorts(link, bench.workshop, FakeNode(NODE), clock.now, clock.boot_time_s, keeper)
        runner = PilotRunner(machine, edges, NodeDescription("node1", NODE), pools)
        task = asyncio.create_task(runner.run())
        try:
            yield Running(link, runner, bench, keeper)
        finally:
            task.cancel()
            await asyncio.wait([task])


def a_policy(folder: Path, text: str) -> Path:
    path = folder / "policy.conf"
    path.write_text(text)
    return path


async def test_bologna_jobs_are_as_nice_as_the_site_wants(tmp_path: Path) -> None:
    batch: dict[str, AdValue] = {"BolognaBatchJob": True, "SUBMIT_SITE_DOMAIN": "bo.infn.it"}
    short = with_ad(shell("nice", 1), **batch)
    long = with_ad(shell("nice", 2, slot="slot3"), LongRunningJob=True, **batch)
    async with a_pilot(tmp_path, SHIPPED / "bologna.conf") as pilot:
        await pilot.link.put(short, long)
        said = [int(await pilot.output(job)) - OWN_NICE for job in (short, long)]
    assert said == [5, 15]


async def test_a_job_reads_in_its_machine_ad_whether_it_has_the_whole_machine(tmp_path: Path) -> None:
    script = 'grep -i ^CAN_RUN_WHOLE_MACHINE "$_CONDOR_MACHINE_AD"; grep ^Owner "$_CONDOR_JOB_AD"; echo $_CONDOR_SLOT'
    single = with_ad(shell(script, 1), Owner="ann")
    whole = with_ad(shell(script, 2, slot="slot3"), Owner="ann", RequiresWholeMachine=True)
    async with a_pilot(tmp_path, SHIPPED / "whole-machine.conf") as pilot:
        await pilot.link.put(single)
        assert (await pilot.output(single)).splitlines()[:2] == ["CAN_RUN_WHOLE_MACHINE = false", 'Owner = "ann"']
        await pilot.link.put(whole)
        said = (await pilot.output(whole)).splitlines()
    assert said == ["CAN_RUN_WHOLE_MACHINE = true", 'Owner = "ann"', "slot3"]


async def test_a_job_that_its_slot_puts_out_is_let_go_on_given_its_grace_and_killed_as_a_tree(tmp_path: Path) -> None:
    policy = a_policy(
        tmp_path,
        "POLLING_INTERVAL = 1\nWANT_SUSPEND = True\nSUSPEND = True\nCONTINUE = False\nMachineMaxVacateTime = 5\n"
        'PREEMPT = Activity == "Suspended" && time() - EnteredCurrentActivity >= 3\n',
    )
    job = with_ad(shell("trap 'echo told >> told' TERM; setsid sleep 600 & echo up > up; while :; do wait; done"))
    async with a_pilot(tmp_path, policy) as pilot:
        await pilot.link.put(job)
        await until(lambda: states_of(job.key) == {"T"})
        work = pilot.bench.work_of(job.key)
        await until(wrote(work / "told"))
        report = await pilot.outcome(job)
        assert report.outcome is Outcome.EVICTED
        assert report.reason
        assert of_payload(job.key) == set()


async def test_a_policy_that_is_read_again_holds_from_then_on_and_a_broken_one_is_told_from_afar(
    tmp_path: Path,
) -> None:
    policy = a_policy(tmp_path, "START = True\n")
    async with a_pilot(tmp_path, policy) as pilot:
        told = pilot.link.nodes
        await until(lambda: bool(told))
        assert told[-1].attributes == {"Policy": str(policy)}
        a_policy(tmp_path, "START = (\n")
        pilot.runner.reload_policy()
        await until(lambda: "PolicyFault" in told[-1].attributes)
        assert "START" in str(told[-1].attributes["PolicyFault"])
        still = with_ad(shell("nice", 1))
        await pilot.link.put(still)
        assert int(await pilot.output(still)) == OWN_NICE
        a_policy(tmp_path, "JOB_RENICE_INCREMENT = 4\n")
        pilot.runner.reload_policy()
        await until(lambda: "PolicyFault" not in told[-1].attributes)
        nicer = with_ad(shell("nice", 2))
        await pilot.link.put(nicer)
        assert int(await pilot.output(nicer)) == OWN_NICE + 4


async def test_a_reload_gives_jobs_the_new_wrapper(tmp_path: Path) -> None:
    wrapper = tmp_path / "wrapper"
    wrapper.write_text('#!/bin/sh\necho wrapped\nexec "$@"\n')
    wrapper.chmod(0o755)
    policy = a_policy(tmp_path, f"USER_JOB_WRAPPER = {wrapper}\n")
    async with a_pilot(tmp_path, policy) as pilot:
        first = with_ad(shell("echo ran", 1))
        await pilot.link.put(first)
        assert await pilot.output(first) == "wrapped\nran\n"
        a_policy(tmp_path, "JOB_RENICE_INCREMENT = 1\n")
        pilot.runner.reload_policy()
        await until(lambda: pilot.keeper.wrapper is None)
        second = with_ad(shell("echo ran", 2))
        await pilot.link.put(second)
        assert await pilot.output(second) == "ran\n"
