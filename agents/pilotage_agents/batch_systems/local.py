"""The local machine as a batch system: every glidein is a session of processes that outlives its director.

A glidein's id holds its stamp and identifies its process by pid, start time and boot, as pids are reused. The id is
written to the glidein's folder before the process becomes the pilot, because the pilot hides its memory and environment
from other processes. The first poll that finds a glidein ended stores its exit code in the folder. The exit code of a
glidein that ends while no director runs is not known.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import (
    LOG_NAME,
    GlideinRequest,
    GlideinState,
    GlideinStatus,
    NotSubmitted,
    Submission,
    Submitted,
)
from pilotage_agents.batch_systems.hosts import without_our_variables

_STATE, _START_TIME = 1, 20
"""Positions in /proc/PID/stat after the closing bracket of the program's name."""


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """A process as the kernel shows it; `started` in clock ticks since boot; a zombie has ended."""

    started: int
    has_ended: bool


def facts_of(pid: int) -> ProcessFacts | None:
    """Return the kernel's data of a process; None = there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    # The program's name in brackets may hold anything, brackets and spaces too.
    fields = stat[stat.rindex(")") :].split()
    return ProcessFacts(int(fields[_START_TIME]), fields[_STATE] in "ZX")


def this_boot() -> str:
    """Return an id of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")[:12]


@dataclass(frozen=True, slots=True)
class LocalProcess:
    """A process by its pid, its start in clock ticks since boot, and the boot."""

    pid: int
    started: int
    boot: str

    def facts(self) -> ProcessFacts | None:
        """Return the kernel's data of it; None = it is gone, even if its pid is used again."""
        facts = facts_of(self.pid) if self.boot == this_boot() else None
        return facts if facts and facts.started == self.started else None

    def is_alive(self) -> bool:
        """Return whether it has not ended."""
        facts = self.facts()
        return facts is not None and not facts.has_ended

    def reap(self) -> int | None:
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
        """Send a signal to it, or to its whole process group, unless it has ended."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                (os.killpg if whole_group else os.kill)(self.pid, number)

    async def wait(self) -> None:
        """Return when it has ended."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return
        try:
            # The handle refers to the present process with this pid; checked after opening, it is the right one.
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


_EXIT_NAME, _ID_NAME = "exit_code", "glidein_id"
_PILOTS_SETTINGS = "PILOTAGE_PILOT_"
"""The prefix of pilots' settings: on the director's own machine these variables go to its pilots."""

_SHELL = "/bin/sh"
# posix_spawn cannot set a working directory, and other ways to fork conflict with gRPC's threads. A line of input
# means that the id has been saved; if the director dies before, the input ends and the shell exits.
_START_SCRIPT = 'read -r PILOTAGE_KEPT && cd "$0" && exec "$@" </dev/null'


@dataclass(frozen=True, slots=True)
class _Glidein:
    """A glidein and its process, which leads its own session and process group."""

    stamp: str
    process: LocalProcess

    def glidein_id(self) -> str:
        return f"{self.stamp}.{self.process.pid}.{self.process.started}.{self.process.boot}"

    @classmethod
    def of(cls, glidein_id: str) -> Self | None:
        """Return the glidein of an id; None = it is none of our ids."""
        stamp, *parts = glidein_id.rsplit(".", maxsplit=3)
        if len(parts) != 3 or not (parts[0].isdecimal() and parts[1].isdecimal()):
            return None
        return cls(stamp, LocalProcess(int(parts[0]), int(parts[1]), parts[2]))


