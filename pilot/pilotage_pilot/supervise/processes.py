"""The processes of this machine as the kernel lists them, and which of them belong to a payload."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pilotage_pilot.supervise.warden import PROC, environment_of

_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True, slots=True)
class Process:
    """One process; `cpu_s` is what it used, with its children that are gone, `memory_mib` what of it is resident."""

    pid: int
    parent: int
    group: int
    session: int
    state: str
    cpu_s: float
    memory_mib: float


_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def read_process(pid: int) -> Process | None:
    """Return a process; None = it is gone, or not ours to see."""
    try:
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The name stands in brackets and may hold anything; what follows the last bracket is in fixed order.
    fields = text[text.rindex(")") + 2 :].split()
    cpu_s = sum(int(ticks) for ticks in fields[11:15]) * _TICK_S
    return Process(pid, int(fields[1]), int(fields[2]), int(fields[3]), fields[0], cpu_s, int(fields[21]) * _PAGE_MIB)


def all_processes() -> dict[int, Process]:
    """Return every process by its id."""
    found = (read_process(int(name)) for name in os.listdir(PROC) if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def carries(pid: int, variable: str, value: str) -> bool:
    """Whether a process was started with this variable in its environment."""
    return f"{variable}={value}".encode() in (environment_of(pid) or b"").split(b"\0")


def children_of(pid: int) -> tuple[int, ...]:
    """Return the direct children of a process, whichever thread has them."""
    try:
        lists = [path.read_text() for path in (PROC / str(pid) / "task").glob("*/children")]
    except OSError:
        lists = []
    return tuple(int(child) for text in lists for child in text.split()) if lists else _listed_children_of(pid)


def children_of_first_thread(pid: int) -> tuple[int, ...]:
    """Return the direct children that the first thread of a process has; all, where the kernel does not tell."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb", buffering=0) as file:
            return tuple(map(int, file.readall().split()))
    except OSError:
        return _listed_children_of(pid)


def _listed_children_of(pid: int) -> tuple[int, ...]:
    return tuple(process.pid for process in all_processes().values() if process.parent == pid)


def descendants(roots: Iterable[int], processes: dict[int, Process]) -> set[int]:
    """Return `roots` and all that descends from them, as far as it is there."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    waiting = [root for root in roots if root in processes]
    while waiting:
        pid = waiting.pop()
        if pid not in found:
            found.add(pid)
            waiting += children.get(pid, ())
    return found


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each of the processes that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def living(pids: Iterable[int]) -> Iterator[int]:
    """Yield those of the processes that are there and not only waiting to be reaped."""
    for pid in pids:
        process = read_process(pid)
        if process is not None and process.state not in "ZX":
            yield pid
