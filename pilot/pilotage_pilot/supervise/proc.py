"""Processes as the kernel lists them, and the subreaper, which keeps orphans of payloads among the descendants.

The watchdog uses it before the pilot imports its libraries, so it imports only the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


@dataclass(frozen=True, slots=True)
class Process:
    """One process; `cpu_s` includes its reaped children, `memory_mib` is resident memory.

    `started` is its start in clock ticks since boot, which tells apart the users of one pid. `system_cpu_s` is the part
    of `cpu_s` that the kernel spent for it.
    """

    pid: int
    parent: int
    group: int
    session: int
    state: str
    cpu_s: float
    memory_mib: float
    started: int
    system_cpu_s: float = 0.0


TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def read_process(pid: int) -> Process | None:
    """Return a process; None = it is gone or not visible."""
    try:
        with open(f"{PROC}/{pid}/stat", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    # The name is in brackets and may contain anything; the fields after the last bracket have a fixed order.
    fields = text[text.rindex(")") + 2 :].split()
    user, system, children_user, children_system = map(int, fields[11:15])
    system_cpu_s = (system + children_system) * TICK_S
    cpu_s = (user + children_user) * TICK_S + system_cpu_s
    memory_mib = int(fields[21]) * _PAGE_MIB
    parent, group, session = (int(field) for field in fields[1:4])
    return Process(pid, parent, group, session, fields[0], cpu_s, memory_mib, int(fields[19]), system_cpu_s)


def all_processes() -> dict[int, Process]:
    """Return every process by its id."""
    found = (read_process(int(name)) for name in os.listdir(PROC) if name.isdigit())
    return {process.pid: process for process in found if process is not None}


def user_of(pid: int) -> int | None:
    """Return the real user of a process; None = it is gone."""
    try:
        lines = (PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("Uid:")), None)


def has_processes(user: int) -> bool:
    """Whether a living process of this user exists."""
    pids = (int(name) for name in os.listdir(PROC) if name.isdigit())
    return any(living(pid for pid in pids if user_of(pid) == user))


def environment_of(pid: int) -> bytes | None:
    """Return the environment of a process; None = it is gone or not readable."""
    try:
        return (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None


def is_in_exec(pid: int) -> bool:
    """Whether a process is in execve, so that its environment cannot be read for a moment.

    The kernel then shows neither arguments nor environment. Unlike a zombie the process has a program.
    """
    folder = PROC / str(pid)
    try:
        return not (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes() and bool(
            os.readlink(folder / "exe")
        )
    except OSError:
        return False


def carries(pid: int, variable: str, value: str) -> bool:
    """Whether a process was started with this variable in its environment."""
    return f"{variable}={value}".encode() in (environment_of(pid) or b"").split(b"\0")


def children_of(pid: int) -> tuple[int, ...]:
    """Return the direct children of all threads of a process."""
    try:
        lists = [path.read_text() for path in (PROC / str(pid) / "task").glob("*/children")]
    except OSError:
        lists = []
    return tuple(int(child) for text in lists for child in text.split()) if lists else _listed_children_of(pid)


def children_of_first_thread(pid: int) -> tuple[int, ...]:
    """Return the direct children of a process's first thread; of all threads if the kernel does not list them."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb", buffering=0) as file:
            return tuple(map(int, file.readall().split()))
    except OSError:
        return _listed_children_of(pid)


def _listed_children_of(pid: int) -> tuple[int, ...]:
    return tuple(process.pid for process in all_processes().values() if process.parent == pid)


def descendants(roots: Iterable[int], processes: dict[int, Process]) -> set[int]:
    """Return the existing processes among `roots` and all their descendants."""
    children: dict[int, list[int]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process.pid)
    found: set[int] = set()
    pending = [root for root in roots if root in processes]
    while pending:
        pid = pending.pop()
        if pid not in found:
            found.add(pid)
            pending += children.get(pid, ())
    return found


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Send a signal to each of the processes that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def living(pids: Iterable[int]) -> Iterator[int]:
    """Yield the processes that exist and are not zombies."""
    for pid in pids:
        process = read_process(pid)
        if process is not None and process.state not in "ZX":
            yield pid


_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def hide_memory() -> None:
    """Prevent other processes of this user from reading this one's memory and environment, which hold its token."""
    _prctl(_PR_SET_DUMPABLE, 0)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def adopt_orphans(*, on: bool) -> None:
    """Make this process the subreaper of orphaned descendants, or not."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(on))


def continue_at_end_of_parent() -> None:
    """Have the kernel send SIGCONT to this process when its parent ends: it wakes a stopped process, too."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGCONT)


class Subreaper:
    """The children of this process: leaders of payloads, and orphans of payloads that it has adopted."""

    def __init__(self) -> None:
        self._excluded = frozenset(children_of(os.getpid()))
        self._leaders: dict[int, int | None] = {}
        adopt_orphans(on=True)

    def add_leader(self, leader: int, user: int | None = None) -> None:
        """Register a child as the leader of a payload that runs as this user; None = as the pilot's."""
        self._leaders[leader] = user

    def remove_leader(self, leader: int) -> None:
        """Remove the leader of a payload that has ended."""
        self._leaders.pop(leader, None)

    def adopted(self) -> set[int]:
        """Return the adopted orphans; the kernel gives them to the first thread (find_new_reaper in kernel/exit.c)."""
        return set(children_of_first_thread(os.getpid())) - self._excluded - self._leaders.keys()

    def is_alone(self, leader: int) -> bool:
        """Whether no other payload runs as the same user, so that all adopted orphans of the user are this one's."""
        user = self._leaders.get(leader)
        return not any(each == user for other, each in self._leaders.items() if other != leader)
