"""What a payload uses, and that it is held to what its job asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from pilotage_pilot.supervise.cgroups import CgroupMaker, cgroup_maker
from pilotage_pilot.supervise.payload_runner import PayloadRules
from pilotage_pilot.supervise.proc import read_process
from support.pilot_bench import a_job
from support.pilot_edges import a_workshop
from support.processes import of_payload, shell, states_of, until, wrote


async def test_usage_counts_the_cpu_time_and_memory_of_children(tmp_path: Path) -> None:
    script = "import os; a = bytearray(300 << 20); [os.getpid() for _ in range(2_000_000)]"
    async with a_workshop(tmp_path) as bench:
        end, _, _ = await bench.run(shell(f'/usr/bin/env python3 -c "{script}"; exit 0'))
    assert end.usage.cpu_s > 0.05
    assert end.usage.peak_memory_mib >= 300


async def test_without_control_groups_memory_is_watched(tmp_path: Path) -> None:
    hog = "import time; a = bytearray(80 << 20); time.sleep(600)"
    async with a_workshop(tmp_path, PayloadRules(watch_s=0.02)) as bench:
        job = a_job(1, memory_mib=40, executable="python3", arguments=f"-c '{hog}'")
        key = await bench.start(job)
        passed = await bench.passes_limit()
        assert passed.key == key
        assert "asked for 40 MiB" in passed.reason


@pytest.fixture
def groups() -> CgroupMaker:
    maker = cgroup_maker(f"pilotage-test-{os.getpid()}")
    if maker is None:
        pytest.skip("this machine lets the test make no control groups")
    return maker


def groups_left() -> list[Path]:
    return [path for path in Path("/sys/fs/cgroup").glob(f"*/**/pilotage-test-{os.getpid()}/*") if path.is_dir()]


async def test_the_kernel_holds_a_payload_to_its_memory(tmp_path: Path, groups: CgroupMaker) -> None:
    hog = "a = bytearray(200 << 20)"
    async with a_workshop(tmp_path, groups=groups) as bench:
        end, _, _ = await bench.run(a_job(1, memory_mib=50, executable="python3", arguments=f"-c '{hog}'"))
    assert end.limit == "it used more memory than it asked for"
    assert end.usage.peak_memory_mib <= 51


async def test_control_groups_find_daemons_without_a_marker_and_go_with_their_payload(
    tmp_path: Path, groups: CgroupMaker
) -> None:
    async with a_workshop(tmp_path, groups=groups) as bench:
        key = await bench.start(shell("env -i setsid sleep 600 & echo $! > pid; sleep 600"))
        await until(wrote(bench.work_of(key) / "pid"))
        daemon = int((bench.work_of(key) / "pid").read_text())
        bench.workshop.kill(key)
        await bench.ends()
        process = read_process(daemon)
        assert process is None or process.state == "Z"
    assert groups_left() == []


@pytest.mark.parametrize(("how", "exit_code", "number"), [("stop", 7, None), ("kill", None, 9)])
async def test_a_payload_with_a_control_group_is_frozen_by_the_kernel_and_still_ends(
    tmp_path: Path, groups: CgroupMaker, how: str, exit_code: int | None, number: int | None
) -> None:
    async with a_workshop(tmp_path, groups=groups) as bench:
        spins = "(setsid sh -c 'while :; do :; done' &); trap 'exit 7' TERM; while :; do :; done"
        key = await bench.start(shell(spins))

        def used() -> float:
            return sum(time.cpu_s for time in bench.workshop.cpu_times())

        await until(lambda: used() > 0.1)
        bench.workshop.suspend(key)
        await until(lambda: stands_still(used))
        if freezes(groups):
            assert "T" not in states_of(key), "what the kernel freezes needs no signal"
        bench.workshop.resume(key)
        before = used()
        await until(lambda: used() > before)
        bench.workshop.suspend(key)
        getattr(bench.workshop, how)(key)
        end = await bench.ends()
        assert (end.exit_code, end.signal) == (exit_code, number)
        assert of_payload(key) == set()
    assert groups_left() == []


def freezes(groups: CgroupMaker) -> bool:
    return any(
        path.name in ("freezer.state", "cgroup.freeze") for folder in groups.folders for path in folder.iterdir()
    )


def stands_still(figure: Callable[[], float]) -> bool:
    """Whether a figure stays the same for as long as it takes to spin for a while."""
    before = figure()
    sum(range(2_000_000))
    return figure() == before
