"""The local machine as a batch system: every glidein is a session of its own, which outlives its director.

A glidein's id says all that is needed to find it again after a restart: its stamp, and a process that cannot be
mistaken for another. How it ended is kept in its folder by the first look that finds it ended; nobody knows it
of one that ended while no director was there.
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
from pilotage_agents.batch_systems.processes import Process, facts_of, has_variable, this_boot

_EXIT_NAME = "exit_code"
_STAMP_VARIABLE = "PILOTAGE_GLIDEIN"
_PILOTS_SETTINGS = "PILOTAGE_PILOT_"
"""Variables that begin so are settings of pilots: on the director's own machine they are meant for its pilots."""

_SHELL = "/bin/sh"
# posix_spawn knows no working directory, and what forks by other means is at odds with the threads of gRPC.
_IN_FOLDER = 'cd "$0" && exec "$@"'


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
        return await asyncio.to_thread(_find_again, stamps)

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
    except OSError as error:
        return NotSubmitted(f"{request.folder / LOG_NAME}: {error.strerror}")
    actions = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_DUP2, log, 1),
        (os.POSIX_SPAWN_DUP2, log, 2),
    ]
    command = [_SHELL, "-c", _IN_FOLDER, str(request.folder), *request.command]
    environment = {**without_our_own(os.environ), **_for_pilots(os.environ), _STAMP_VARIABLE: request.stamp}
    try:
        pid = os.posix_spawn(_SHELL, command, environment, file_actions=actions, setsid=True)
    except OSError as error:
        return NotSubmitted(f"could not start a process: {error.strerror}")
    finally:
        os.close(log)
    facts = facts_of(pid)
    assert facts is not None, "an ended child keeps its process id until we take leave of it"
    return Submitted(_Glidein(request.stamp, Process(pid, facts.started, this_boot())).glidein_id())


def _for_pilots(variables: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in variables.items() if name.startswith(_PILOTS_SETTINGS)}


def _find_again(stamps: Sequence[str]) -> dict[str, str]:
    if not stamps:
        return {}
    found = {}
    # What a pilot started may lead a session too and have its environment: the oldest process is the pilot.
    for process in sorted(_session_leaders(), key=lambda process: process.started, reverse=True):
        for stamp in stamps:
            if has_variable(process.pid, _STAMP_VARIABLE, stamp):
                found[stamp] = _Glidein(stamp, process).glidein_id()
    return found


def _session_leaders() -> list[Process]:
    pids = [int(entry.name) for entry in os.scandir("/proc") if entry.name.isdecimal()]
    facts = [(pid, facts_of(pid)) for pid in pids]
    return [
        Process(pid, each.started, this_boot())
        for pid, each in facts
        if each is not None and each.session == pid and not each.has_ended
    ]
