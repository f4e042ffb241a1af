"""Finds out whether a node is fit for work: its disk, its clock, and what the operator's commands say."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path

from pilotage.clock import Clock

_EARLIEST = datetime(2026, 1, 1, tzinfo=UTC)
"""A clock before the release of this program is wrong."""

_SHOWN = 200

_KILLED_WITHIN_S = 5.0
"""A killed process that is still there after so long is stuck in the kernel, as on a file server that is away."""


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
    # Memory, not a pipe: what the command leaves behind may hold its output open for ever.
    with FileIO(os.memfd_create("said"), "r+") as said:
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
            await _gone(process)
        return f"{name}: exit code {exit_code}: {_last_words(said)}" if exit_code else None


async def _gone(process: asyncio.subprocess.Process) -> None:
    """Kill a command that has not ended, with all that it started."""
    if process.returncode is None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            async with asyncio.timeout(_KILLED_WITHIN_S):
                await process.wait()


def _last_words(said: FileIO) -> str:
    # From the start, wherever the processes that share its position have left it.
    everything = os.pread(said.fileno(), os.fstat(said.fileno()).st_size, 0)
    return everything.decode(errors="replace").strip()[-_SHOWN:]
