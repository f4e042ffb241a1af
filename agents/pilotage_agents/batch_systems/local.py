"""The local machine as a batch system: every glidein is a session of its own, which outlives its director.

A glidein's id says all that is needed to find it again after a restart: its stamp, and a process that cannot be
mistaken for another. It lies in the glidein's folder before the process becomes the pilot, which hides its memory and
environment: whose pilot it is could not be told from outside. How it ended is kept in its folder by the first look that
finds it ended; nobody knows it of one that ended while no director was there.
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
from pilotage_agents.batch_systems.commands import without_our_own
from pilotage_agents.batch_systems.processes import Process, facts_of, this_boot

_EXIT_NAME, _ID_NAME = "exit_code", "glidein_id"
_PILOTS_SETTINGS = "PILOTAGE_PILOT_"
"""Variables that begin so are settings of pilots: on the director's own machine they are meant for its pilots."""

_SHELL = "/bin/sh"
# posix_spawn knows no working directory, and what forks by other means is at odds with the threads of gRPC. A line of
# input says that the id is kept; with the end of a director that could not keep it the input ends, and so does this.
_ONCE_KEPT = 'read -r PILOTAGE_KEPT && cd "$0" && exec "$@" </dev/null'


@dataclass(frozen=True, slots=True)
class _Glidein:
    """A glidein and its process, which leads a session and a process group of its own."""

    stamp: str
    process: Process

    def glidein_id(self) -> str:
        return f"{self.stamp}.{self.process.pid}.{self.process.started}.{self.process.boot}"

    @classmethod
    def of(cls, glidein_id: str) -> Self | None:
        """Return the glidein that an id names; None = it is none of our ids."""
        stamp, *parts = glidein_id.rsplit(".", maxsplit=3)
        if len(parts) != 3 or not (parts[0].isdecimal() and parts[1].isdecimal()):
            return None
        return cls(stamp, Process(int(parts[0]), int(parts[1]), parts[2]))


class LocalBatchSystem:
    """Runs glideins as processes; `folder` holds one folder per stamp, which the director makes.

    A glidein that was told to end is killed after `kill_after_s`.
    """

    def __init__(self, folder: Path, *, kill_after_s: float = 30.0) -> None:
        self._folder = folder
        self._kill_after_s = kill_after_s

    async def submit_many(self, requests: Sequence[GlideinRequest]) -> tuple[Submission, ...]:
        """Start one process each; see BatchSystem."""
        return tuple([await asyncio.to_thread(_start, request) for request in requests])

    async def find_again(self, stamps: Sequence[str]) -> Mapping[str, str]:
        """Return the ids of the processes that were started for these stamps; see BatchSystem."""
        return await asyncio.to_thread(self._find_again, stamps)

    async def poll_all(self, glidein_ids: Sequence[str]) -> Mapping[str, GlideinStatus]:
        """Return who lives and how the others ended; see BatchSystem."""
        return {glidein_id: self._status(glidein_id) for glidein_id in glidein_ids}

    async def cancel_many(self, glidein_ids: Sequence[str]) -> None:
        """Tell the pilots to end, wait for it, and kill those that take too long; see BatchSystem."""
        processes = [found.process for each in glidein_ids if (found := _Glidein.of(each))]
        for process in processes:
            process.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(self._kill_after_s):
                await asyncio.gather(*(process.end() for process in processes))
        except TimeoutError:
            for process in processes:
                process.signal(signal.SIGKILL, whole_group=True)
            await asyncio.gather(*(process.end() for process in processes))

    async def renew(self, folders: Sequence[Path], name: str) -> None:
        """Do nothing: pilots read their folders; see BatchSystem."""

    async def collect(self, folders: Sequence[Path]) -> None:
        """Do nothing: glideins print into their folders; see BatchSystem."""

    def _find_again(self, stamps: Sequence[str]) -> dict[str, str]:
        kept = ((stamp, self._kept(stamp)) for stamp in stamps)
        return {stamp: each.glidein_id() for stamp, each in kept if each is not None and each.process.is_alive()}

    def _kept(self, stamp: str) -> _Glidein | None:
        """Return the glidein that was started for a stamp; None = none was, or none that became a pilot."""
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
        """Return how a glidein ended, and keep it for whoever asks again; None = nobody knows."""
        path = self._folder / glidein.stamp / _EXIT_NAME
        exit_code = glidein.process.take_leave()
        # A disk that is full, or a folder that was cleared away, costs the next look the exit code, no more.
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
            return Submitted(_started(request, log).glidein_id())
    except OSError as error:
        return NotSubmitted(f"{error.filename or request.folder}: {error.strerror}")


def _started(request: GlideinRequest, log: int) -> _Glidein:
    """Start a process, and let it become the pilot once its id is kept; raises OSError, and there is no pilot."""
    standing_by, go = os.pipe()
    with os.fdopen(go, "wb", buffering=0) as start_signal:
        with os.fdopen(standing_by, "rb"):
            glidein = _spawned(request, standing_by, log)
        try:
            (request.folder / _ID_NAME).write_text(glidein.glidein_id())
        except OSError:
            start_signal.close()
            os.waitpid(glidein.process.pid, 0)
            raise
        with contextlib.suppress(BrokenPipeError):  # it was killed: a look at it will tell
            start_signal.write(b"\n")
    return glidein


def _spawned(request: GlideinRequest, standard_input: int, log: int) -> _Glidein:
    actions = [
        (os.POSIX_SPAWN_DUP2, standard_input, 0),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
    ]
    command = [_SHELL, "-c", _ONCE_KEPT, str(request.folder), *request.command]
    environment = {**without_our_own(os.environ), **_for_pilots(os.environ)}
    pid = os.posix_spawn(_SHELL, command, environment, file_actions=actions, setsid=True)
    facts = facts_of(pid)
    assert facts is not None, "an ended child keeps its process id until we take leave of it"
    return _Glidein(request.stamp, Process(pid, facts.started, this_boot()))


def _for_pilots(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(_PILOTS_SETTINGS)}
