"""Commands of batch systems that leave something behind, or something stuck."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.hosts import run_command
from support.processes import is_running, until


async def test_a_process_that_is_left_behind_and_holds_the_output_keeps_nobody_waiting(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    leaves = f"setsid sh -c 'while ! [ -e {gate} ]; do sleep 0.1; done; echo late' & echo $!"
    pid = (await run_command(("sh", "-c", leaves), timeout_s=60)).stdout.strip()
    assert is_running(pid)
    gate.touch()
    await until(lambda: not is_running(pid))


async def test_a_command_that_hangs_is_killed_with_what_it_started_though_that_holds_the_output(tmp_path: Path) -> None:
    hangs = (
        f"(trap '' TERM; while :; do sleep 1; done) & echo $! > {tmp_path}/new; mv {tmp_path}/new {tmp_path}/pid; wait"
    )
    with pytest.raises(WorldError, match="no answer within 5 s"):
        await run_command(("sh", "-c", hangs), timeout_s=5)
    pid = (tmp_path / "pid").read_text().strip()
    await until(lambda: not is_running(pid))


async def test_a_command_that_prints_much_is_read_whole() -> None:
    answer = await run_command(("sh", "-c", "yes | head -c 3000000; exit 1"), timeout_s=60)
    assert (answer.exit_code, len(answer.stdout)) == (1, 3_000_000)
