"""The monitor of running payloads: what they use of memory and disk, and how long their streams are."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from pilotage.jobs.files import FolderState, OutputLimits, size_of, truncate
from pilotage.values.attempts import AttemptKey
from pilotage_pilot.core.attempts.limit_reasons import disk_reason, memory_reason
from pilotage_pilot.core.events import LimitPassed
from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.core.model import Now
from pilotage_pilot.supervise.accounts import PayloadUser
from pilotage_pilot.supervise.base import NodeFaultError, PayloadEvent
from pilotage_pilot.supervise.cgroups import Cgroup, PayloadLimits
from pilotage_pilot.supervise.containers import ReadyImage
from pilotage_pilot.supervise.folders import Folders, disk_use_mib
from pilotage_pilot.supervise.proc import Process, all_processes
from pilotage_pilot.supervise.process import Payload, proportional_memory_mib
from pilotage_pilot.supervise.spawn import output_path
from pilotage_pilot.supervise.watchdog import NEVER

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class PayloadRules:
    """How payloads are run: `bounds` limit the output, `watch_s` is the interval of the monitor.

    `nice` applies where no policy sets it. `warn_signal` is sent to a payload whose time ends; None = only the warning
    file is written. `processes` bounds the processes and threads of a payload's user, `file_mib` the files that it
    writes; None = the disk of its slot. The use of a payload is reported from `usage_after_s` after its start on.
    """

    bounds: OutputLimits = field(default_factory=lambda: OutputLimits(256 << 20))
    cache_bytes: int = 2 << 30
    nice: int = 0
    cpus_hard: bool = False
    watch_s: float = 1.0
    warn_signal: signal.Signals | None = None
    processes: int = 10_000
    file_mib: int | None = None
    usage_after_s: float = 10.0


@dataclass(slots=True)
class Work:
    """One attempt: `streams` are the names of its streams, `seen` the files in its folder at the start, if needed.

    `cut` are the streams that have been truncated. `payload` None = it does not run, `user` None = as the pilot's,
    `image` None = on the node itself. `began` is when its process began, until that is published; `start_fault` why its
    start was given up. `account` is its owner's until its folder is gone; None = none is used.
    `deadline_boot_s` is when the watchdog kills it, `deadline_place` where the watchdog finds that; None = nowhere.
    `disk_due_s` is when its disk use is measured next, on the event loop's clock, `disk_check` the measurement.
    `bounds` limit its output, None = those of all payloads do.
    """

    order: PrepareJob
    folders: Folders
    streams: tuple[str, ...]
    payload: Payload | None = None
    began: Now | None = None
    start_fault: NodeFaultError | None = None
    user: PayloadUser | None = None
    account: PayloadUser | None = None
    image: ReadyImage | None = None
    seen: FolderState | None = None
    cut: set[str] = field(default_factory=set)
    deadline_boot_s: float = NEVER
    deadline_place: int | None = None
    disk_due_s: float = 0.0
    disk_check: asyncio.Future[int] | None = None
    bounds: OutputLimits | None = None

    def nice(self, handling: PayloadRules) -> int:
        """Return the nice value of its payload, relative to the pilot."""
        return handling.nice if self.order.nice is None else self.order.nice

    def limits(self, handling: PayloadRules) -> PayloadLimits:
        """Return the limits of its payload."""
        return PayloadLimits(self.order.slot.amounts, self.nice(handling), cpus_hard=handling.cpus_hard)

    def resource_limits(self, handling: PayloadRules) -> dict[str, int]:
        """Return the limits of its processes, by the names of Python's `resource`."""
        limits = {"RLIMIT_CORE": 0, "RLIMIT_NPROC": handling.processes}
        file_mib = handling.file_mib if handling.file_mib is not None else self.order.slot.amounts.disk_mib
        return limits | ({"RLIMIT_FSIZE": file_mib * _MIB} if file_mib else {})

    def cut_streams(self, bounds: OutputLimits) -> None:
        """Truncate the streams that exceed the bounds."""
        for name in self.streams:
            path = output_path(self.folders.work, name)
            if path is not None and size_of(path) > bounds.file_bytes and truncate(path, bounds.file_bytes):
                self.cut.add(name)


