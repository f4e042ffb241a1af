"""The watchdog: the parent process of the pilot, which ends payloads when the pilot cannot.

Rules
-----
- A payload whose deadline has passed is killed, even if the pilot is stopped or hangs.
- When the pilot ends, however it ends, every process that it has left is killed. Orphans come to the watchdog, the
  next subreaper above the pilot, whatever their environment, session or process group. Only then the watchdog exits.
- When the watchdog is killed, the kernel sends SIGCONT to the pilot, which kills its payloads and ends.

The pilot writes the deadlines to shared memory, so a stopped watchdog or pilot delays nobody and a renewal costs
microseconds. The timer of the next deadline sends SIGCONT, so it wakes a watchdog that is stopped itself.

`start_watchdog` forks before the pilot has imported its libraries or started a thread. So this module may import
nothing but the standard library and `proc`, which does the same.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import signal
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pilotage_pilot.supervise.proc import (
    Process,
    adopt_orphans,
    all_processes,
    continue_at_end_of_parent,
    descendants,
    read_process,
    send,
)

FREEZER_STATE = "freezer.state"
"""The file that freezes and thaws a group (version 1); no signal reaches a frozen process."""

NEVER = float("inf")


def boot_time_s() -> float:
    """Return the time since boot, which goes on while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


# The kernel ---------------------------------------------------------------------------------------------------------


class _TimerEvent(ctypes.Structure):
    """Linux's struct sigevent: send signal `number`."""

    _fields_ = (
        ("value", ctypes.c_void_p),
        ("number", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("rest", ctypes.c_char * 48),
    )


class _TimerSetting(ctypes.Structure):
    """Linux's struct itimerspec: the interval and the first time."""

    _fields_ = (
        ("interval_s", ctypes.c_long),
        ("interval_ns", ctypes.c_long),
        ("at_s", ctypes.c_long),
        ("at_ns", ctypes.c_long),
    )


_TIMER_ABSTIME = 1
_SI_TIMER = -2
_TIMERS = 4


class _BootTimers:
    """Timers on the boot clock that send SIGCONT to this process: that wakes it even if it is stopped.

    A SIGSTOP discards a SIGCONT that this process has not received yet, and the kernel renews a timer only when its
    signal is received. So there are several, which fire one after the other.
    """

    def __init__(self, interval_s: int) -> None:
        self._interval_s = interval_s
        self._library = ctypes.CDLL(None, use_errno=True)
        self._timers = [timer for _ in range(_TIMERS) if (timer := self._new_timer()) is not None]

    def _new_timer(self) -> ctypes.c_void_p | None:
        timer = ctypes.c_void_p()
        event = _TimerEvent(None, signal.SIGCONT, 0, b"")
        made = self._library.timer_create(time.CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(timer))
        return timer if made == 0 else None

    def set(self, boot_s: float) -> None:
        """Wake this process at that time and then several times in each interval, in place of the times before."""
        if boot_s == NEVER:
            return
        for number, timer in enumerate(self._timers):
            at_s = boot_s + number * self._interval_s / _TIMERS
            # Zero would disarm it; a time in the past fires at once.
            setting = _TimerSetting(self._interval_s, 0, int(at_s), max(1, int(at_s % 1 * 1e9)))
            self._library.timer_settime(timer, _TIMER_ABSTIME, ctypes.byref(setting), None)


# Deadlines ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Deadline:
    """When a payload is killed, on the boot clock, and its leading process.

    `leader` 0 = it is being started. `started` is the leader's start in clock ticks since boot.
    """

    boot_s: float
    leader: int = 0
    started: int = 0


_ENTRY = struct.Struct("=qqd")
_BOOT_S = struct.Struct("=d")
_LEADER = struct.Struct("=qq")
_PLACES = 4096
_TABLE_BYTES = _ENTRY.size * _PLACES
_GROUPS_BYTES = 8192
_ARMED_AT = _TABLE_BYTES
_GROUPS_AT = _TABLE_BYTES + _ENTRY.size


class DeadlineTable:
    """The deadlines of running payloads, and the folders of their control groups, in memory that two processes share.

    One process writes them. The other, the watchdog, reads them and writes `armed_boot_s`, its next look at them.
    """

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _GROUPS_AT + _GROUPS_BYTES)
        self._free = list(range(_PLACES - 1, -1, -1))

    def add(self, boot_s: float) -> int:
        """Add the deadline of a payload that is about to start; returns its place. Raises OSError if there is none."""
        if not self._free:
            raise OSError(f"more than {_PLACES} payloads run at once")
        place = self._free.pop()
        _ENTRY.pack_into(self._memory, place * _ENTRY.size, 0, 0, boot_s)
        return place

    def set_leader(self, place: int, leader: int, started: int) -> None:
        """Set the leading process of a payload."""
        _LEADER.pack_into(self._memory, place * _ENTRY.size, leader, started)

    def move(self, place: int, boot_s: float) -> None:
        """Change a deadline."""
        _BOOT_S.pack_into(self._memory, place * _ENTRY.size + _LEADER.size, boot_s)

    def remove(self, place: int) -> None:
        """Remove the deadline of a payload that has ended."""
        _ENTRY.pack_into(self._memory, place * _ENTRY.size, 0, 0, 0.0)
        self._free.append(place)

    def entries(self) -> list[Deadline]:
        """Return all deadlines."""
        found = _ENTRY.iter_unpack(self._memory[:_TABLE_BYTES])
        return [Deadline(boot_s, leader, started) for leader, started, boot_s in found if boot_s]

    @property
    def armed_boot_s(self) -> float:
        """When the watchdog looks at the deadlines next."""
        boot_s: float = _BOOT_S.unpack_from(self._memory, _ARMED_AT)[0]
        return boot_s

    @armed_boot_s.setter
    def armed_boot_s(self, boot_s: float) -> None:
        _BOOT_S.pack_into(self._memory, _ARMED_AT, boot_s)

    @property
    def groups(self) -> tuple[Path, ...]:
        """The parent folders of the payloads' control groups."""
        text = self._memory[_GROUPS_AT:].rstrip(b"\0")
        return tuple(Path(os.fsdecode(name)) for name in text.split(b"\0") if name)

    @groups.setter
    def groups(self, folders: Iterable[Path]) -> None:
        text = b"\0".join(os.fsencode(folder) for folder in folders)
        if len(text) < _GROUPS_BYTES:
            self._memory[_GROUPS_AT : _GROUPS_AT + len(text)] = text


