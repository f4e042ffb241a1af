"""One payload: its leading process and all that it left behind, from the start until nothing of it lives."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from dataclasses import dataclass

from pilotage.job_environment import MARKER
from pilotage_pilot.core.jobs import AttemptKey, Usage
from pilotage_pilot.supervise.cgroups import Group
from pilotage_pilot.supervise.descent import Descent
from pilotage_pilot.supervise.processes import (
    Process,
    all_processes,
    carries,
    descendants,
    living,
    read_process,
    send,
)
from pilotage_pilot.supervise.warden import is_in_exec

_FIRST_ROUND_S = 0.005
_LONGEST_ROUND_S = 1.0


@dataclass(frozen=True, slots=True)
class End:
    """How the leading process ended; `limit` is set when the kernel ended the payload for its memory."""

    exit_code: int | None
    signal: int | None
    usage: Usage
    limit: str | None

    @property
    def is_by_request(self) -> bool:
        """Whether it ended as what is asked to end does, by the signal or by the exit code that shells give it."""
        return self.signal == signal.SIGTERM or self.exit_code == 128 + signal.SIGTERM


class Payload:
    """The processes of one attempt; `descent` knows what payloads have left to the pilot."""

    def __init__(
        self,
        key: AttemptKey,
        process: subprocess.Popen[bytes],
        marker: str,
        group: Group | None,
        descent: Descent,
    ) -> None:
        self.key = key
        self.pid = process.pid
        self._process = process
        self._marker = marker
        self.group = group
        """Its control group, into which `gather` brings its processes; None = it has none, which may come later."""
        self._descent = descent
        self._peak_mib = 0
        self._cpu_s = 0.0
        self._killing = False
        self.was_told_to_end = False
        """Whether the pilot itself has asked it to end."""
        self._suspended = False
        self._stopped: set[int] = set()
        self._on_end: Callable[[End], None] | None = None
        self.begun_s = asyncio.get_running_loop().time()
        """When it began, on the event loop's clock."""
        try:
            self._pidfd = os.pidfd_open(process.pid)
        except OSError:
            # What cannot be watched must not run.
            process.kill()
            process.wait()
            raise
        descent.begins(process.pid)

    # Its end ----------------------------------------------------------------------------------------------------

    def watch(self, on_end: Callable[[End], None]) -> None:
        """Call `on_end` when the leading process has ended and nothing of the payload lives any more."""
        self._on_end = on_end
        asyncio.get_running_loop().add_reader(self._pidfd, self._leader_ended)

    def _leader_ended(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        # As long as the leader is not reaped its number, and so its group's, belongs to nobody else.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        _, status, rusage = os.wait4(self.pid, 0)
        self._process.returncode = code = os.waitstatus_to_exitcode(status)
        usage = Usage(rusage.ru_utime + rusage.ru_stime, self._descent.own_peak_mib(rusage.ru_maxrss))
        self._end_when_empty(code, usage, _FIRST_ROUND_S)

    def _end_when_empty(self, code: int, usage: Usage, round_s: float) -> None:
        left, undecided = self._left_behind()
        if left or undecided:
            if self.group is not None:
                self.group.kill()
            send(left, signal.SIGKILL)
            again = min(_LONGEST_ROUND_S, round_s * 2)
            asyncio.get_running_loop().call_later(round_s, self._end_when_empty, code, usage, again)
            return
        self._descent.ends(self.pid)
        if self._on_end is not None:
            self._on_end(self._end(code, usage))

    def _end(self, code: int, usage: Usage) -> End:
        limit = None
        peak = max(usage.peak_memory_mib, self._peak_mib)
        if self.group is not None:
            # What the kernel has counted for the group is exact: no sampling, nothing counted twice.
            usage = Usage(max(usage.cpu_s, self.group.cpu_s()))
            peak = self.group.peak_memory_mib() or peak
            limit = "it used more memory than it asked for" if self.group.was_out_of_memory() else None
            self.group.remove()
        usage = Usage(usage.cpu_s, peak)
        return End(code if code >= 0 else None, -code if code < 0 else None, usage, limit)

    def _left_behind(self) -> tuple[set[int], set[int]]:
        """Return what of the payload still lives now that its leader is gone, and what may be of it.

        The pilot is the reaper of all that descends from it: whatever lost its parent is its own child now.
        """
        left, undecided = set(), set()
        for pid in self._descent.adopted():
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
        if process.session == self.pid or carries(process.pid, MARKER, self._marker):
            return True
        # Who has thrown its marker away is whose it can be: with no other payload there is no question.
        return self._descent.is_alone(self.pid) and not is_in_exec(process.pid)

    # What can be done to it -------------------------------------------------------------------------------------

    def tree(self, processes: dict[int, Process] | None = None) -> set[int]:
        """Return all processes of the payload, also those that hide from their parents."""
        found = all_processes() if processes is None else processes
        members = self.group.pids() if self.group is not None else frozenset[int]()
        adopted = self._descent.adopted()
        roots = {
            process.pid
            for process in found.values()
            if process.session == self.pid or process.pid in members or (process.pid in adopted and self._owns(process))
        }
        return descendants({self.pid, *roots}, found)

    def stop(self) -> None:
        """Ask every process to end itself, also where it is suspended."""
        self.was_told_to_end = True
        tree = self.tree()
        send(tree, signal.SIGTERM)
        self._stopped |= tree
        self.resume()

    def signal_leader(self, number: signal.Signals) -> None:
        """Send a signal to the leading process."""
        send([self.pid], number)

    def suspend(self) -> None:
        """Stop every process: its group is frozen where the kernel can, the others are stopped until none runs."""
        self._suspended = True
        frozen = self._freeze(self.tree())
        for _ in range(5):
            running = self.tree() - self._stopped - frozen
            if not running:
                return
            send(running, signal.SIGSTOP)
            self._stopped |= running

    def _freeze(self, tree: set[int]) -> frozenset[int]:
        """Return the processes that are frozen."""
        if self.group is None:
            return frozenset()
        for pid in tree - self.group.pids():
            self.group.add(pid)
        return self.group.pids() if self.group.freeze() else frozenset()

    def resume(self) -> None:
        """Let every process go on."""
        self._suspended = False
        if self.group is not None:
            self.group.thaw()
        send(self._stopped, signal.SIGCONT)
        self._stopped.clear()

    def kill(self) -> None:
        """Kill every process, round after round until the leader has ended; the rest is killed then."""
        if not self._killing:
            self._killing = True
            self._kill_round(_FIRST_ROUND_S)

    def _kill_round(self, round_s: float) -> None:
        if self._process.returncode is not None:
            return
        if self.group is not None:
            self.group.kill()
        # The leader first: it must not see its children go and take that for their end.
        send([self.pid], signal.SIGKILL)
        send(self.tree(), signal.SIGKILL)
        again = min(_LONGEST_ROUND_S, round_s * 2)
        asyncio.get_running_loop().call_later(round_s, self._kill_round, again)

    # What it uses -----------------------------------------------------------------------------------------------

    def gather(self, processes: dict[int, Process]) -> float:
        """Bring all its processes into its control group; returns their resident memory in MiB."""
        if self._suspended:
            # What was just becoming another program when it was suspended can be told for its own now.
            self.suspend()
        tree = self.tree(processes)
        if self.group is not None:
            members = self.group.pids()
            for pid in tree - members:
                self.group.add(pid)
        memory = sum(processes[pid].memory_mib for pid in tree)
        self._peak_mib = max(self._peak_mib, int(memory))
        return memory

    def cpu_s(self, processes: dict[int, Process]) -> float:
        """Return the CPU seconds that it used so far; it never grows less."""
        counted = self.group.cpu_s() if self.group is not None else 0.0
        if not counted:
            counted = sum(processes[pid].cpu_s for pid in self.tree(processes))
        self._cpu_s = max(self._cpu_s, counted)
        return self._cpu_s


def proportional_memory_mib(pids: set[int]) -> float:
    """Return the memory of processes with what they share counted once (PSS)."""
    total_kib = 0
    for pid in pids:
        with contextlib.suppress(OSError), open(f"/proc/{pid}/smaps_rollup") as file:
            total_kib += sum(int(line.split()[1]) for line in file if line.startswith("Pss:"))
    return total_kib / 1024
