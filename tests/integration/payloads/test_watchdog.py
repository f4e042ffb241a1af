"""The warden: what it kills when its pilot is gone, and that nothing gets past it."""

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

OURS = f"pilot-of-test-{os.getpid()}"


@pytest.fixture
def orphanage() -> Iterator[None]:
    """Make this process the parent of orphans for a while, so that it can wait for their ends."""
    adopt_orphans(on=True)
    yield
    adopt_orphans(on=False)


def a_payload(script: str, marker: str = f"{OURS}/1.1") -> subprocess.Popen[bytes]:
    environment = {MARKER: marker, "PATH": os.environ["PATH"]}
    return subprocess.Popen(["sh", "-c", script], env=environment, start_new_session=True, stdout=subprocess.PIPE)


def test_the_warden_kills_the_payloads_of_its_pilot_with_their_daemons_and_no_others(orphanage: None) -> None:
    warden = Watchdog(OURS)
    payload = a_payload("setsid sleep 600 & echo $!; wait")
    other = a_payload("echo up; exec sleep 600", "another-pilot/1.1")
    assert payload.stdout is not None
    assert other.stdout is not None
    daemon = int(payload.stdout.readline())
    other.stdout.readline()
    warden.end(20)
    assert payload.wait(20) == -9
    assert os.waitstatus_to_exitcode(os.waitpid(daemon, 0)[1]) == -9
    assert payload_pids(MARKER, f"{OURS}/") == set()
    assert other.poll() is None
    other.kill()
    other.communicate()
    payload.communicate()


def test_the_warden_kills_what_is_in_the_groups_of_payloads(tmp_path: Path) -> None:
    payload = subprocess.Popen(["sleep", "600"], env={})
    group = tmp_path / "1.1"
    group.mkdir()
    (group / "cgroup.procs").write_text(f"{payload.pid}\n")
    warden = Watchdog(OURS, (tmp_path,))
    warden.end(1)
    assert payload.wait(20) == -9


def test_the_warden_kills_also_what_the_kernel_has_frozen() -> None:
    maker = cgroup_maker(OURS)
    if maker is None:
        pytest.skip("this machine lets the test make no control groups")
    payload = a_payload("exec sleep 600")
    group = maker.make("1.1", PayloadLimits(Amounts(1)))
    assert group is not None
    group.add(payload.pid)
    if not group.freeze():
        pytest.skip("this machine lets the test freeze no control groups")
    Watchdog(OURS, maker.folders).end(20)
    assert payload.wait(20) == -9
    payload.communicate()
    maker.close()


def test_a_process_is_in_exec_neither_before_nor_after_nor_as_a_zombie() -> None:
    assert not is_in_exec(os.getpid())
    assert not is_in_exec(1 << 30)
    ended = subprocess.Popen(["true"], env={})
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert not is_in_exec(ended.pid)
    ended.wait()
    assert ended.pid not in children_of(os.getpid())


def test_a_process_that_hides_its_memory_cannot_be_read_by_others_of_its_user() -> None:
    get_dumpable = 3  # prctl(2), PR_GET_DUMPABLE: 0 gives /proc/PID/environ to root alone
    script = (
        "import ctypes; from pilotage_pilot.supervise.proc import hide_memory; hide_memory(); "
        f"print(ctypes.CDLL(None).prctl({get_dumpable}, 0, 0, 0, 0))"
    )
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert said.stdout == "0\n"
