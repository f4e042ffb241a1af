"""Runs payloads as processes of this machine, each in a folder of its own, and monitors what they use and write.

Small output files travel in the report, large ones are uploaded before it. The ads of slot and job are files in the
attempt's folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import signal
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pilotage.classads.text import ad_lines
from pilotage.errors import InvalidInputError, PilotageError, WorldError
from pilotage.jobs.files import (
    UNPLACEABLE_ERRNOS,
    FolderState,
    FoundOutput,
    JobFaultError,
    OutputLimits,
    digest_of,
    find_output,
    inside,
    open_regular,
    plain_files,
    remove_small,
    remove_tree,
    size_of,
    stream_names,
    truncate,
)
from pilotage.values.attempts import AttemptKey, ReportedOutput
from pilotage_pilot.core.events import LimitPassed, PayloadExited
from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.link.base import FileLink
from pilotage_pilot.supervise.base import CollectedOutput, NodeFaultError, PayloadEvent, PayloadTime
from pilotage_pilot.supervise.cgroups import Cgroup, CgroupMaker, PayloadLimits
from pilotage_pilot.supervise.folders import (
    FileCache,
    Folders,
    PilotFolder,
    SpareFolders,
    folders_in,
    make_folders,
    write_over,
)
from pilotage_pilot.supervise.proc import Process, Subreaper, adopt_orphans, all_processes
from pilotage_pilot.supervise.process import Payload, PayloadEnd, proportional_memory_mib
from pilotage_pilot.supervise.spawn import PayloadSite, command_of, environment_of, output_path, spawn
from pilotage_pilot.supervise.watchdog import NEVER, WatchdogLink


@dataclass(frozen=True, slots=True)
class PayloadRules:
    """How payloads are run: `bounds` limit the output, `watch_s` is the interval of the monitor.

    `nice` applies where no policy sets it. `warn_signal` is sent to a payload whose time ends; None = only the warning
    file is written.
    """

    bounds: OutputLimits = field(default_factory=lambda: OutputLimits(256 << 20))
    cache_bytes: int = 2 << 30
    nice: int = 0
    cpus_hard: bool = False
    watch_s: float = 1.0
    warn_signal: signal.Signals | None = None


@dataclass(slots=True)
class Work:
    """One attempt: `streams` are the names of its streams, `seen` the files in its folder at the start, if needed.

    `cut` are the streams that have been truncated. `payload` None = it does not run. `deadline_boot_s` is when the
    watchdog kills it, `deadline_place` where the watchdog finds that; None = nowhere.
    """

    order: PrepareJob
    folders: Folders
    streams: tuple[str, ...]
    payload: Payload | None = None
    seen: FolderState | None = None
    cut: set[str] = field(default_factory=set)
    deadline_boot_s: float = NEVER
    deadline_place: int | None = None

    def nice(self, handling: PayloadRules) -> int:
        """Return the nice value of its payload, relative to the pilot."""
        return handling.nice if self.order.nice is None else self.order.nice

    def limits(self, handling: PayloadRules) -> PayloadLimits:
        """Return the limits of its payload."""
        return PayloadLimits(self.order.slot.amounts, self.nice(handling), cpus_hard=handling.cpus_hard)

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
        limit_mib = work.order.slot.amounts.memory_mib
        is_held = payload.group is not None and payload.group.limits_memory
        if limit_mib and not is_held and memory_mib > limit_mib:
            # Counted again without sharing: memory that processes share is in each of their sizes.
            used_mib = proportional_memory_mib(payload.tree(processes))
            if used_mib > limit_mib:
                why = f"it used {used_mib:.0f} MiB of memory and asked for {limit_mib} MiB"
                self._publish(LimitPassed(work.order.job.key, why))


INLINE_BYTES = 64 << 10
"""Files up to this size travel in the report."""

_INLINE_SUM_BYTES = 1 << 20


def store_small(
    found: FoundOutput, bounds: OutputLimits, cut: Iterable[str]
) -> tuple[tuple[ReportedOutput, ...], dict[str, Path]]:
    """Return the files that travel in the report, and those that have to be uploaded before it."""
    small: list[ReportedOutput] = []
    large: dict[str, Path] = {}
    room = _INLINE_SUM_BYTES
    were_cut = frozenset(cut)
    for name, path in found.files.items():
        content = b"" if _is_empty(path) else _read_small(path, min(INLINE_BYTES, bounds.file_bytes, room))
        if content is None:
            large[name] = path
            continue
        room -= len(content)
        checksum = hashlib.sha256(content).hexdigest()
        small.append(ReportedOutput(name, checksum, len(content), content, truncated=name in were_cut))
    return tuple(small), large


def _is_empty(path: Path) -> bool:
    status = os.lstat(path)
    return stat.S_ISREG(status.st_mode) and status.st_size == 0


def _read_small(path: Path, most: int) -> bytes | None:
    with open_regular(path) as file:
        content = file.read(most + 1)
    return content if len(content) <= most else None


_MODE = 0o400


def write_ads(order: PrepareJob, folders: Folders) -> None:
    """Write the ad files of an attempt; raises OSError."""
    if order.machine_ad:
        _write(folders.machine_ad, ad_lines(order.machine_ad, evaluated=True))
    if order.job_ad:
        _write(folders.job_ad, ad_lines(order.job_ad))


def _write(path: Path, lines: str) -> None:
    path.write_text(lines, encoding="utf-8")
    path.chmod(_MODE)


_PILOT_SIGNAL_DELAY_S = 0.5
_LAST_KILL_S = 5.0


class LocalPayloadRunner:
    """Runs payloads on this machine; has to be closed. `watchdog` None = nothing else enforces their deadlines."""

    def __init__(
        self,
        folder: PilotFolder,
        link: FileLink,
        site: PayloadSite,
        handling: PayloadRules,
        groups: CgroupMaker | None,
        watchdog: WatchdogLink | None = None,
    ) -> None:
        self._folder = folder
        self._link = link
        self._site = site
        self._handling = handling
        self._groups = groups
        self._bounds = handling.bounds
        self._cache = FileCache(folder.cache, handling.cache_bytes, link.download)
        self._spares = SpareFolders()
        self._wrapper: Path | None = None
        self._work: dict[AttemptKey, Work] = {}
        self._publish: Callable[[PayloadEvent], None] = _ignore
        self._removals: set[asyncio.Future[None]] = set()
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._subreaper = Subreaper()
        self._watchdog = watchdog
        if watchdog is not None and groups is not None:
            watchdog.set_groups(groups.folders)
        self._monitor = PayloadMonitor(self._work, handling, self._new_group, self._happens)

    def subscribe(self, publish: Callable[[PayloadEvent], None]) -> None:
        """Call `publish` for each event of a payload from now on."""
        self._publish = publish

    def _happens(self, event: PayloadEvent) -> None:
        self._publish(event)

    # Start ----------------------------------------------------------------------------------------------------

    def wrap(self, wrapper: Path | None) -> None:
        """Start payloads through this program from now on, with theirs as its arguments; None = directly."""
        self._wrapper = wrapper

    def prepare(self, order: PrepareJob) -> None:
        """Make the folder of an attempt; raises NodeFaultError."""
        folders = folders_in(self._folder.of_attempt(order.job.key))
        streams = stream_names(order.job.description)
        try:
            # A spare folder holds streams, whose names an input file may have.
            if order.job.description.input_files or not self._spares.give(folders.root, streams):
                make_folders(folders)
            write_ads(order, folders)
        except OSError as error:
            raise NodeFaultError(f"its folder cannot be created: {error}") from error
        self._work[order.job.key] = Work(order, folders, streams)

    async def fetch(self, key: AttemptKey) -> None:
        """Fetch the input files of a prepared attempt; raises JobFaultError or NodeFaultError."""
        work = self._work[key]
        try:
            for file in work.order.job.description.input_files:
                await self._cache.put(key.job_id, file, inside(work.folders.work, file.name))
        except FileExistsError as error:
            raise JobFaultError(f"two of its input files have the same path: {error.filename}") from error
        except (JobFaultError, NodeFaultError):
            raise
        except OSError as error:
            raise _fault(error)(f"its input files cannot be written: {error}") from error
        except PilotageError as error:
            raise NodeFaultError(f"its input files cannot be fetched: {error}") from error

    def set_deadline(self, key: AttemptKey, boot_s: float) -> None:
        """Have the watchdog kill the payload at this time on the boot clock, in place of the time before."""
        work = self._work.get(key)
        if work is not None:
            work.deadline_boot_s = boot_s
            if self._watchdog is not None and work.deadline_place is not None:
                self._watchdog.move(work.deadline_place, boot_s)

    def start(self, key: AttemptKey) -> None:
        """Start the payload of a prepared attempt; raises JobFaultError or NodeFaultError."""
        work = self._work[key]
        order = work.order
        environment = environment_of(order, self._site, work.folders)
        # A payload with a memory limit joins its group at once, any other at the first check.
        group = self._new_group(work) if order.slot.amounts.memory_mib else None
        try:
            description = order.job.description
            nice = work.nice(self._handling)
            command = command_of(description, work.folders.work, environment, nice=nice, wrapper=self._wrapper)
            if description.new_files_come_back:
                work.seen = plain_files(work.folders.work)
            # Before its start, so that no payload runs without a deadline, wherever the pilot is stopped.
            self._add_deadline(work)
            process = spawn(command)
            work.payload = Payload(key, process, self._site.marker_of(order.job), group, self._subreaper)
            if self._watchdog is not None and work.deadline_place is not None:
                self._watchdog.set_leader(work.deadline_place, process.pid)
        except OSError as error:
            raise _fault(error)(f"its process cannot be started: {error}") from error
        finally:
            if work.payload is None:
                self._remove_deadline(work)
                if group is not None:
                    group.remove()
        if group is not None:
            group.add(process.pid)
        self._empty.clear()
        work.payload.watch(lambda end: self._ended(key, end))
        self._monitor.keep()

    def _add_deadline(self, work: Work) -> None:
        if self._watchdog is not None:
            work.deadline_place = self._watchdog.add(work.deadline_boot_s)

    def _remove_deadline(self, work: Work) -> None:
        if self._watchdog is not None and work.deadline_place is not None:
            self._watchdog.remove(work.deadline_place)
            work.deadline_place = None

    def _new_group(self, work: Work) -> Cgroup | None:
        return self._groups.make(str(work.order.job.key), work.limits(self._handling)) if self._groups else None

    def _ended(self, key: AttemptKey, end: PayloadEnd) -> None:
        work = self._work.get(key)
        payload = self._payload(key)
        if work is not None:
            work.cut_streams(self._bounds)
            work.payload = None
            self._remove_deadline(work)
        if all(other.payload is None for other in self._work.values()):
            self._empty.set()
        exited = PayloadExited(key, end.exit_code, end.signal, end.usage, end.limit)
        if payload is not None and end.is_by_request and not payload.stop_requested:
            # A batch system that ends the glidein signals payload and pilot alike. Wait for the pilot's signal, if any.
            asyncio.get_running_loop().call_later(_PILOT_SIGNAL_DELAY_S, self._publish, exited)
        else:
            self._publish(exited)

    # Signals ----------------------------------------------------------------------------------------------------

    def stop(self, key: AttemptKey) -> None:
        """Send SIGTERM to all processes of a payload."""
        payload = self._payload(key)
        if payload is not None:
            payload.stop()

    def kill(self, key: AttemptKey) -> None:
        """Kill all processes of a payload."""
        payload = self._payload(key)
        if payload is not None:
            payload.kill()

    def suspend(self, key: AttemptKey) -> None:
        """Stop all processes of a payload until `resume`."""
        payload = self._payload(key)
        if payload is not None:
            payload.suspend()

    def resume(self, key: AttemptKey) -> None:
        """Continue all processes of a suspended payload."""
        payload = self._payload(key)
        if payload is not None:
            payload.resume()

    def warn(self, key: AttemptKey, left_s: float) -> None:
        """Write the warning file of a payload and send `warn_signal`."""
        work = self._work.get(key)
        if work is None:
            return
        with contextlib.suppress(OSError):
            write_over(work.folders.warning, f"{left_s:.0f}\n")
        if work.payload is not None and self._handling.warn_signal is not None:
            work.payload.signal_leader(self._handling.warn_signal)

    def _payload(self, key: AttemptKey) -> Payload | None:
        work = self._work.get(key)
        return work.payload if work is not None else None

    def cpu_times(self) -> tuple[PayloadTime, ...]:
        """Return the CPU time of each running payload."""
        running = [(work.order.slot.name, work.payload) for work in self._work.values() if work.payload is not None]
        processes = all_processes() if running else {}
        return tuple(PayloadTime(payload.key, slot, payload.cpu_s(processes)) for slot, payload in running)

    # Output -----------------------------------------------------------------------------------------------------

    async def collect(self, key: AttemptKey) -> CollectedOutput:
        """Return the output of an attempt; raises WorldError when it cannot be read."""
        work = self._work[key]
        # Output files may have to be found among millions of files; streams alone need no thread.
        if work.order.job.description.output_files or work.seen is not None:
            return await asyncio.to_thread(self._collect, work)
        return self._collect(work)

    def _collect(self, work: Work) -> CollectedOutput:
        try:
            found = find_output(work.order.job.description, work.folders.work, self._bounds, work.seen)
            small, large = store_small(found, self._bounds, work.cut)
        except OSError as error:
            raise WorldError(f"the output cannot be read: {error}", transient=False) from error
        return CollectedOutput(small, found.notes, large)

    async def upload_large(self, key: AttemptKey, left: CollectedOutput) -> CollectedOutput:
        """Upload the large files of an output; returns it with `large` empty. Raises WorldError."""
        files, notes = list(left.files), list(left.notes)
        try:
            for name, path in left.large.items():
                try:
                    files.append(await self._bring(self._work[key], name, path))
                except InvalidInputError as error:
                    notes.append(f"the server does not take output file {name}: {error}")
        except OSError as error:
            raise WorldError(f"the output cannot be read: {error}", transient=False) from error
        return CollectedOutput(tuple(files), tuple(notes))

    async def _bring(self, work: Work, name: str, path: Path) -> ReportedOutput:
        checksum, length = await asyncio.to_thread(digest_of, path, self._bounds.file_bytes)
        await self._link.upload(path, checksum, length)
        return ReportedOutput(name, checksum, length, truncated=name in work.cut or size_of(path) > length)

    def remove(self, key: AttemptKey, removed: Callable[[], None] | None = None) -> None:
        """Remove the folder of an attempt, and call `removed` when it is gone; a spare folder is as it was made."""
        work = self._work.pop(key, None)
        folder = self._folder.of_attempt(key)
        is_kept = work is not None and self._spares.keep(work.folders, work.streams)
        if is_kept or remove_small(folder):
            if removed is not None:
                removed()
            return
        removal = asyncio.get_running_loop().run_in_executor(None, remove_tree, folder)
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)
        if removed is not None:
            removal.add_done_callback(lambda _: None if os.path.lexists(folder) else removed())

    async def close(self) -> None:
        """Kill every payload and remove all folders."""
        if self._closed:
            return
        self._closed = True
        for work in tuple(self._work.values()):
            if work.payload is not None:
                work.payload.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_KILL_S):
                await self._empty.wait()
        self._monitor.end()
        await asyncio.gather(*self._removals)
        adopt_orphans(on=False)
        if self._groups is not None:
            self._groups.close()
        await asyncio.to_thread(self._folder.remove)


def _fault(error: OSError) -> type[JobFaultError | NodeFaultError]:
    return JobFaultError if error.errno in UNPLACEABLE_ERRNOS else NodeFaultError


def _ignore(event: PayloadEvent) -> None:
    del event
