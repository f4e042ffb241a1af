"""Commands of a batch system: run with an end to their patience, their whole process group gone afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilotage.errors import WorldError

_OUR_OWN = "PILOTAGE_"
"""Variables that begin so may hold our tokens, which are no business of a batch system and its jobs."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended, and what it printed."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def complaint(self) -> str:
        """What it said of its failure, in one line."""
        said = " ".join((self.stderr.strip() or self.stdout.strip()).split())
        return said or f"exit code {self.exit_code}, and not a word"


async def ask(command: Sequence[str], *, timeout_s: float, stdin: str = "") -> Answer:
    """Run a command to its end; raises WorldError when it cannot be started, or does not end in time."""
    try:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(os.environ),
            start_new_session=True,
        )
    except OSError as error:
        raise WorldError(f"{command[0]}: {error.strerror}", transient=False) from error
    try:
        async with asyncio.timeout(timeout_s):
            stdout, stderr = await process.communicate(stdin.encode())
    except TimeoutError as error:
        raise WorldError(f"no answer within {timeout_s:g} s", transient=True) from error
    finally:
        await _gone(process)
    assert process.returncode is not None, "communicate() returns when the process has ended"
    return Answer(process.returncode, stdout.decode(errors="replace"), stderr.decode(errors="replace"))


def _environment(ours: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in ours.items() if not name.startswith(_OUR_OWN)}


async def _gone(process: asyncio.subprocess.Process) -> None:
    """Kill what has not ended, with all that it started."""
    if process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
