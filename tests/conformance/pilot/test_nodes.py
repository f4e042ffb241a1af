"""Nodes of a pilot: the real one and the fake one of tests behave alike."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest

from pilotage import clock
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey
from pilotage_pilot.node.node import Checks, ClaimEndFile, LocalNode, node_faults
from pilotage_pilot.node.resources import PilotNode, Probe, ProbeContext, Stated
from pilotage_pilot.supervise.base import PayloadTime
from pilotage_pilot.supervise.spawn import without_secrets
from support.pilot_ports import EPOCH, FakeNode
from support.processes import is_running, until
from support.virtual_clock import LoopTime

BROKEN = ("sh", "-c", "echo no software here; exit 1")


def a_node(kind: str, folder: Path, *commands: tuple[str, ...], timeout_s: float = 30.0) -> PilotNode:
    if kind == "fake":
        return FakeNode(Amounts(2, 100, 100), *(" ".join(command) for command in commands))
    probe = Probe(ProbeContext({}, folder), Stated(), Stated(2, 100, 100))
    return LocalNode(probe, Checks(folder, 1, commands, timeout_s), ClaimEndFile(folder), clock.now, clock.boot_time_s)


@pytest.mark.parametrize("kind", ["real", "fake"])
async def test_node_reports_its_share(kind: str, tmp_path: Path) -> None:
    share = a_node(kind, tmp_path).share()
    assert share.amounts == Amounts(2, 100, 100)
    assert len(share.gpu_ids) == share.amounts.gpus
    assert share.host


@pytest.mark.parametrize("kind", ["real", "fake"])
async def test_node_has_no_faults_unless_a_check_fails(kind: str, tmp_path: Path) -> None:
    assert await a_node(kind, tmp_path).faults() == ()
    assert len(await a_node(kind, tmp_path, BROKEN).faults()) == 1


@pytest.mark.parametrize("kind", ["real", "fake"])
def test_node_samples_load_and_resources(kind: str, tmp_path: Path) -> None:
    node = a_node(kind, tmp_path)
    node.sample([])
    sample = node.sample([PayloadTime(AttemptKey(1, 1), "slot1_1", 0.0)])
    assert sample.boot_s > 0
    assert sample.load >= 0
    assert set(sample.condor_loads) <= {"slot1_1"}
    assert all(figure is None or figure >= 0 for figure in (sample.keyboard_idle_s, sample.console_idle_s))
    assert all(figure is None or figure > 0 for figure in (sample.disk_mib, sample.memory_mib))


@pytest.mark.parametrize("kind", ["real", "fake"])
def test_node_remembers_when_claims_ended(kind: str, tmp_path: Path) -> None:
    now = clock.now()
    node = a_node(kind, tmp_path)
    assert node.claim_ends() == {}
    node.store_claim_ends({"slot9": now - timedelta(hours=1), "slot1": now})
    node.store_claim_ends({"slot9": now})
    later = a_node("real", tmp_path) if kind == "real" else node
    assert later.claim_ends() == {"slot9": now}


@pytest.mark.parametrize("text", ["", "[1]", '{"slot9": "soon"}', '{"slot9": 1e99}', '{"slot9": 9999999999}', "\xff"])
def test_unusable_memory_of_claims_is_ignored(text: str, tmp_path: Path) -> None:
    node = a_node("real", tmp_path)
    node.store_claim_ends({"slot9": clock.now()})
    (file,) = tmp_path.glob("pilotage-claim-ends-*.json")
    file.write_text(text, encoding="latin-1")
    assert node.claim_ends() == {}


def test_memory_of_claims_is_not_read_through_a_link(tmp_path: Path) -> None:
    node = a_node("real", tmp_path)
    node.store_claim_ends({"slot9": clock.now()})
    (file,) = tmp_path.glob("pilotage-claim-ends-*.json")
    file.rename(tmp_path / "elsewhere")
    file.symlink_to(tmp_path / "elsewhere")
    assert node.claim_ends() == {}


def write_pid(file: Path) -> str:
    """Return shell code that writes the PID of the last background process atomically."""
    return f"echo $! > {file}.new; mv {file}.new {file}"


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


async def test_failed_check_is_reported_with_its_output(tmp_path: Path) -> None:
    faults = await a_node("real", tmp_path, ("true",), BROKEN, ("no-such-command",)).faults()
    assert faults == (
        "sh -c echo no software here; exit 1: exit code 1: no software here",
        "no-such-command: No such file or directory",
    )


async def test_checks_run_in_given_environment(tmp_path: Path) -> None:
    prints_environment = ("/bin/sh", "-c", 'echo "$PILOTAGE_PILOT_TOKEN-$SITE"; exit 1')
    environment = without_secrets({"PILOTAGE_PILOT_TOKEN": "secret", "SITE": "here"})
    checks = Checks(tmp_path, 1, (prints_environment,), environment=environment)
    assert [fault.rpartition(": ")[2] for fault in await node_faults(checks, clock.now)] == ["-here"]


async def test_hanging_check_is_killed(tmp_path: Path) -> None:
    faults = await a_node("real", tmp_path, ("sh", "-c", "sleep 600 & sleep 600"), timeout_s=0.1).faults()
    assert faults == ("sh -c sleep 600 & sleep 600: it did not end within 0.1 s",)


async def test_cancelled_validation_kills_its_checks(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    hangs = ("sh", "-c", f"sleep 600 & {write_pid(pid_file)}; wait")
    validation = asyncio.create_task(a_node("real", tmp_path, hangs).faults())
    await until(pid_file.exists)
    pid = int(pid_file.read_text())
    try:
        validation.cancel()
        with pytest.raises(asyncio.CancelledError):
            await validation
        await until(lambda: not is_running(pid), timeout_s=20)
    finally:
        kill(pid)


async def test_timeout_applies_while_escaped_process_holds_output(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    hangs = ("sh", "-c", f"setsid sleep 600 & {write_pid(pid_file)}; wait")
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
        kill(pid)
    assert fault.endswith("it did not end within 100 s")


async def test_process_left_by_check_is_no_fault(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    leaves = ("sh", "-c", f"sleep 600 & {write_pid(pid_file)}")
    try:
        async with asyncio.timeout(20):
            assert await a_node("real", tmp_path, leaves).faults() == ()
    finally:
        kill(int(pid_file.read_text()))


def test_ends_of_claims_that_cannot_be_stored_leave_no_file(tmp_path: Path) -> None:
    node = a_node("real", tmp_path)
    node.store_claim_ends({"slot1": EPOCH})
    (stored,) = tmp_path.iterdir()
    stored.unlink()
    stored.mkdir()
    node.store_claim_ends({"slot1": EPOCH})
    assert [*tmp_path.iterdir()] == [stored]


async def test_full_or_unwritable_scratch_is_a_fault(tmp_path: Path) -> None:
    probe = Probe(ProbeContext({}, tmp_path), Stated(), Stated())
    full = LocalNode(probe, Checks(tmp_path, 2**40), ClaimEndFile(tmp_path), clock.now, clock.boot_time_s)
    assert "are needed" in (await full.faults())[0]
    absent = LocalNode(probe, Checks(tmp_path / "absent", 1), ClaimEndFile(tmp_path), clock.now, clock.boot_time_s)
    assert "cannot be written" in (await absent.faults())[0]
