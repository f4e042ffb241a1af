"""The nice value that a payload really has, and its weight among the others."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilotage.values.attempts import AttemptKey
from pilotage_pilot.supervise.payload_runner import PayloadRules
from support.pilot_edges import a_workshop
from support.processes import of_payload, shell, until, wrote

OWN = os.getpriority(os.PRIO_PROCESS, 0)


def nice_values(key: AttemptKey) -> set[int]:
    return {os.getpriority(os.PRIO_PROCESS, pid) - OWN for pid in of_payload(key)}


def shown_nice(pid: int) -> int:
    """Return a process's nice value as the kernel shows it in /proc."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[16])


@pytest.mark.parametrize("nice", [5, 15])
async def test_a_payload_and_all_that_it_starts_is_as_nice_as_its_slot_wants(tmp_path: Path, nice: int) -> None:
    async with a_workshop(tmp_path) as bench:
        key = await bench.start(shell("setsid sleep 600 & (sleep 600 & sleep 600) & echo up > up; wait"), nice=nice)
        await until(wrote(bench.work_of(key) / "up"))
        await until(lambda: len(of_payload(key)) >= 4)
        assert nice_values(key) == {nice}
        assert {shown_nice(pid) for pid in of_payload(key)} == {OWN + nice}


async def test_it_is_nice_from_its_first_instruction_on(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        for job_id in range(1, 6):
            _, files, _ = await bench.run(shell("nice", job_id), nice=7)
            assert files["stdout"].content == f"{OWN + 7}\n".encode()


async def test_without_a_word_of_the_slot_the_setting_holds(tmp_path: Path) -> None:
    async with a_workshop(tmp_path, PayloadRules(nice=3)) as bench:
        _, files, _ = await bench.run(shell("nice"))
        assert files["stdout"].content == f"{OWN + 3}\n".encode()
        _, files, _ = await bench.run(shell("nice", 2), nice=0)
        assert files["stdout"].content == f"{OWN}\n".encode()


async def test_the_pilot_stays_as_nice_as_it_was(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        await bench.run(shell("true"), nice=19)
    assert {os.getpriority(os.PRIO_PROCESS, int(task)) for task in os.listdir("/proc/self/task")} == {OWN}
