"""One payload: its leading process and all its descendants, from the start until none is alive."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from pilotage.errors import PilotageError
from pilotage.jobs.environment import MARKER
from pilotage.jobs.exit_codes import PayloadExit
from pilotage.values.attempts import AttemptKey
from pilotage_pilot.core.model import NOTHING_USED, Usage
from pilotage_pilot.supervise.accounts import PayloadUser
from pilotage_pilot.supervise.cgroups import Cgroup
from pilotage_pilot.supervise.proc import (
    Process,
    Subreaper,
    all_processes,
    carries,
    children_of_first_thread,
    descendants,
    is_in_exec,
    living,
    read_process,
    send,
    user_of,
)
from pilotage_pilot.supervise.spawn import LaunchedProcess, PayloadCommand

_FIRST_ROUND_S = 0.005
_MAX_ROUND_S = 1.0


@dataclass(frozen=True, slots=True)
class PayloadEnd:
    """How the leading process ended; `was_out_of_memory` = the kernel killed a process at the memory limit.

    `start_error` is why its program was not executed, as `LaunchedProcess.wait`; None = it was.
    """

    exit_code: int | None
    signal: int | None
    usage: Usage
    was_out_of_memory: bool
    start_error: OSError | PilotageError | None = None

    @property
    def is_by_request(self) -> bool:
        """Whether it ended by SIGTERM, or with the exit code that shells give for it."""
        return self.signal == signal.SIGTERM or self.exit_code == PayloadExit.SIGNAL + signal.SIGTERM


class Payload:
    """The processes of one attempt; `subreaper` knows the orphans that the pilot has adopted."""

    def __init__(
        self,
        key: AttemptKey,
        process: LaunchedProcess,
        marker: str,
        group: Cgroup | None,
        subreaper: Subreaper,
        user: PayloadUser | None = None,
    ) -> None:
        self.key = key
        self.pid = process.pid
        self.user = user
        """The user that it runs as; None = the pilot's."""
        self._process = process
        self._has_ended = False
        self._marker = marker
        self.group = group
        """Its control group, to which `gather` adds its processes; None = none yet."""
        self._subreaper = subreaper
        self._peak_mib = 0
        self._cpu_times_s = (0.0, 0.0)
        self.peak_disk_mib = 0
        """The largest measured size of its folder."""
        self._killing = False
        self.stop_requested = False
        """Whether the pilot has sent SIGTERM."""
        self._suspended = False
        self._stopped: set[int] = set()
        self._on_end: Callable[[PayloadEnd], None] | None = None
        self._start_error: OSError | PilotageError | None = None
        self.started_s = asyncio.get_running_loop().time()
        """Time of its start, on the event loop's clock."""
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except OSError:
            # A process that cannot be watched must not run.
            send([process.pid], signal.SIGKILL)
            process.wait()
            raise
        subreaper.add_leader(process.pid, None if user is None else user.uid)

    @property
    def command(self) -> PayloadCommand:
        """What it runs."""
        return self._process.command

    def has_begun(self) -> bool:
        """Whether its program is executed; if it cannot be, the payload ends."""
        return self._process.has_begun()

    # End --------------------------------------------------------------------------------------------------------

    def watch(self, on_end: Callable[[PayloadEnd], None]) -> None:
        """Call `on_end` when the leading process has ended and no process of the payload is alive."""
        self._on_end = on_end
        asyncio.get_running_loop().add_reader(self._pidfd, self._leader_ended)

    def _leader_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        # Until the leader is reaped, its pid and process group cannot be reused.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        code, usage = -signal.SIGKILL, NOTHING_USED
        try:
            code, usage = self._process.wait()
        except (OSError, PilotageError) as error:
            self._start_error = error
        self._has_ended = True
        self._end_when_empty(code, usage, _FIRST_ROUND_S)

    def _end_when_empty(self, code: int, usage: Usage, round_s: float) -> None:
        left, undecided = self._left_behind()
        if left or undecided:
            if self.group is not None:
                self.group.kill()
            send(left, signal.SIGKILL)
            again = min(_MAX_ROUND_S, round_s * 2)
            asyncio.get_running_loop().call_later(round_s, self._end_when_empty, code, usage, again)
            return
        self._subreaper.remove_leader(self.pid)
        if self._on_end is not None:
            self._on_end(self._end(code, usage))

    def _end(self, code: int, usage: Usage) -> PayloadEnd:
        was_out_of_memory = False
        self._peak_mib = max(usage.peak_memory_mib, self._peak_mib)
        # The leader's times lack descendants that it has not reaped; sampled ones lack the last moments.
        self._cpu_times_s = max(self._cpu_times_s, (usage.cpu_s, usage.system_cpu_s))
        usage = self.usage()
        if self.group is not None:
            was_out_of_memory = self.group.was_out_of_memory()
            self.group.remove()
        exit_code, number = (code, None) if code >= 0 else (None, -code)
        return PayloadEnd(exit_code, number, usage, was_out_of_memory, self._start_error)

    def _left_behind(self) -> tuple[set[int], set[int]]:
        """Return the processes that the payload has left alive after its leader, and those that may belong to it.

        The pilot is the subreaper of its descendants: orphans are its own children now. With an init process there are
        none.
        """
        left, undecided = set[int](), set[int]()
        if self._process.has_init:
            return left, undecided
        for pid in self._subreaper.adopted():
            process = read_process(pid)
            if process is None:
                continue
            if process.state == "Z":
                with contextlib.suppress(ChildProcessError):
                    os.waitpid(pid, os.WNOHANG)
            elif self._owns(process):
                left.add(pid)
            elif is_in_exec(pid):
                undecided.add(pid)
        if self.group is not None:
            left |= set(living(self.group.pids()))
        return left, undecided

    def _owns(self, process: Process) -> bool:
        if self.user is not None:
            is_ours = user_of(process.pid) == self.user.uid
            if not is_ours or not self.user.is_shared:
                return is_ours
        if process.session == self.pid or carries(process.pid, MARKER, self._marker):
            return True
        # A process without a marker belongs to the only payload of its user, if there is only one.
        return self._subreaper.is_alone(self.pid) and not is_in_exec(process.pid)

    @property
    def is_ordered_to_end(self) -> bool:
        """Whether it was stopped or killed by the pilot."""
        return self._killing or self.stop_requested

    # Signals ----------------------------------------------------------------------------------------------------

    def tree(self, processes: dict[int, Process] | None = None) -> set[int]:
        """Return all processes of the payload, including daemons."""
        found = all_processes() if processes is None else processes
        members = self.group.pids() if self.group is not None else frozenset[int]()
        adopted = self._subreaper.adopted()
        roots = {
            process.pid
            for process in found.values()
            if process.session == self.pid or process.pid in members or (process.pid in adopted and self._owns(process))
        }
        return descendants({self.pid, *roots}, found)

    def stop(self) -> None:
        """Send SIGTERM to every process, also to suspended ones."""
        self.stop_requested = True
        tree = self.tree()
        send(tree, signal.SIGTERM)
        self._stopped |= tree
        self.resume()

    def signal_leader(self, number: signal.Signals) -> None:
        """Send a signal to the leading process, the first child of an init process."""
        send(children_of_first_thread(self.pid)[:1] if self._process.has_init else [self.pid], number)

    def suspend(self) -> None:
        """Stop every process: freeze its group where the kernel can, and send SIGSTOP to the others until none runs."""
        self._suspended = True
        frozen = self._freeze(self.tree())
        for _ in range(5):
            running = self.tree() - self._stopped - frozen
            if not running:
                return
            send(running, signal.SIGSTOP)
            self._stopped |= running

    def _freeze(self, tree: set[int]) -> frozenset[int]:
        """Freeze the group; returns the frozen processes."""
        if self.group is None:
            return frozenset()
        for pid in tree - self.group.pids():
            self.group.add(pid)
        return self.group.pids() if self.group.freeze() else frozenset()

    def resume(self) -> None:
        """Continue every process."""
        self._suspended = False
        if self.group is not None:
            self.group.thaw()
        send(self._stopped, signal.SIGCONT)
        self._stopped.clear()

    def kill(self) -> None:
        """Kill every process in rounds until the leader has ended; `_leader_ended` kills the rest."""
        if not self._killing:
            self._killing = True
            self._kill_round(_FIRST_ROUND_S)

    def _kill_round(self, round_s: float) -> None:
        if self._has_ended:
            return
        if self.group is not None:
            self.group.kill()
        # The leader first: it must not see its children die and report that as their result.
        send([self.pid], signal.SIGKILL)
        send(self.tree(), signal.SIGKILL)
        again = min(_MAX_ROUND_S, round_s * 2)
        asyncio.get_running_loop().call_later(round_s, self._kill_round, again)

    # Use --------------------------------------------------------------------------------------------------------

    def gather(self, processes: dict[int, Process]) -> float:
        """Add all its processes to its control group; returns their resident memory in MiB."""
        if self._suspended:
            # A process that was in execve when the payload was suspended can be identified now.
            self.suspend()
        tree = self.tree(processes)
        self._count_cpu(tree, processes)
        if self._process.has_init:
            tree -= {self.pid}
        if self.group is not None:
            members = self.group.pids()
            for pid in tree - members:
                self.group.add(pid)
        memory = sum(processes[pid].memory_mib for pid in tree)
        self._peak_mib = max(self._peak_mib, int(memory))
        return memory

    def cpu_s(self, processes: dict[int, Process]) -> float:
        """Return the CPU seconds used so far; the value never decreases."""
        self._count_cpu(self.tree(processes), processes)
        return self._cpu_times_s[0]

    def _count_cpu(self, tree: set[int], processes: dict[int, Process]) -> None:
        counted = self.group.cpu_times_s() if self.group is not None else (0.0, 0.0)
        if not counted[0]:
            of_tree = [processes[pid] for pid in tree]
            counted = sum(each.cpu_s for each in of_tree), sum(each.system_cpu_s for each in of_tree)
        self._cpu_times_s = max(self._cpu_times_s, counted)

    def usage(self) -> Usage:
        """Return the use so far; without a group as of the last call of `gather`."""
        cpu_s, system_cpu_s = self._cpu_times_s
        peak_mib = self._peak_mib
        if self.group is not None:
            # The group's counters are exact: no sampling, nothing counted twice.
            cpu_s, system_cpu_s = max(self._cpu_times_s, self.group.cpu_times_s())
            peak_mib = self.group.peak_memory_mib() or peak_mib
        return Usage(cpu_s, peak_mib, system_cpu_s, self.peak_disk_mib)


def proportional_memory_mib(pids: set[int]) -> float:
    """Return the memory of processes with shared memory counted once (PSS)."""
    total_kib = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
            total_kib += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total_kib / 1024