_POKE = signal.SIGRTMIN
_RELAYED = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGXCPU,
    signal.SIGUSR2,
    signal.SIGHUP,
    signal.SIGTSTP,
    signal.SIGCONT,
)
RELAYS = {number: _POKE + 1 + index for index, number in enumerate(_RELAYED)}
"""The signals that the watchdog passes on, each as another one. A batch system may signal both processes; with equal
signals the pilot could not tell a second order from the first one."""


class WatchdogLink:
    """The pilot's side: it writes the deadlines, and knows whether its watchdog is alive."""

    def __init__(self, table: DeadlineTable, pid: int) -> None:
        self.pid = pid
        self._table = table
        self._process = os.pidfd_open(pid)

    @property
    def is_alive(self) -> bool:
        """Whether the watchdog is alive."""
        return os.getppid() == self.pid

    def set_groups(self, folders: Iterable[Path]) -> None:
        """Set the parent folders of the payloads' control groups."""
        self._table.groups = tuple(folders)

    def add(self, boot_s: float) -> int:
        """Add the deadline of a payload that is about to start; returns its place. Raises OSError if there is none."""
        place = self._table.add(boot_s)
        self._announce(boot_s)
        return place

    def set_leader(self, place: int, leader: int) -> None:
        """Set the leading process of a payload, a child of this process that has not been reaped."""
        process = read_process(leader)
        assert process is not None, "a child that is not reaped exists"
        self._table.set_leader(place, leader, process.started)

    def move(self, place: int, boot_s: float) -> None:
        """Change a deadline."""
        self._table.move(place, boot_s)
        self._announce(boot_s)

    def remove(self, place: int) -> None:
        """Remove the deadline of a payload that has ended, or has not been started."""
        self._table.remove(place)

    def _announce(self, boot_s: float) -> None:
        if boot_s < self._table.armed_boot_s:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, _POKE)

    def end(self) -> None:
        """Kill all descendants of this process if the watchdog cannot do it."""
        if not self.is_alive:
            adopt_orphans(on=True)
            end_descendants(self._table.groups)


