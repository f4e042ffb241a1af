"""The watchdog kills the payloads of a pilot that has ended."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.jobs.environment import MARKER
from pilotage.values.amounts import Amounts
from pilotage_pilot.supervise.cgroups import PayloadLimits, cgroup_maker
from pilotage_pilot.supervise.proc import Watchdog, adopt_orphans, children_of
from pilotage_pilot.supervise.watchdog import is_in_exec, payload_pids

PILOT_MARKER = f"pilot-of-test-{os.getpid()}"


@pytest.fixture
def subreaper() -> Iterator[None]:
    """Make this process adopt orphans during a test, so that it can wait for their ends."""
    adopt_orphans(on=True)
    yield
    adopt_orphans(on=False)


def a_payload(script: str, marker: str = f"{PILOT_MARKER}/1.1") -> subprocess.Popen[bytes]:
    environment = {MARKER: marker, "PATH": os.environ["PATH"]}
    return subprocess.Popen(["sh", "-c", script], env=environment, start_new_session=True, stdout=subprocess.PIPE)


def test_watchdog_kills_only_payloads_of_its_pilot(subreaper: None) -> None:
    watchdog = Watchdog(PILOT_MARKER)
    payload = a_payload("setsid sleep 600 & echo $!; wait")
    other = a_payload("echo up; exec sleep 600", "another-pilot/1.1")
    assert payload.stdout is not None
    assert other.stdout is not None
    daemon = int(payload.stdout.readline())
    other.stdout.readline()
    watchdog.end(20)
    assert payload.wait(20) == -9
    assert os.waitstatus_to_exitcode(os.waitpid(daemon, 0)[1]) == -9
    assert payload_pids(MARKER, f"{PILOT_MARKER}/") == set()
    assert other.poll() is None
    other.kill()
    other.communicate()
    payload.communicate()


def test_watchdog_kills_processes_in_control_groups(tmp_path: Path) -> None:
    payload = subprocess.Popen(["sleep", "600"], env={})
    group = tmp_path / "1.1"
    group.mkdir()
    (group / "cgroup.procs").write_text(f"{payload.pid}\n")
    watchdog = Watchdog(PILOT_MARKER, (tmp_path,))
    watchdog.end(1)
    assert payload.wait(20) == -9


def test_watchdog_kills_frozen_payloads() -> None:
    maker = cgroup_maker(PILOT_MARKER)
    if maker is None:
        pytest.skip("control groups cannot be created here")
    payload = a_payload("exec sleep 600")
    group = maker.make("1.1", PayloadLimits(Amounts(1)))
    assert group is not None
    group.add(payload.pid)
    if not group.freeze():
        pytest.skip("control groups cannot be frozen here")
    Watchdog(PILOT_MARKER, maker.folders).end(20)
    assert payload.wait(20) == -9
    payload.communicate()
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
