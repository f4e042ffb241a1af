"""Processes of this machine that cannot be mistaken for one another, though process ids are used again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from dataclasses import dataclass
from pathlib import Path

_STATE, _START_TIME = 1, 20
"""Places in /proc/PID/stat, counted from the bracket that closes the program's name."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """What the kernel says of a process; `started` in clock ticks since boot, a zombie has ended."""

    started: int
    has_ended: bool


def facts_of(pid: int) -> ProcessFacts | None:
    """Return what the kernel says of a process; None = there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The program's name in brackets may hold anything, brackets and spaces too.
    fields = stat[stat.rindex(")") :].split()
    return ProcessFacts(int(fields[_START_TIME]), fields[_STATE] in "ZX")


def this_boot() -> str:
    """Return what tells this boot of the machine from others."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]


@dataclass(frozen=True, slots=True)
class Process:
    """A process by its id, its start in clock ticks since boot, and the boot."""

    pid: int
    started: int
    boot: str

    def facts(self) -> ProcessFacts | None:
        """Return what the kernel says of it; None = it is gone, whoever has its id now."""
        facts = facts_of(self.pid) if self.boot == this_boot() else None
        return facts if facts and facts.started == self.started else None

    def is_alive(self) -> bool:
        """Return whether it has not ended."""
        facts = self.facts()
        return facts is not None and not facts.has_ended

    def take_leave(self) -> int | None:
        """Return the exit code of an ended child of ours, once (128 + n = ended by signal n); None = not known."""
        if self.facts() is None:
            return None
        try:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return None
        code = os.waitstatus_to_exitcode(status)
        return None if not ended else code if code >= 0 else 128 - code

    def signal(self, number: signal.Signals, *, whole_group: bool = False) -> None:
        """Send a signal to it, or to all of its process group, unless it has ended."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if whole_group else os.kill)(self.pid, number)

    async def end(self) -> None:
        """Return when it has ended."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            # The handle is of whoever has the process id now: a look after it was opened tells who that is.
            if self.is_alive():
                await _readable(handle)
        finally:
            os.close(handle)


async def _readable(handle: int) -> None:
    loop, ready = asyncio.get_running_loop(), asyncio.Event()
    loop.add_reader(handle, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(handle)
