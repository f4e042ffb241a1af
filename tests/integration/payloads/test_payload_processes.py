"""Processes of payloads: stop, suspend, resume, warn and kill reach all of them."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

from pilotage.values.attempts import AttemptKey
from pilotage.values.isolation import Isolation
from pilotage_pilot.supervise.monitor import PayloadRules
from support.pilot_ports import PayloadBench, a_payload_runner
from support.processes import (
    UNIQUE_S,
    line_written,
    payload_processes,
    process_states,
    processes_with,
    shell_job,
    until,
)


async def test_kill_reaches_daemons_in_other_sessions(scratch: Path, level: Isolation) -> None:
    async with a_payload_runner(scratch, level=level) as bench:
        key = await bench.start(
            shell_job("setsid sh -c 'setsid sleep 600 & sleep 600' & sleep 600 & echo up > up; wait")
        )
        await until(line_written(bench.work_folder(key) / "up"))
        await until(lambda: len(payload_processes(key)) >= 4)
        bench.payload_runner.kill(key)
        end = await bench.next_exit()
        assert (end.exit_code, end.signal) == (None, signal.SIGKILL)
        assert payload_processes(key) == set()


async def test_processes_left_running_are_killed_at_the_end(scratch: Path, level: Isolation) -> None:
    async with a_payload_runner(scratch, level=level) as bench:
        key = await bench.start(shell_job("setsid sleep 600 & sleep 600 & echo left"))
        end = await bench.next_exit()
        assert end.exit_code == 0
        assert payload_processes(key) == set()


async def test_daemon_without_marker_is_killed_with_the_only_payload(scratch: Path, level: Isolation) -> None:
    async with a_payload_runner(scratch, level=level) as bench:
        key = await bench.start(shell_job(f"env -i /usr/bin/setsid sleep {UNIQUE_S} & wait"))
        await until(lambda: bool(processes_with(f"sleep\0{UNIQUE_S}")))
        bench.payload_runner.kill(key)
        await bench.next_exit()
        assert not processes_with(f"sleep\0{UNIQUE_S}")


async def test_stopped_payload_may_shut_down_even_if_suspended(scratch: Path, level: Isolation) -> None:
    async with a_payload_runner(scratch, level=level) as bench:
        key = await bench.start(shell_job("trap 'echo bye; exit 7' TERM; echo up > up; while :; do sleep 0.05; done"))
        await until(line_written(bench.work_folder(key) / "up"))
        bench.payload_runner.suspend(key)
        bench.payload_runner.stop(key)
        end = await bench.next_exit()
        files, _ = await bench.store(key)
    assert end.exit_code == 7
    assert files["stdout"].content == b"bye\n"


async def test_suspend_and_resume_affect_the_whole_process_tree(scratch: Path, level: Isolation) -> None:
    async with a_payload_runner(scratch, level=level) as bench:
        key = await bench.start(shell_job("setsid sleep 600 & (sleep 600 & sleep 600) & echo up > up; wait"))
        await until(line_written(bench.work_folder(key) / "up"))
        await until(lambda: len(payload_processes(key)) >= 4)

        bench.payload_runner.suspend(key)
        await until(lambda: process_states(key) == {"T"})
        bench.payload_runner.resume(key)
        await until(lambda: "T" not in process_states(key))


SPINS = "while :; do :; done"


def cpu_s_of(bench: PayloadBench, key: AttemptKey) -> float:
    return next(time.cpu_s for time in bench.payload_runner.cpu_times() if time.key == key)


async def test_only_the_suspended_payload_uses_no_cpu_time(scratch: Path, level: Isolation) -> None:
    async with a_payload_runner(scratch, level=level) as bench:
        key = await bench.start(shell_job(f"(setsid sh -c '{SPINS}' &) ; {SPINS}"))
        other = await bench.start(shell_job(SPINS, 2))
        await until(lambda: len(payload_processes(key)) == 2 and cpu_s_of(bench, key) > 0.1)
        bench.payload_runner.suspend(key)
        await until(lambda: process_states(key) == {"T"})
        before, other_before = cpu_s_of(bench, key), cpu_s_of(bench, other)
        await until(lambda: cpu_s_of(bench, other) > other_before + 0.3)
        assert cpu_s_of(bench, key) == before
        bench.payload_runner.resume(key)
        await until(lambda: cpu_s_of(bench, key) > before)


async def test_kills_payload_that_ignores_termination(scratch: Path, level: Isolation) -> None:
    async with a_payload_runner(scratch, level=level) as bench:
        ignores_term = "trap '' TERM; setsid sleep 600 & sleep 600 & echo up > up; while :; do wait; done"
        key = await bench.start(shell_job(ignores_term))
        await until(line_written(bench.work_folder(key) / "up"))
        bench.payload_runner.suspend(key)
        bench.payload_runner.stop(key)
        await until(lambda: "T" not in process_states(key))
        assert len(payload_processes(key)) >= 3
        bench.payload_runner.kill(key)
        assert (await bench.next_exit()).signal == signal.SIGKILL
        assert payload_processes(key) == set()


async def test_warning_writes_a_file_and_sends_a_signal(scratch: Path, level: Isolation) -> None:
    async with a_payload_runner(scratch, PayloadRules(warn_signal=signal.SIGUSR1), level=level) as bench:
        key = await bench.start(
            shell_job("trap 'cat $PILOTAGE_WARNING_FILE; exit 0' USR1; echo up > up; while :; do sleep 0.05; done")
        )
        await until(line_written(bench.work_folder(key) / "up"))
        bench.payload_runner.warn(key, 240.0)
        await bench.next_exit()
        files, _ = await bench.store(key)
    assert files["stdout"].content == b"240\n"


async def test_pipe_at_the_warning_path_does_not_block(scratch: Path, level: Isolation) -> None:
    async with a_payload_runner(scratch, level=level) as bench:
        key = await bench.start(shell_job('mkfifo "$PILOTAGE_WARNING_FILE"; echo up > up; sleep 600'))
        await until(line_written(bench.work_folder(key) / "up"))
        warning = asyncio.create_task(asyncio.to_thread(bench.payload_runner.warn, key, 240.0))
        warned, _ = await asyncio.wait({warning}, timeout=10)
        os.close(os.open(bench.work_folder(key).parent / "glidein-ends", os.O_RDONLY | os.O_NONBLOCK))
        assert warned
        bench.payload_runner.kill(key)
        await bench.next_exit()


async def test_link_at_the_warning_path_is_not_followed(scratch: Path, level: Isolation) -> None:
    async with a_payload_runner(scratch, level=level) as bench:
        key = await bench.start(
            shell_job('echo mine > other; ln -s work/other "$PILOTAGE_WARNING_FILE"; echo up > up; sleep 600')
        )
        await until(line_written(bench.work_folder(key) / "up"))
        bench.payload_runner.warn(key, 240.0)
        assert (bench.work_folder(key) / "other").read_text() == "mine\n"
        bench.payload_runner.kill(key)
        await bench.next_exit()


async def test_second_warning_replaces_the_first(scratch: Path, level: Isolation) -> None:
    async with a_payload_runner(scratch, level=level) as bench:
        key = await bench.start(shell_job("sleep 600"))
        for left_s in (1234.0, 5.0):
            bench.payload_runner.warn(key, left_s)
        assert (bench.work_folder(key).parent / "glidein-ends").read_text() == "5\n"
        bench.payload_runner.kill(key)
        await bench.next_exit()


async def test_close_ends_payloads_and_removes_folders(scratch: Path, level: Isolation) -> None:
    async with a_payload_runner(scratch, level=level) as bench:
        key = await bench.start(shell_job("sleep 600"))
        assert payload_processes(key)
    assert payload_processes(AttemptKey(1, 1)) == set()
    assert os.listdir(scratch) == []


TRACED = """
import ctypes, os, signal, sys
signal.signal(signal.SIGUSR1, lambda *_: print("handled", flush=True))
ctypes.CDLL(None).ptrace(0, 0, 0, 0)  # PTRACE_TRACEME: each signal stops it until its parent lets it go on
{}
"""


@pytest.mark.parametrize(
    ("end", "printed"),
    [
        ("os.kill(os.getpid(), signal.SIGUSR1); sys.exit(7)", b"handled\n"),
        ('os.execv("/bin/sh", ["sh", "-c", "exit 7"])', b""),
    ],
    ids=["signal", "exec"],
)
async def test_payload_that_asks_to_be_traced_goes_on(tmp_path: Path, end: str, printed: bytes) -> None:
    script = f"cat > traced.py <<'END'\n{TRACED.format(end)}\nEND\nexec {sys.executable} traced.py"
    async with a_payload_runner(tmp_path) as bench:
        exited, files, _ = await bench.run(shell_job(script))
    assert (exited.exit_code, exited.signal) == (7, None)
    assert (files["stdout"].content or b"") == printed
