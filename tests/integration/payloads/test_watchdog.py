"""The watchdog ends the payloads of a pilot that is killed, stopped or late."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilotage.values.amounts import Amounts
from pilotage_pilot.supervise.cgroups import PayloadLimits, cgroup_maker
from pilotage_pilot.supervise.proc import children_of, is_in_exec
from support.processes import is_running

_PILOT = """
import os, pathlib, signal, subprocess, sys
from pilotage_pilot.supervise.proc import adopt_orphans, hide_memory
from pilotage_pilot.supervise.watchdog import boot_time_s, start_watchdog
hide_memory()
watchdog = start_watchdog()
watchdog.set_groups(map(pathlib.Path, sys.argv[1:]))
adopt_orphans(on=True)
for line in sys.stdin:
    seconds, _, script = line.partition(" ")
    place = watchdog.add(boot_time_s() + float(seconds))
    if script.isspace():
        print(os.getpid(), flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    payload = subprocess.Popen(["/bin/sh", "-c", script], start_new_session=True)
    watchdog.set_leader(place, payload.pid)
    os.write(1, b"started\\n")
"""
"""A line of input is a deadline and the script of a payload; without a script this pilot stops before the start."""


class LazyPilot:
    """A pilot that starts payloads and never looks after them, below a watchdog."""

    def __init__(self, *groups: Path) -> None:
        self.watchdog = subprocess.Popen(
            [sys.executable, "-c", _PILOT, *map(str, groups)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        (pid,) = children_of(self.watchdog.pid)
        return pid

    def start(self, script: str, deadline_s: float = 600) -> int:
        """Start a payload, which has to print one pid; returns it, without a script that of the stopped pilot."""
        assert self.watchdog.stdin is not None
        assert self.watchdog.stdout is not None
        self.watchdog.stdin.write(f"{deadline_s} {script}\n")
        self.watchdog.stdin.flush()
        lines = {self.watchdog.stdout.readline().strip() for _ in range(2 if script else 1)}
        (pid,) = lines - {"started"}
        return int(pid)


@contextmanager
def a_lazy_pilot(*groups: Path) -> Iterator[LazyPilot]:
    pilot = LazyPilot(*groups)
    try:
        yield pilot
    finally:
        for pid in children_of(pilot.watchdog.pid):
            os.kill(pid, signal.SIGKILL)
        pilot.watchdog.communicate(timeout=20)


ESCAPES = {
    "plain": "echo $$; exec sleep 600",
    "cleaned environment": "exec env -i sh -c 'echo $$; exec sleep 600'",
    "own session": "setsid sh -c 'echo $$; exec sleep 600'; :",
    "double fork": "(env -i setsid sh -c 'sh -c \"echo \\$\\$; exec sleep 600\" & :' &); exec sleep 600",
    "orphan": "(env -i setsid sh -c 'sh -c \"echo \\$\\$; exec sleep 600\" & :' &); :",
}


def wait_until_ended(pid: int) -> None:
    """Wait for the end of a process that is no child of this one."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        assert select.select([handle], [], [], 20)[0], f"process {pid} still runs"
    finally:
        os.close(handle)


@pytest.mark.parametrize("escape", ESCAPES)
def test_watchdog_exits_after_every_process_of_a_killed_pilot(escape: str) -> None:
    with a_lazy_pilot() as pilot:
        payload = pilot.start(ESCAPES[escape])
        os.kill(pilot.pid, signal.SIGKILL)
        assert pilot.watchdog.wait(20) == 1
        assert not is_running(payload)


@pytest.mark.parametrize("stopped", [["pilot"], ["pilot", "watchdog"]], ids=" and ".join)
@pytest.mark.parametrize("escape", ESCAPES)
def test_payload_of_stopped_pilot_ends_at_its_deadline(escape: str, stopped: list[str]) -> None:
    with a_lazy_pilot() as pilot:
        other = pilot.start("echo $$; exec sleep 600")
        payload = pilot.start(ESCAPES[escape], deadline_s=2)
        os.kill(pilot.pid, signal.SIGSTOP)
        if "watchdog" in stopped:
            os.kill(pilot.watchdog.pid, signal.SIGSTOP)
        wait_until_ended(payload)
        assert is_running(other)


STOPPED_WITH_A_SIGNAL_PENDING = """
import os, signal
from pilotage_pilot.supervise.watchdog import _BootTimers, boot_time_s
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCONT])
timers = _BootTimers(1)
timers.set(boot_time_s())
while signal.SIGCONT not in signal.sigpending():
    pass
os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_timers_wake_a_process_that_was_stopped_with_their_signal_pending() -> None:
    subprocess.run([sys.executable, "-c", STOPPED_WITH_A_SIGNAL_PENDING], timeout=60, check=True)


def test_pilot_stopped_while_it_starts_a_payload_is_killed() -> None:
    with a_lazy_pilot() as pilot:
        wait_until_ended(pilot.start("", deadline_s=0.5))
        assert pilot.watchdog.wait(20) == 1


def test_watchdog_kills_frozen_payloads() -> None:
    maker = cgroup_maker(f"pilot-of-test-{os.getpid()}")
    if maker is None:
        pytest.skip("control groups cannot be created here")
    group = maker.make("1.1", PayloadLimits(Amounts(1)))
    assert group is not None
    with a_lazy_pilot(*maker.folders) as pilot:
        payload = pilot.start("echo $$; exec sleep 600")
        group.add(payload)
        if not group.freeze():
            pytest.skip("control groups cannot be frozen here")
        os.kill(pilot.pid, signal.SIGKILL)
        pilot.watchdog.wait(20)
        assert not is_running(payload)
    maker.close()


def test_running_missing_and_zombie_processes_are_not_in_exec() -> None:
    assert not is_in_exec(os.getpid())
    assert not is_in_exec(1 << 30)
    ended = subprocess.Popen(["true"], env={})
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert not is_in_exec(ended.pid)
    ended.wait()
    assert ended.pid not in children_of(os.getpid())


def test_hidden_memory_makes_the_process_undumpable() -> None:
    get_dumpable = 3  # prctl(2), PR_GET_DUMPABLE: 0 gives /proc/PID/environ to root alone
    script = (
        "import ctypes; from pilotage_pilot.supervise.proc import hide_memory; hide_memory(); "
        f"print(ctypes.CDLL(None).prctl({get_dumpable}, 0, 0, 0, 0))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"
