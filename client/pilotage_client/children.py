"""Child processes that are kept running: their output logged, restarted when they die, ended with their parent."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Never

from pilotage.clock import BootClock, boot_time_s
from pilotage.errors import WorldError
from pilotage_client.bounded_log import BoundedLog

Say = Callable[[str], None]
"""Shows a line to the user."""

_LONGEST_LINE = 1024 * 1024
_LAST_WORDS_S = 1.0
_LOOK_EVERY_S = 0.02
_MOST_DEATHS = 5
_LONGEST_PAUSE_S = 30.0
_HEALTHY_AFTER_S = 60.0
# PR_SET_PDEATHSIG: a child whose parent is killed is told to end. It is set by a small program that then becomes
# the child, as no Python of ours may run in a fork of a process with threads. A parent that died before it was set
# tells nothing any more, but is not the parent any more either.
_TIED_TO_PARENT = (
    "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,15);"
    "os.getppid()==int(sys.argv[1]) or sys.exit(1);os.execv(sys.argv[2],sys.argv[2:])"
)
_KEPT_FROM_CHILDREN = frozenset({"PILOTAGE_TOKEN"})


def program(name: str) -> str:
    """Return the path of one of our programs: beside this interpreter, else on PATH; raises WorldError."""
    beside = shutil.which(name, path=str(Path(sys.executable).parent))
    found = beside or shutil.which(name)
    if found is None:
        raise WorldError(f"there is no program {name}: is pilotage[all] installed?", transient=False)
    return found


def tied_to_parent(command: Sequence[str]) -> list[str]:
    """Return what runs `command` as a child of this process, told to end (SIGTERM) when this process dies, however.

    As the child of any other process it runs nothing: this one has died before it could be tied to it.
    """
    return [sys.executable, "-I", "-S", "-c", _TIED_TO_PARENT, str(os.getpid()), *command]


class _Life(asyncio.SubprocessProtocol):
    """What one process does: its lines go into the log as they come, its end is an event."""

    def __init__(self, log: BoundedLog) -> None:
        self.exited = asyncio.Event()
        self.silent = asyncio.Event()
        self._log = log
        self._begun = b""

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, self._begun = (self._begun + data).split(b"\n")
        for line in lines:
            self._log.write(line + b"\n")
        if len(self._begun) > _LONGEST_LINE:
            self.write_rest()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self.silent.set()

    def process_exited(self) -> None:
        self.exited.set()

    def write_rest(self) -> None:
        """Log the line that has no end yet."""
        if self._begun:
            self._log.write(self._begun + b"\n")
        self._begun = b""


class Child:
    """One child process; a session of its own, so that Ctrl-C reaches the parent alone."""

    def __init__(self, name: str, command: Sequence[str], log: BoundedLog) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._life = _Life(log)
        self._process: asyncio.SubprocessTransport | None = None

    async def start(self) -> None:
        """Start the process; raises WorldError."""
        self._life = _Life(self.log)
        try:
            self._process, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: self._life,
                *tied_to_parent(self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env={name: each for name, each in os.environ.items() if name not in _KEPT_FROM_CHILDREN},
            )
        except OSError as error:
            raise WorldError(f"{self.name} cannot be started: {error.strerror}", transient=False) from error

    async def end(self) -> int:
        """Return the exit code when the process has ended and what it printed is logged. May be cancelled."""
        assert self._process is not None, "a child is started before it is waited for"
        await self._life.exited.wait()
        # A process of its own that outlives it may hold its output open for ever.
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._life.silent.wait()
        self._process.close()
        self._life.write_rest()
        self.log.close()
        exit_code = self._process.get_returncode()
        assert exit_code is not None, "a process that has exited has an exit code"
        return exit_code

    async def ready(self, is_ready: Callable[[], bool], patience_s: float) -> None:
        """Return as soon as it `is_ready`; raises WorldError when the process ends before, or takes too long."""
        try:
            async with asyncio.timeout(patience_s), asyncio.TaskGroup() as group:
                ending = group.create_task(self.end())
                while not is_ready() and not ending.done():  # noqa: ASYNC110 - a file sets no event
                    await asyncio.sleep(_LOOK_EVERY_S)
                has_ended = ending.done()
                ending.cancel()
        except TimeoutError:
            raise WorldError(
                f"the {self.name} was not ready within {patience_s:g} s; see {self.log.path}", transient=True
            ) from None
        if has_ended:
            raise self.death(ending.result())

    async def stop(self, patience_s: float) -> bool:
        """Tell the process to end, and kill it after `patience_s`; returns whether it ended by itself."""
        if self._process is None:
            return True
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(patience_s):
                await self.end()
        except TimeoutError:
            self.kill()
            await self.end()
            return False
        return True

    def kill(self) -> None:
        """End the process at once."""
        self._signal(signal.SIGKILL)

    async def keep_running(self, say: Say, clock: BootClock = boot_time_s) -> Never:
        """Start the process again whenever it dies; raises WorldError with its last lines when it keeps dying."""
        deaths = 0
        while True:
            started_s = clock()
            exit_code = await self.end()
            deaths = 1 if clock() - started_s > _HEALTHY_AFTER_S else deaths + 1
            if deaths > _MOST_DEATHS:
                raise self.death(exit_code)
            pause_s = min(_LONGEST_PAUSE_S, 2.0 ** (deaths - 1))
            say(f"{self.death(exit_code)}\nIt is started again in {pause_s:g} s.")
            await asyncio.sleep(pause_s)
            await self.start()

    def death(self, exit_code: int) -> WorldError:
        """Return the error that tells how the process died, with its last lines."""
        how = f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"
        where = f"its log is lost ({self.log.trouble})" if self.log.trouble else f"see {self.log.path}"
        lines = "".join(f"\n  {line}" for line in self.log.last_lines)
        return WorldError(f"the {self.name} ended with {how}; {where}{lines}", transient=True)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.get_returncode() is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)
