"""What every node does, be it real or a test's."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from pilotage import clock
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey
from pilotage_pilot.node.node import Checks, LocalNode, node_faults
from pilotage_pilot.node.resources import PilotNode, Probe, ProbeContext, Stated
from pilotage_pilot.supervise.base import PayloadTime
from pilotage_pilot.supervise.spawn import without_secrets
from support.pilot_edges import FakeNode
from support.processes import is_running, until
from support.virtual_clock import LoopTime

BROKEN = ("sh", "-c", "echo no software here; exit 1")


def a_node(kind: str, folder: Path, *commands: tuple[str, ...], timeout_s: float = 30.0) -> PilotNode:
    if kind == "fake":
        return FakeNode(Amounts(2, 100, 100), *(" ".join(command) for command in commands))
    probe = Probe(ProbeContext({}, folder), Stated(), Stated(2, 100, 100))
    return LocalNode(probe, Checks(folder, 1, commands, timeout_s), clock.now, clock.boot_time_s)


@pytest.mark.parametrize("kind", ["real", "fake"])
async def test_a_node_says_what_it_gives(kind: str, tmp_path: Path) -> None:
    found = a_node(kind, tmp_path).share()
    assert found.amounts == Amounts(2, 100, 100)
    assert len(found.gpu_ids) == found.amounts.gpus
    assert found.host


@pytest.mark.parametrize("kind", ["real", "fake"])
async def test_a_node_is_fit_unless_something_is_wrong(kind: str, tmp_path: Path) -> None:
    assert await a_node(kind, tmp_path).faults() == ()
    assert len(await a_node(kind, tmp_path, BROKEN).faults()) == 1


@pytest.mark.parametrize("kind", ["real", "fake"])
def test_a_node_says_again_and_again_what_goes_on_on_it(kind: str, tmp_path: Path) -> None:
    node = a_node(kind, tmp_path)
    node.sample([])
    sample = node.sample([PayloadTime(AttemptKey(1, 1), "slot1_1", 0.0)])
    assert sample.boot_s > 0
    assert sample.load >= 0
    assert set(sample.condor_loads) <= {"slot1_1"}
    assert all(figure is None or figure >= 0 for figure in (sample.keyboard_idle_s, sample.console_idle_s))
    assert all(figure is None or figure > 0 for figure in (sample.disk_mib, sample.memory_mib))


def tells_pid(file: Path) -> str:
    """Return what a shell does to tell the number of what it has just started, whole at once."""
    return f"echo $! > {file}.new; mv {file}.new {file}"


def end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def test_a_command_that_fails_is_told_with_what_it_said(tmp_path: Path) -> None:
    faults = await a_node("real", tmp_path, ("true",), BROKEN, ("no-such-command",)).faults()
    assert faults == (
        "sh -c echo no software here; exit 1: exit code 1: no software here",
        "no-such-command: No such file or directory",
    )


async def test_commands_run_in_the_environment_that_they_are_given(tmp_path: Path) -> None:
    tells = ("/bin/sh", "-c", 'echo "$PILOTAGE_PILOT_TOKEN-$SITE"; exit 1')
    environment = without_secrets({"PILOTAGE_PILOT_TOKEN": "secret", "SITE": "here"})
    checks = Checks(tmp_path, 1, (tells,), environment=environment)
    assert [fault.rpartition(": ")[2] for fault in await node_faults(checks, clock.now)] == ["-here"]


async def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    faults = await a_node("real", tmp_path, ("sh", "-c", "sleep 600 & sleep 600"), timeout_s=0.1).faults()
    assert faults == ("sh -c sleep 600 & sleep 600: it did not end within 0.1 s",)


async def test_a_validation_that_is_broken_off_leaves_no_process_of_its_commands(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    hangs = ("sh", "-c", f"sleep 600 & {tells_pid(pid_file)}; wait")
    validation = asyncio.create_task(a_node("real", tmp_path, hangs).faults())
    await until(pid_file.exists)
    pid = int(pid_file.read_text())
    try:
        validation.cancel()
        with pytest.raises(asyncio.CancelledError):
            await validation
        await until(lambda: not is_running(pid), timeout_s=20)
    finally:
        end(pid)


async def test_a_command_that_hangs_is_a_fault_though_what_has_left_its_group_holds_its_output(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    hangs = ("sh", "-c", f"setsid sleep 600 & {tells_pid(pid_file)}; wait")
    loop_time = LoopTime()
    validation = asyncio.create_task(a_node("real", tmp_path, hangs, timeout_s=100).faults())
    await until(pid_file.exists)
    pid = int(pid_file.read_text())
    try:
        await until(lambda: os.getsid(pid) == pid)
        loop_time.advance(100)
        async with asyncio.timeout(20):
            (fault,) = await validation
    finally:
        end(pid)
    assert fault.endswith("it did not end within 100 s")


async def test_what_a_command_leaves_running_is_no_fault(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    leaves = ("sh", "-c", f"sleep 600 & {tells_pid(pid_file)}")
    try:
        async with asyncio.timeout(20):
            assert await a_node("real", tmp_path, leaves).faults() == ()
    finally:
        end(int(pid_file.read_text()))


async def test_a_scratch_that_is_full_or_cannot_be_written_is_a_fault(tmp_path: Path) -> None:
    probe = Probe(ProbeContext({}, tmp_path), Stated(), Stated())
    full = LocalNode(probe, Checks(tmp_path, 2**40), clock.now, clock.boot_time_s)
    assert "are needed" in (await full.faults())[0]
    absent = LocalNode(probe, Checks(tmp_path / "absent", 1), clock.now, clock.boot_time_s)
    assert "cannot be written" in (await absent.faults())[0]