class LocalBatchSystem:
    """Runs glideins as processes; `folder` holds one folder per stamp, which the director creates.

    A cancelled glidein is killed after `kill_after_s`.
    """

    def __init__(self, folder: Path, *, kill_after_s: float = 30.0) -> None:
        self._folder = folder
        self._kill_after_s = kill_after_s

    async def submit_many(self, requests: Sequence[GlideinRequest]) -> tuple[Submission, ...]:
        """Start one process each; see BatchSystem."""
        return tuple([await asyncio.to_thread(_start, request) for request in requests])

    async def find_by_stamp(self, stamps: Sequence[str]) -> Mapping[str, str]:
        """Return the ids of the processes that were started for these stamps; see BatchSystem."""
        return await asyncio.to_thread(self._find_by_stamp, stamps)

    async def poll_all(self, glidein_ids: Sequence[str]) -> Mapping[str, GlideinStatus]:
        """Return which glideins run and how the others ended; see BatchSystem."""
        return {glidein_id: self._status(glidein_id) for glidein_id in glidein_ids}

    async def cancel_many(self, glidein_ids: Sequence[str]) -> None:
        """Ask the pilots to end, wait for it, and kill those that take too long; see BatchSystem."""
        processes = [found.process for each in glidein_ids if (found := _Glidein.of(each))]
        for process in processes:
            process.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._kill_after_s):
                await asyncio.gather(*(process.wait() for process in processes))
        except TimeoutError:
            for process in processes:
                process.signal(signal.SIGKILL, whole_group=True)
            await asyncio.gather(*(process.wait() for process in processes))

    async def renew(self, folders: Sequence[Path], name: str) -> None:
        """Do nothing: pilots read their folders; see BatchSystem."""

    async def collect(self, folders: Sequence[Path]) -> None:
        """Do nothing: glideins write their output into their folders; see BatchSystem."""

    def _find_by_stamp(self, stamps: Sequence[str]) -> dict[str, str]:
        kept = ((stamp, self._saved_glidein(stamp)) for stamp in stamps)
        return {stamp: each.glidein_id() for stamp, each in kept if each is not None and each.process.is_alive()}

    def _saved_glidein(self, stamp: str) -> _Glidein | None:
        """Return the glidein that was started for a stamp; None = none was, or it never became a pilot."""
        path = self._folder / stamp / _ID_NAME
        try:
            glidein = _Glidein.of(path.read_text(errors="replace"))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise WorldError(f"{path}: {error.strerror}", transient=True) from error
        return glidein if glidein is not None and glidein.stamp == stamp else None

    def _status(self, glidein_id: str) -> GlideinStatus:
        glidein = _Glidein.of(glidein_id)
        if glidein is None:
            return GlideinStatus(GlideinState.UNKNOWN, f"{glidein_id} is no process of this machine")
        if glidein.process.is_alive():
            return GlideinStatus(GlideinState.RUNNING, f"process {glidein.process.pid}")
        exit_code = self._exit_code(glidein)
        if exit_code is None:
            return GlideinStatus(GlideinState.ENDED, f"process {glidein.process.pid} is gone")
        return GlideinStatus(GlideinState.ENDED, f"exit code {exit_code}", exit_code)

    def _exit_code(self, glidein: _Glidein) -> int | None:
        """Return the exit code of a glidein and save it for later polls; None = not known."""
        path = self._folder / glidein.stamp / _EXIT_NAME
        exit_code = glidein.process.reap()
        # With a full disk or a removed folder only later polls lose the exit code.
        with contextlib.suppress(OSError):
            if exit_code is not None:
                path.write_text(str(exit_code))
                return exit_code
            kept = path.read_text()
            return int(kept) if kept.isdecimal() else None
        return exit_code


def _start(request: GlideinRequest) -> Submission:
    try:
        log = os.open(request.folder / LOG_NAME, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(log, "wb"):
            return Submitted(_start_process(request, log).glidein_id())
    except OSError as error:
        return NotSubmitted(f"{error.filename or request.folder}: {error.strerror}")


def _start_process(request: GlideinRequest, log: int) -> _Glidein:
    """Start a process and let it become the pilot once its id is saved; on OSError no pilot runs."""
    read_end, write_end = os.pipe()
    with os.fdopen(write_end, "wb", buffering=0) as start_signal:
        with os.fdopen(read_end, "rb"):
            glidein = _spawn(request, read_end, log)
        try:
            (request.folder / _ID_NAME).write_text(glidein.glidein_id())
        except OSError:
            start_signal.close()
            os.waitpid(glidein.process.pid, 0)
            raise
        with contextlib.suppress(BrokenPipeError):  # it was killed: the next poll finds that
            start_signal.write(b"\n")
    return glidein


def _spawn(request: GlideinRequest, standard_input: int, log: int) -> _Glidein:
    actions = [
        (os.POSIX_SPAWN_DUP2, standard_input, 0),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
    ]
    command = [_SHELL, "-c", _START_SCRIPT, str(request.folder), *request.command]
    environment = {
        **without_our_variables(os.environ),
        **{name: value for name, value in os.environ.items() if name.startswith(_PILOTS_SETTINGS)},
    }
    pid = os.posix_spawn(_SHELL, command, environment, file_actions=actions, setsid=True)
    facts = facts_of(pid)
    assert facts is not None, "an ended child keeps its process id until it is reaped"
    return _Glidein(request.stamp, LocalProcess(pid, facts.started, this_boot()))
