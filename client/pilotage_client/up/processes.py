"""Child processes of `pilotage up`: their bounded logs, restarts, and end."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Never

from pilotage.backoff import backoff
from pilotage.clock import BootClock, boot_time_s
from pilotage.errors import WorldError

_LAST_LINES = 12


class BoundedLog:
    """A log file of bounded size: at `max_bytes` it is renamed to `name.1`, which replaces the earlier one.

    Lines that cannot be written are lost to the file; `error` then has the reason. The last lines are kept
    in memory in any case.
    """

    def __init__(self, path: Path, *, max_bytes: int = 10 * 1024 * 1024) -> None:
        self.path = path
        self.error = ""
        self._max_bytes = max_bytes
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._file: FileIO | None = None
        self._size = 0

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines, oldest first."""
        return tuple(self._last)

    def write(self, line: bytes) -> None:
        """Write one line, which includes its line end."""
        self._last.append(line.decode(errors="replace").rstrip("\n"))
        try:
            if self._file is not None and self._size >= self._max_bytes:
                self.close()
                self.path.replace(self.path.with_name(f"{self.path.name}.1"))
            if self._file is None:
                self.path.parent.mkdir(parents=True, exist_ok=True)
                self._file = FileIO(self.path, "a")
                self._size = self._file.seek(0, 2)
            self._size += self._file.write(line)
        except OSError as error:
            self.error = f"{self.path}: {error.strerror}"
            return
        self.error = ""

    def close(self) -> None:
        """Close the file; the next line opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None


Echo = Callable[[str], None]
"""Prints a line to the user."""

_LONGEST_LINE = 1024 * 1024
_OUTPUT_TIMEOUT_S = 1.0
_POLL_INTERVAL_S = 0.02
_MAX_RESTARTS = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_HEALTHY_AFTER_S = 60.0
# PR_SET_PDEATHSIG sends SIGTERM to a child when its parent dies. A small program sets it and then executes the child,
# because no Python code may run between fork and exec of a process with threads. If the parent dies before the
# setting, the child has another parent and exits.
_TIED_TO_PARENT = (
    "import ctypes,os,sys;ctypes.CDLL(None).prctl(1,15);"
    "os.getppid()==int(sys.argv[1]) or sys.exit(1);os.execv(sys.argv[2],sys.argv[2:])"
)
_REMOVED_VARIABLES = frozenset({"PILOTAGE_TOKEN"})


def program(name: str) -> str:
    """Return the path of a Pilotage program: beside this interpreter, else on PATH; raises WorldError."""
    beside = shutil.which(name, path=str(Path(sys.executable).parent))
    found = beside or shutil.which(name)
    if found is None:
        raise WorldError(f"there is no program {name}: pip install 'pilotage[all]'", transient=False)
    return found


def tied_to_parent(command: Sequence[str]) -> list[str]:
    """Return a command that runs `command` as a child of this process, which gets SIGTERM when this process dies.

    As the child of another process it exits at once: this process has died already.
    """
    return [sys.executable, "-I", "-S", "-c", _TIED_TO_PARENT, str(os.getpid()), *command]


class _OutputProtocol(asyncio.SubprocessProtocol):
    """Writes the lines of one process to the log, and sets events at its exit and at the end of its output."""

    def __init__(self, log: BoundedLog) -> None:
        self.exited = asyncio.Event()
        self.output_closed = asyncio.Event()
        self._log = log
        self._partial_line = b""

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        *lines, self._partial_line = (self._partial_line + data).split(b"\n")
        for line in lines:
            self._log.write(line + b"\n")
        if len(self._partial_line) > _LONGEST_LINE:
            self.write_rest()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self.output_closed.set()

    def process_exited(self) -> None:
        self.exited.set()

    def write_rest(self) -> None:
        """Log the last line if it is incomplete."""
        if self._partial_line:
            self._log.write(self._partial_line + b"\n")
        self._partial_line = b""


class Child:
    """A child process in its own session, so that Ctrl-C reaches the parent alone."""

    def __init__(self, name: str, command: Sequence[str], log: BoundedLog) -> None:
        self.name = name
        self.log = log
        self._command = command
        self._protocol = _OutputProtocol(log)
        self._process: asyncio.SubprocessTransport | None = None

    async def start(self) -> None:
        """Start the process; raises WorldError."""
        self._protocol = _OutputProtocol(self.log)
        try:
            self._process, _ = await asyncio.get_running_loop().subprocess_exec(
                lambda: self._protocol,
                *tied_to_parent(self._command),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env={name: each for name, each in os.environ.items() if name not in _REMOVED_VARIABLES},
            )
        except OSError as error:
            raise WorldError(f"{self.name} cannot be started: {error.strerror}", transient=False) from error

    async def wait(self) -> int:
        """Wait until the process has ended and its output is logged; returns the exit code. May be cancelled."""
        assert self._process is not None, "a child is started before it is waited for"
        await self._protocol.exited.wait()
        # A descendant that outlives the process may hold its output open.
        with suppress(TimeoutError):
            async with asyncio.timeout(_OUTPUT_TIMEOUT_S):
                await self._protocol.output_closed.wait()
        self._process.close()
        self._protocol.write_rest()
        self.log.close()
        exit_code = self._process.get_returncode()
        assert exit_code is not None, "a process that has exited has an exit code"
        return exit_code

    async def wait_until_ready(self, is_ready: Callable[[], bool], timeout_s: float) -> None:
        """Wait until `is_ready`; raises WorldError if the process ends before, or at the timeout."""
        try:
            async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
                ending = group.create_task(self.wait())
                while not is_ready() and not ending.done():  # noqa: ASYNC110 - a file sets no event
                    await asyncio.sleep(_POLL_INTERVAL_S)
                has_ended = ending.done()
                ending.cancel()
        except TimeoutError:
            raise WorldError(
                f"the {self.name} was not ready within {timeout_s:g} s; see {self.log.path}", transient=True
            ) from None
        if has_ended:
            raise self.exit_error(ending.result())

    async def stop(self, timeout_s: float) -> bool:
        """Terminate the process, and kill it after `timeout_s`; returns whether it ended without the kill."""
        if self._process is None:
            return True
        self._signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(timeout_s):
                await self.wait()
        except TimeoutError:
            self.kill()
            await self.wait()
            return False
        return True

    def kill(self) -> None:
        """Kill the process."""
        self._signal(signal.SIGKILL)

    async def keep_running(self, echo: Echo, clock: BootClock = boot_time_s) -> Never:
        """Restart the process when it ends; raises WorldError with its last lines if it keeps ending."""
        deaths = 0
        while True:
            started_s = clock()
            exit_code = await self.wait()
            deaths = 1 if clock() - started_s > _HEALTHY_AFTER_S else deaths + 1
            if deaths > _MAX_RESTARTS:
                raise self.exit_error(exit_code)
            pause_s = backoff(deaths, _FIRST_PAUSE_S, _LONGEST_PAUSE_S)
            echo(f"{self.exit_error(exit_code)}\nIt restarts in {pause_s:g} s.")
            await asyncio.sleep(pause_s)
            await self.start()

    def exit_error(self, exit_code: int) -> WorldError:
        """Return the error for an ended process, with its last lines."""
        how = f"exit code {exit_code}" if exit_code >= 0 else f"signal {-exit_code}"
        where = f"its log is lost ({self.log.error})" if self.log.error else f"see {self.log.path}"
        lines = "".join(f"\n  {line}" for line in self.log.last_lines)
        return WorldError(f"the {self.name} ended with {how}; {where}{lines}", transient=True)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.get_returncode() is None:
            with suppress(ProcessLookupError):
                self._process.send_signal(number)
