"""Finds out whether a node is fit for work: its disk, its clock, and what the operator's commands say."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from pilotage.clock import Clock
from pilotage.command_runs import end, in_memory, text_in

_EARLIEST = datetime(2026, 1, 1, tzinfo=UTC)
"""A clock before the release of this program is wrong."""

_SHOWN = 200


@dataclass(frozen=True, slots=True)
class Checks:
    """What is checked; commands are lists of arguments, run in `environment`, each may take `timeout_s`."""

    scratch: Path
    least_disk_mib: int
    commands: tuple[tuple[str, ...], ...] = ()
    timeout_s: float = 60.0
    environment: Mapping[str, str] | None = None


async def node_faults(checks: Checks, clock: Clock) -> tuple[str, ...]:
    """Return what makes the node unfit, in words; none = it is fit."""
    faults = [*_disk_faults(checks), *_clock_faults(clock)]
    for command in checks.commands:
        fault = await _command_fault(command, checks)
        if fault is not None:
            faults.append(fault)
    return tuple(faults)


def _disk_faults(checks: Checks) -> list[str]:
    try:
        free = shutil.disk_usage(checks.scratch).free // 2**20
        trial = checks.scratch / "trial"
        trial.write_bytes(b"\0" * 4096)
        trial.unlink()
    except OSError as error:
        return [f"the scratch {checks.scratch} cannot be written: {error.strerror}"]
    if free < checks.least_disk_mib:
        return [f"{free} MiB are free in {checks.scratch}, at least {checks.least_disk_mib} are needed"]
    return []


def _clock_faults(clock: Clock) -> list[str]:
    now = clock()
    return [f"the clock is wrong: it says {now:%Y-%m-%d %H:%M} UTC"] if now < _EARLIEST else []


async def _command_fault(command: Sequence[str], checks: Checks) -> str | None:
    name = " ".join(command)
    with in_memory() as said:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=said,
                stderr=asyncio.subprocess.STDOUT,
                env=checks.environment,
                start_new_session=True,
            )
        except OSError as error:
            return f"{name}: {error.strerror}"
        try:
            async with asyncio.timeout(checks.timeout_s):
                exit_code = await process.wait()
        except TimeoutError:
            return f"{name}: it did not end within {checks.timeout_s:g} s"
        finally:
            await end(process)
        return f"{name}: exit code {exit_code}: {text_in(said).strip()[-_SHOWN:]}" if exit_code else None
