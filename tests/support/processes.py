"""Processes of this machine: free ports, waiting for an effect, crashes at a chosen call, and payload scripts."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pilotage.values.attempts import AttemptKey
from pilotage_pilot.core.model import GrantedJob
from pilotage_pilot.supervise.proc import all_processes, carries, read_process
from support.pilot_bench import a_job
from support.pilot_edges import SITE


def is_running(pid: int | str) -> bool:
    """Return whether a process runs; one that has ended does not, though nobody may have asked how."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # also one that ends as it is looked at
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def until(happened: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Return as soon as it has `happened`; raises TimeoutError when it does not."""
    async with asyncio.timeout(timeout_s):
        while not happened():  # noqa: ASYNC110 - another process cannot set an event of ours
            await asyncio.sleep(0.005)


_FIRST, _LAST = 10_000, 32_000
"""Below those that Linux gives to whoever connects, by default: none of these is taken while a server is away."""

# Not the numbers of a seeded test: two test processes would choose alike.
_chance = random.SystemRandom()
_given: set[int] = set()


def free_port() -> int:
    """Return a port on which nobody listened a moment ago, another one at each call."""
    port = _chance.randrange(_FIRST, _LAST)
    while port in _given or not _is_free(port):
        port = _chance.randrange(_FIRST, _LAST)
    _given.add(port)
    return port


def free_ports(count: int) -> list[int]:
    """Return so many free ports."""
    return [free_port() for _ in range(count)]


def free_address() -> str:
    """Return host and port where nobody listens."""
    return f"127.0.0.1:{free_port()}"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


class DiedError(BaseException):
    """The process is no more: nothing that it would have done afterwards happens."""


class Death:
    """Counts calls and dies at one of them: before it reached the other side, or after that had done what was asked."""

    def __init__(self, at_call: int, *, is_done: bool) -> None:
        self.calls = 0
        self._at_call = at_call
        self._is_done = is_done

    async def during(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call, or die of it."""
        self.calls += 1
        if self.calls > self._at_call:
            raise DiedError
        if self.calls < self._at_call:
            return await call()
        if self._is_done:
            await call()
        raise DiedError


class Mortal:
    """Passes calls on to another object until its process dies."""

    def __init__(self, object_: Any, death: Death) -> None:
        self._object = object_
        self._death = death

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._object, name)

        async def call(*arguments: Any) -> Any:
            return await self._death.during(lambda: method(*arguments))

        return call


class MortalPlaces:
    """Places that a process goes to until it dies."""

    def __init__(self, places: Any, death: Death) -> None:
        self._places = places
        self._death = death

    async def open(self, target: Any) -> Mortal:
        return Mortal(await self._places.open(target), self._death)


def shell(script: str, job_id: int = 1, **more: Any) -> GrantedJob:
    quoted = "'" + script.replace("'", "'\"'\"'") + "'"
    return a_job(job_id, **{"executable": "/bin/sh", "arguments": f"-c {quoted}", **more})


def of_payload(key: AttemptKey) -> set[int]:
    """Return every living process that carries the marker of an attempt."""
    return {
        process.pid
        for process in all_processes().values()
        if process.state not in "ZX" and carries(process.pid, "PILOTAGE_ATTEMPT", f"{SITE.marker}/{key}")
    }


def states_of(key: AttemptKey) -> set[str]:
    """Return the states of its processes, as the kernel's letters."""
    found = (read_process(pid) for pid in of_payload(key))
    return {process.state for process in found if process is not None}


def wrote(path: Path) -> Callable[[], bool]:
    return lambda: path.exists() and path.read_text().endswith("\n")