# The watchdog -------------------------------------------------------------------------------------------------------

_KILLED = 1
"""Exit code of the watchdog of a pilot that was killed by a signal: `ExitCode.OWN_ERROR`."""

_AWAITED = (*_RELAYED, signal.SIGCHLD, _POKE)
_RECHECK_S = 0.5
_LONGEST_WAIT_S = 1.0
"""A watchdog that was stopped before it set its timer for a new deadline looks at the deadlines after this time."""

_FIRST_ROUND_S, _LONGEST_ROUND_S = 0.002, 0.2


def start_watchdog() -> WatchdogLink:
    """Fork: the new process is the pilot and goes on; this one becomes its watchdog, and exits after it."""
    table = DeadlineTable()
    adopt_orphans(on=True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*_AWAITED, *RELAYS.values()])
    watchdog = os.getpid()
    pilot = os.fork()
    if pilot:
        code = _KILLED
        try:
            code = _Watchdog(pilot, table).run()
        finally:
            os._exit(code)
    # A signal to the watchdog's group must not reach the pilot, which has to outlive a killed watchdog.
    os.setsid()
    continue_at_end_of_parent()
    link = WatchdogLink(table, watchdog)
    if not link.is_alive:
        os._exit(_KILLED)
    signal.pthread_sigmask(signal.SIG_SETMASK, before | set(RELAYS.values()))
    return link