class PayloadMonitor:
    """Checks the running payloads of `works` periodically; `new_group` creates a group for a payload without one."""

    def __init__(
        self,
        works: Mapping[AttemptKey, Work],
        handling: PayloadRules,
        new_group: Callable[[Work], Cgroup | None],
        publish: Callable[[PayloadEvent], None],
    ) -> None:
        self._works = works
        self._watch_s = handling.watch_s
        self._bounds = handling.bounds
        self._new_group = new_group
        self._publish = publish
        self._next: asyncio.TimerHandle | None = None

    def keep(self) -> None:
        """Check periodically from now on, until no payload runs."""
        if self._next is None:
            self._next = asyncio.get_running_loop().call_later(self._watch_s, self._sample)

    def end(self) -> None:
        """Stop the checks."""
        if self._next is not None:
            self._next.cancel()

    def _sample(self) -> None:
        self._next = None
        running = [(work, work.payload) for work in self._works.values() if work.payload is not None]
        if not running:
            return
        # New payloads wait for the next check: most end before it, and a check reads all processes of the machine.
        started_before_s = asyncio.get_running_loop().time() - self._watch_s / 2
        old_enough = [(work, payload) for work, payload in running if payload.started_s <= started_before_s]
        processes = all_processes() if old_enough else {}
        for work, payload in old_enough:
            self._sample_payload(work, payload, processes)
        self.keep()

    def _sample_payload(self, work: Work, payload: Payload, processes: dict[int, Process]) -> None:
        if payload.group is None:
            payload.group = self._new_group(work)
        memory_mib = payload.gather(processes)
        work.cut_streams(self._bounds)
        self._check_disk(work)
        limit_mib = work.order.slot.amounts.memory_mib
        is_held = payload.group is not None and payload.group.limits_memory
        if limit_mib and not is_held and memory_mib > limit_mib:
            # Counted again without sharing: memory that processes share is in each of their sizes.
            used_mib = proportional_memory_mib(payload.tree(processes))
            if used_mib > limit_mib:
                job = work.order.job
                reason = memory_reason(used_mib, limit_mib, job.description)
                self._publish(LimitPassed(job.key, reason, limit_mib))

    def _check_disk(self, work: Work) -> None:
        """Measure the attempt's folder in a thread, if that is due."""
        now_s = asyncio.get_running_loop().time()
        if work.disk_check is not None or now_s < work.disk_due_s:
            return
        work.disk_check = asyncio.get_running_loop().run_in_executor(None, disk_use_mib, work.folders.root)
        work.disk_check.add_done_callback(lambda measured: self._disk_measured(work, now_s, measured))

    def _disk_measured(self, work: Work, began_s: float, measured: asyncio.Future[int]) -> None:
        now_s = asyncio.get_running_loop().time()
        work.disk_check = None
        # A folder of many files must not keep a thread and the disk busy.
        work.disk_due_s = now_s + max(_DISK_INTERVAL * self._watch_s, _DISK_REST * (now_s - began_s))
        if measured.cancelled() or work.payload is None:
            return
        used_mib, limit_mib = measured.result(), work.order.slot.amounts.disk_mib
        work.payload.peak_disk_mib = max(work.payload.peak_disk_mib, used_mib)
        if limit_mib and used_mib > limit_mib:
            job = work.order.job
            self._publish(LimitPassed(job.key, disk_reason(used_mib, limit_mib, job.description)))


_DISK_INTERVAL = 5
"""The disk is measured at each of so many checks, as that costs a process."""
_DISK_REST = 10
"""A measurement is followed by at least so many times its duration without one."""
