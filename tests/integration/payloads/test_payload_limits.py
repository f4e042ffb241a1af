"""Resource use of payloads: usage, memory limits, control groups and nice values."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotage.values.attempts import AttemptKey
from pilotage_pilot.supervise.cgroups import CgroupMaker, cgroup_maker
from pilotage_pilot.supervise.monitor import PayloadRules
from support.pilot_bench import a_job
from support.pilot_ports import a_payload_runner
from support.processes import (
    UNIQUE_S,
    line_written,
    payload_processes,
    process_states,
    processes_with,
    shell_job,
    until,
)


async def test_usage_includes_child_processes(tmp_path: Path) -> None:
    script = "import os; a = bytearray(300 << 20); [os.getpid() for _ in range(2_000_000)]"
    async with a_payload_runner(tmp_path) as bench:
        end, _, _ = await bench.run(shell_job(f'/usr/bin/env python3 -c "{script}"; exit 0'))
    assert end.usage.cpu_s > 0.05
    assert 0 < end.usage.system_cpu_s < end.usage.cpu_s
    assert end.usage.peak_memory_mib >= 300


async def test_usage_is_known_while_payload_runs(tmp_path: Path) -> None:
    hog = (
        "import os, time; a = bytearray(60 << 20); os.posix_fallocate(os.open('big', 65), 0, 20 << 20); time.sleep(600)"
    )
    async with a_payload_runner(tmp_path, PayloadRules(watch_s=0.02, usage_after_s=0)) as bench:
        key = await bench.start(a_job(1, executable="python3", arguments=f'-c "{hog}"'))

        def is_measured() -> bool:
            usage = bench.payload_runner.usages()[key]
            return usage.peak_memory_mib >= 60 and usage.peak_disk_mib >= 20 and usage.cpu_s > 0

        await until(is_measured)
        bench.payload_runner.kill(key)
        end = await bench.next_exit()
        assert end.usage.peak_memory_mib >= 60
        assert end.usage.peak_disk_mib >= 20
        assert bench.payload_runner.usages() == {}


async def test_new_payload_has_no_usage_yet(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path, PayloadRules(usage_after_s=600)) as bench:
        key = await bench.start(shell_job("sleep 600"))
        assert bench.payload_runner.usages() == {}
        bench.payload_runner.kill(key)
        await bench.next_exit()


async def test_memory_is_monitored_without_control_groups(tmp_path: Path) -> None:
    hog = "import time; a = bytearray(80 << 20); time.sleep(600)"
    async with a_payload_runner(tmp_path, PayloadRules(watch_s=0.02)) as bench:
        job = a_job(1, memory_mib=40, request_memory_mib=40, executable="python3", arguments=f"-c '{hog}'")
        key = await bench.start(job)
        exceeded = await bench.limit_passed()
        assert exceeded.key == key
        assert re.fullmatch(r"\d+ MiB used, 40 MiB requested; resubmit with request_memory = [12]00MB", exceeded.reason)
        assert exceeded.memory_limit_mib == 40


@pytest.fixture
def groups() -> CgroupMaker:
    maker = cgroup_maker(f"pilotage-test-{os.getpid()}")
    if maker is None:
        pytest.skip("control groups cannot be created here")
    return maker


def remaining_groups() -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").glob(f"*/**/pilotage-test-{os.getpid()}/*") if path.is_dir()]


async def test_control_group_limits_memory(tmp_path: Path, groups: CgroupMaker) -> None:
    hog = "a = bytearray(200 << 20)"
    async with a_payload_runner(tmp_path, groups=groups) as bench:
        end, _, _ = await bench.run(a_job(1, memory_mib=50, executable="python3", arguments=f"-c '{hog}'"))
    assert end.limit == "more than 50 MiB used, 50 MiB allowed; resubmit with request_memory = 100MB"
    assert end.memory_limit_mib == 50
    assert end.usage.peak_memory_mib <= 51


async def test_control_group_finds_daemons_and_is_removed(tmp_path: Path, groups: CgroupMaker) -> None:
    async with a_payload_runner(tmp_path, groups=groups) as bench:
        key = await bench.start(shell_job(f"env -i setsid sleep {UNIQUE_S} & sleep 600"))
        await until(lambda: bool(processes_with(f"sleep\0{UNIQUE_S}")))
        bench.payload_runner.kill(key)
        await bench.next_exit()
        assert not processes_with(f"sleep\0{UNIQUE_S}")
    assert remaining_groups() == []


@pytest.mark.parametrize(("method", "exit_code", "number"), [("stop", 7, None), ("kill", None, 9)])
async def test_frozen_payload_can_be_resumed_and_ended(
    tmp_path: Path, groups: CgroupMaker, method: str, exit_code: int | None, number: int | None
) -> None:
    async with a_payload_runner(tmp_path, groups=groups) as bench:
        spins = "(setsid sh -c 'while :; do :; done' &); trap 'exit 7' TERM; while :; do :; done"
        key = await bench.start(shell_job(spins))

        def used() -> float:
            return sum(time.cpu_s for time in bench.payload_runner.cpu_times())

        await until(lambda: used() > 0.1)
        bench.payload_runner.suspend(key)
        await until(lambda: is_constant(used))
        if can_freeze(groups):
            assert "T" not in process_states(key), "a frozen control group needs no signal"
        bench.payload_runner.resume(key)
        before = used()
        await until(lambda: used() > before)
        bench.payload_runner.suspend(key)
        getattr(bench.payload_runner, method)(key)
        end = await bench.next_exit()
        assert (end.exit_code, end.signal) == (exit_code, number)
        assert payload_processes(key) == set()
    assert remaining_groups() == []


def can_freeze(groups: CgroupMaker) -> bool:
    return any(
        path.name in ("freezer.state", "cgroup.freeze") for folder in groups.folders for path in folder.iterdir()
    )


def is_constant(measure: Callable[[], float]) -> bool:
    """Whether a value stays the same while this process spins for a while."""
    before = measure()
    sum(range(2_000_000))
    return measure() == before


OWN_NICE = os.getpriority(os.PRIO_PROCESS, 0)


def nice_values(key: AttemptKey) -> set[int]:
    return {os.getpriority(os.PRIO_PROCESS, pid) - OWN_NICE for pid in payload_processes(key)}


def kernel_nice(pid: int) -> int:
    """Return the nice value of a process from /proc/PID/stat."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[16])