class _Watchdog:
    """The watchdog of the pilot with this pid."""

    def __init__(self, pilot: int, table: DeadlineTable) -> None:
        self._pilot = pilot
        self._table = table
        self._starting: set[float] = set()
        """The deadlines of payloads that were being started at the last look, if it killed others."""
        # Stopped at work, it is woken by the next interval.
        self._timers = _BootTimers(int(_LONGEST_WAIT_S))

    def run(self) -> int:
        """Return the exit code of the pilot, when neither it nor any process of its payloads exists."""
        status: int | None = None
        while status is None:
            self._wait(self._enforce())
            status = self._reap()
        end_descendants(self._table.groups)
        code = os.waitstatus_to_exitcode(status)
        if code >= 0:
            return code
        os.write(2, f"pilotage-pilot: the pilot was killed by signal {-code}; its payloads have been ended\n".encode())
        return _KILLED

    def _wait(self, until_boot_s: float) -> None:
        """Wait for a signal or until that time, at most `_LONGEST_WAIT_S`, and pass on the signal."""
        now_s = boot_time_s()
        timeout_s = min(_LONGEST_WAIT_S, max(0.0, until_boot_s - now_s))
        self._timers.set(now_s + timeout_s)
        # Without a timer of the kernel the timeout serves.
        received = signal.sigtimedwait(_AWAITED, timeout_s)
        if received is not None and received.si_code != _SI_TIMER and received.si_signo in _RELAYED:
            self._signal_pilot(RELAYS[signal.Signals(received.si_signo)])

    def _signal_pilot(self, number: int) -> None:
        # Until it is reaped, its pid cannot be used again.
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pilot, number)

    def _reap(self) -> int | None:
        """Reap ended children; returns the status of the pilot, None = it has not ended."""
        for pid, status in _ended_children():
            if pid == self._pilot:
                return status
        return None

    def _enforce(self) -> float:
        """Kill the payloads whose deadlines have passed; returns when to look again."""
        # Deadlines that are written from here on are announced by a signal.
        self._table.armed_boot_s = NEVER
        entries = self._table.entries()
        now_s = boot_time_s()
        overdue = [entry for entry in entries if entry.boot_s <= now_s]
        starting = {entry.boot_s for entry in entries if not entry.leader}
        if any(not entry.leader for entry in overdue) or (overdue and starting & self._starting):
            # The pilot was stopped while it started a payload: it would go on with that, and orphans would be spared.
            self._signal_pilot(signal.SIGKILL)
        elif overdue:
            self._kill_overdue()
        self._starting = starting if overdue else set()
        next_s = now_s + _RECHECK_S if overdue else min((entry.boot_s for entry in entries), default=NEVER)
        self._table.armed_boot_s = next_s
        return next_s

    def _kill_overdue(self) -> None:
        """Kill all descendants of the pilot but those of payloads with time left, until none is left.

        An orphan that no session shows to be another payload's is killed, too: it may belong to an overdue one. While
        a payload is being started it has no leader, so orphans wait for the next look.
        """
        for pause_s in _pauses():
            # In this order: a payload is in the table before its first process exists.
            processes = all_processes()
            entries, now_s = self._table.entries(), boot_time_s()
            leaders = {entry.leader for entry in entries if entry.boot_s <= now_s}
            others = [entry for entry in entries if entry.boot_s > now_s]
            spared = {entry.leader for entry in others if _is_there(entry, processes)}
            spared |= {process.pid for process in processes.values() if process.session in spared}
            found = descendants([self._pilot], processes) - descendants(spared, processes) - {self._pilot}
            if any(not entry.leader for entry in others):
                found &= descendants(leaders, processes)
            victims = {pid for pid in found if processes[pid].state not in "ZX"}
            # A process that cannot be killed must not keep the watchdog from the end of its pilot.
            if not victims or pause_s == _LONGEST_ROUND_S:
                return
            # The leaders first: they must not see their children die and report that as their result.
            send([*(victims & leaders), *(victims - leaders)], signal.SIGKILL)
            _thaw(self._table.groups, victims)
            time.sleep(pause_s)


def _is_there(entry: Deadline, processes: Mapping[int, Process]) -> bool:
    process = processes.get(entry.leader)
    return process is not None and process.started == entry.started


def _pauses() -> Iterator[float]:
    pause_s = _FIRST_ROUND_S
    while True:
        yield pause_s
        pause_s = min(_LONGEST_ROUND_S, pause_s * 2)


def _ended_children() -> Iterator[tuple[int, int]]:
    """Reap the ended children and yield their ids and statuses; raises ChildProcessError if there is no child."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        yield pid, status


def end_descendants(groups: Iterable[Path] = ()) -> None:
    """Kill all descendants of this process, which has to be a subreaper, and all in `groups`, until none exists."""
    folders = tuple(groups)
    for pause_s in _pauses():
        victims = descendants([os.getpid()], all_processes()) - {os.getpid()} | _members(folders)
        send(victims, signal.SIGKILL)
        _thaw(folders, victims)
        try:
            for _ in _ended_children():
                continue
        except ChildProcessError:
            if not _members(folders):
                break
        time.sleep(pause_s)
    for folder in folders:
        for path in [*folder.glob("*/"), folder]:
            with contextlib.suppress(OSError):
                path.rmdir()


def _members(groups: Iterable[Path]) -> set[int]:
    return {pid for group in groups for folder in group.glob("*/") for pid in _pids(folder)}


def _pids(group: Path) -> set[int]:
    try:
        return {int(pid) for pid in (group / "cgroup.procs").read_text().split()}
    except OSError:
        return set()


def _thaw(groups: Iterable[Path], pids: set[int]) -> None:
    """Thaw the groups of these processes (version 1)."""
    for group in groups:
        for state in group.glob(f"*/{FREEZER_STATE}"):
            with contextlib.suppress(OSError):
                if pids & _pids(state.parent):
                    state.write_text("THAWED")
