"""The init process of a payload stays for the next payload of its kind, and only if the last one has left no trace."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pilotage.jobs.files import JobFaultError
from pilotage.values.attempts import AttemptKey
from pilotage_pilot.supervise import process
from pilotage_pilot.supervise.base import NodeFaultError
from pilotage_pilot.supervise.proc import children_of, read_process
from support.pilot_bench import a_job
from support.pilot_ports import PayloadBench, a_payload_runner
from support.processes import is_running, payload_processes, shell_job, until


class Inits:
    """The init processes of one runner of payloads."""

    def __init__(self, bench: PayloadBench) -> None:
        self._bench = bench
        self._others = self._children()

    def _children(self) -> set[int]:
        # A child that measures a folder is in the session of this process.
        found = map(read_process, children_of(os.getpid()))
        return {child.pid for child in found if child is not None and child.session == child.pid}

    def present(self) -> set[int]:
        return self._children() - self._others

    async def after(self, script: str, job_id: int = 1) -> set[int]:
        """Run a script that has to succeed and to print nothing; returns the init processes when its folder is gone."""
        end, files, _ = await self._bench.run(shell_job(script, job_id))
        assert (end.exit_code, {file.content for file in files.values()}) == (0, {b""})
        self._bench.payload_runner.remove(AttemptKey(job_id, 1))
        return self.present()

    async def of_sleeper(self, job_id: int, **job: Any) -> int:
        """Start a payload; returns its init process."""
        key = await self._bench.start(a_job(job_id, executable="/bin/sleep", arguments="600", **job))
        await until(lambda: bool(payload_processes(key)))
        found = read_process(min(payload_processes(key)))
        assert found is not None
        return found.parent


@pytest.mark.parametrize(
    "script",
    [
        "true",
        "sleep 600 & exit 0",
        "setsid -f sleep 600",
        "touch /tmp/x /dev/shm/x $TMPDIR/x; rm /tmp/x /dev/shm/x $TMPDIR/x",
    ],
)
async def test_payload_that_leaves_nothing_leaves_its_init_for_the_next(tmp_path: Path, script: str) -> None:
    async with a_payload_runner(tmp_path) as bench:
        inits = Inits(bench)
        (init,) = await inits.after(script)
        assert children_of(init) == ()
        assert await inits.of_sleeper(2) == init


_ADD_KEY = 248 if os.uname().machine == "x86_64" else 217
_PYTHON = f"{sys.executable} -c 'import ctypes; c = ctypes.CDLL(None); "
TRACES = {
    "file in /tmp": "touch /tmp/x",
    "file in /var/tmp": "touch /var/tmp/x",
    "file in /dev/shm": "touch /dev/shm/x",
    "mode of /tmp": "chmod 755 /tmp",
    "file in TMPDIR": "touch $TMPDIR/x",
    "file in its folder": "touch x",
    "shared memory": "ipcmk -M 4096 > /dev/null",
    "queue": "ipcmk -Q > /dev/null",
    "semaphores": "ipcmk -S 1 > /dev/null",
    "POSIX queue": f'{_PYTHON} exit(c.mq_open(b"/x", 66, 384, None) < 0)\'',
    "key": f'{_PYTHON} exit(c.syscall({_ADD_KEY}, b"user", b"x", b"y", 1, -4) < 0)\'',
    "limit": "prlimit --pid 1 --nofile=100:100",
    "niceness": "renice 19 -p 1 > /dev/null",
    "cores": "taskset -p 1 1 > /dev/null",
    "scheduler": "chrt -b -p 0 1",
    "priority at the disk": "ionice -c 3 -p 1",
}


@pytest.mark.parametrize("trace", TRACES)
async def test_init_ends_with_a_payload_that_leaves_a_trace(tmp_path: Path, trace: str) -> None:
    async with a_payload_runner(tmp_path) as bench:
        inits = Inits(bench)
        await inits.after(TRACES[trace])
        await until(lambda: not inits.present())
        key = await bench.start(shell_job("ls -A . $TMPDIR /tmp /dev/shm; echo end", 2))
        await bench.next_exit()
        files, _ = await bench.store(key)
        assert b"x\n" not in (files["stdout"].content or b"")


@pytest.mark.parametrize(
    "other",
    [{"owner": "bob"}, {"stdout": "other"}, {"memory_mib": 100}, {"disk_mib": 100}],
    ids=lambda each: next(iter(each)),
)
async def test_payload_of_another_kind_gets_its_own_init(tmp_path: Path, other: dict[str, Any]) -> None:
    async with a_payload_runner(tmp_path) as bench:
        inits = Inits(bench)
        (init,) = await inits.after("true")
        assert await inits.of_sleeper(2, **other) != init


async def test_payloads_at_a_time_have_an_init_each(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        inits = Inits(bench)
        (init,) = await inits.after("true")
        assert await inits.of_sleeper(2) == init
        assert await inits.of_sleeper(3) != init


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_init_of_a_payload_that_was_ended_is_not_kept(tmp_path: Path, number: signal.Signals) -> None:
    async with a_payload_runner(tmp_path) as bench:
        inits = Inits(bench)
        await inits.after("true")
        await inits.of_sleeper(2)
        key = AttemptKey(2, 1)
        bench.payload_runner.stop(key) if number is signal.SIGTERM else bench.payload_runner.kill(key)
        assert (await bench.next_exit()).signal == number
        await until(lambda: not inits.present())
        bench.payload_runner.remove(key)


async def test_use_of_earlier_payloads_does_not_count(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        inits = Inits(bench)
        burn = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done"
        first, _, _ = await bench.run(shell_job(burn))
        assert first.usage.cpu_s > 0.1
        bench.payload_runner.remove(AttemptKey(1, 1))
        (init,) = inits.present()
        second, _, _ = await bench.run(shell_job("true", 2))
        assert second.usage.cpu_s < 0.1
        bench.payload_runner.remove(AttemptKey(2, 1))
        assert await inits.of_sleeper(3) == init
        times = {time.key: time.cpu_s for time in bench.payload_runner.cpu_times()}
        assert times[AttemptKey(3, 1)] < 0.1
        bench.payload_runner.kill(AttemptKey(3, 1))
        assert (await bench.next_exit()).usage.cpu_s < 0.1


async def test_program_that_cannot_be_executed_fails_in_a_kept_init_too(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        inits = Inits(bench)
        await inits.after("true")
        with pytest.raises(JobFaultError, match="cannot be run"):
            await bench.start(a_job(2, executable="/bin/true", arguments="x" * (1 << 18)))
        await until(lambda: not inits.present())


async def test_init_that_waits_too_long_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_KEPT_S", 0.05)
    async with a_payload_runner(tmp_path) as bench:
        inits = Inits(bench)
        assert await inits.after("true")
        await until(lambda: not inits.present())
        await until(lambda: not list(tmp_path.glob("*/jobs/*")))


async def test_job_is_started_again_when_a_kept_init_was_killed(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        inits = Inits(bench)
        (init,) = await inits.after("true")
        os.kill(init, signal.SIGKILL)
        await until(lambda: not is_running(init))
        with pytest.raises(NodeFaultError, match="init has ended"):
            await bench.start(a_job(2))
        await until(lambda: not inits.present())


_UNPRIVILEGED = """
import asyncio, pathlib, sys
from support.pilot_ports import a_payload_runner
from support.processes import shell_job
from test_kept_init import Inits


async def main() -> None:
    async with a_payload_runner(pathlib.Path(sys.argv[1])) as bench:
        inits = Inits(bench)
        (init,) = await inits.after("true")
        assert await inits.after("true", 2) == {init}
        # The empty folder that hides a home belongs to the user of such a pilot.
        assert await inits.after(f"touch {pathlib.Path.home()}/x", 3) != {init}
        end, _, _ = await bench.run(shell_job(f"test ! -e {pathlib.Path.home()}/x", 4))
        assert end.exit_code == 0


asyncio.run(main())
"""


def test_pilot_without_root_passes_no_file_on_either(tmp_path: Path) -> None:
    places = os.pathsep.join((str(Path(__file__).parent), str(Path(__file__).parents[2])))
    command = ["unshare", "--user", "--map-user=1000", "--map-group=1000", sys.executable, "-c", _UNPRIVILEGED]
    subprocess.run([*command, str(tmp_path)], check=True, env={**os.environ, "PYTHONPATH": places})