@pytest.mark.parametrize("nice", [5, 15])
async def test_all_processes_have_the_nice_value_of_the_slot(tmp_path: Path, nice: int) -> None:
    async with a_payload_runner(tmp_path) as bench:
        key = await bench.start(shell_job("setsid sleep 600 & (sleep 600 & sleep 600) & echo up > up; wait"), nice=nice)
        await until(line_written(bench.work_folder(key) / "up"))
        await until(lambda: len(payload_processes(key)) >= 4)
        assert nice_values(key) == {nice}
        assert {kernel_nice(pid) for pid in payload_processes(key)} == {OWN_NICE + nice}


async def test_nice_value_is_set_before_the_payload_starts(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        for job_id in range(1, 6):
            _, files, _ = await bench.run(shell_job("nice", job_id), nice=7)
            assert files["stdout"].content == f"{OWN_NICE + 7}\n".encode()


async def test_setting_is_the_default_nice_value(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path, PayloadRules(nice=3)) as bench:
        _, files, _ = await bench.run(shell_job("nice"))
        assert files["stdout"].content == f"{OWN_NICE + 3}\n".encode()
        _, files, _ = await bench.run(shell_job("nice", 2), nice=0)
        assert files["stdout"].content == f"{OWN_NICE}\n".encode()


async def test_pilot_keeps_its_nice_value(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        await bench.run(shell_job("true"), nice=19)
    assert {os.getpriority(os.PRIO_PROCESS, int(task)) for task in os.listdir("/proc/self/task")} == {OWN_NICE}
