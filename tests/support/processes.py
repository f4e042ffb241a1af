"""Processes of this machine: free ports, waiting for a condition, crashes at a chosen call, and payload scripts."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from pilotage.values.attempts import AttemptKey
from pilotage_pilot.core.model import GrantedJob
from pilotage_pilot.supervise.proc import all_processes, carries, environment_of, living, read_process
from support.pilot_bench import a_job
from support.pilot_ports import SITE

_FIRST, _LAST = 10_000, 32_000
"""Below the default range of ephemeral ports: no client takes the port of a server that is down."""

# Not seeded: otherwise two test processes choose the same ports.
_random = random.SystemRandom()
_returned: set[int] = set()


def is_running(pid: int | str) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # also if the process ends during the read
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


async def until(happened: Callable[[], bool], *, timeout_s: float = 60.0) -> None:
    """Wait until `happened` returns True; raises TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while not happened():  # noqa: ASYNC110 - another process cannot set an event
            await asyncio.sleep(0.005)


def free_port() -> int:
    """Return a port that is free now, another one at each call."""
    port = _random.randrange(_FIRST, _LAST)
    while port in _returned or not _is_free(port):
        port = _random.randrange(_FIRST, _LAST)
    _returned.add(port)
    return port


def free_ports(count: int) -> list[int]:
    """Return `count` free ports."""
    return [free_port() for _ in range(count)]


def free_address() -> str:
    """Return host and port of a free port."""
    return f"127.0.0.1:{free_port()}"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


UNIQUE_S = f"600.{os.getpid():07}"
"""A time in seconds that no other test process uses, so that it marks a `sleep`."""


class SimulatedCrash(BaseException):
    """The simulated process has crashed."""


class CrashPoint:
    """Counts calls and crashes at one of them: before its execution, or after it if `is_done`."""

    def __init__(self, at_call: int, *, is_done: bool) -> None:
        self.calls = 0
        self._at_call = at_call
        self._is_done = is_done

    async def during(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call, or crash."""
        self.calls += 1
        if self.calls > self._at_call:
            raise SimulatedCrash
        if self.calls < self._at_call:
            return await call()
        if self._is_done:
            await call()
        raise SimulatedCrash


class CrashingProxy:
    """Forwards method calls to another object until the crash point."""

    def __init__(self, object_: Any, crash_point: CrashPoint) -> None:
        self._object = object_
        self._death = crash_point

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._object, name)

        async def call(*arguments: Any) -> Any:
            return await self._death.during(lambda: method(*arguments))

        return call


class CrashingTargets:
    """Opens targets whose calls are forwarded until the crash point."""

    def __init__(self, places: Any, crash_point: CrashPoint) -> None:
        self._places = places
        self._death = crash_point

    async def open(self, target: Any) -> CrashingProxy:
        return CrashingProxy(await self._places.open(target), self._death)


def shell_job(script: str, job_id: int = 1, **more: Any) -> GrantedJob:
    quoted = "'" + script.replace("'", "'\"'\"'") + "'"
    return a_job(job_id, **{"executable": "/bin/sh", "arguments": f"-c {quoted}", **more})


def payload_processes(key: AttemptKey) -> set[int]:
    """Return the living processes with the marker of an attempt."""
    return {
        process.pid
        for process in all_processes().values()
        if process.state not in "ZX" and carries(process.pid, "PILOTAGE_ATTEMPT", f"{SITE.marker}/{key}")
    }


def processes_with(*marks: str) -> set[int]:
    """Return the living processes with all these marks in their arguments or environment.

    A process in namespaces of its own has other numbers there than here.
    """
    wanted = [mark.encode() for mark in marks]
    return {pid for pid in living(all_processes()) if all(mark in _words_of(pid) for mark in wanted)}


def _words_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() + (environment_of(pid) or b"")
    except OSError:
        return b""


def process_states(key: AttemptKey) -> set[str]:
    """Return the states of an attempt's processes, as letters of proc(5)."""
    found = (read_process(pid) for pid in payload_processes(key))
    return {process.state for process in found if process is not None}


def line_written(path: Path) -> Callable[[], bool]:
    return lambda: path.exists() and path.read_text().endswith("\n")
