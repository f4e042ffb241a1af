"""Runs payloads as processes of this machine, each in a folder of its own, and monitors what they use and write.

Small output files travel in the report, large ones are uploaded before it. The ads of slot and job are files in the
attempt's folder.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pilotage.classads.text import ad_lines
from pilotage.errors import InvalidInputError, PilotageError, WorldError
from pilotage.jobs.files import (
    UNPLACEABLE_ERRNOS,
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
    stream_files,
    stream_names,
)
from pilotage.values.attempts import AttemptKey, ReportedOutput, TailStream
from pilotage.values.isolation import Isolation
from pilotage_pilot.core.attempts.limit_reasons import memory_reason, node_memory_reason
from pilotage_pilot.core.events import PayloadExited, PayloadStarted, StopRequested
from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.core.model import Now, Usage
from pilotage_pilot.link.base import FileLink
from pilotage_pilot.supervise.base import CollectedOutput, NodeFaultError, PayloadEvent, PayloadTime, start_failed
from pilotage_pilot.supervise.cgroups import Cgroup, CgroupMaker
from pilotage_pilot.supervise.containers import ContainerJob, ReadyImage
from pilotage_pilot.supervise.folders import (
    FileCache,
    Folders,
    PilotFolder,
    SpareFolders,
    folders_in,
    make_folders,
    write_over,
)
from pilotage_pilot.supervise.isolation import Confinement
from pilotage_pilot.supervise.monitor import PayloadMonitor, PayloadRules, Work
from pilotage_pilot.supervise.proc import Subreaper, adopt_orphans, all_processes
from pilotage_pilot.supervise.process import Payload, PayloadEnd
from pilotage_pilot.supervise.runtimes import Containers
from pilotage_pilot.supervise.spawn import (
    LAUNCH_TIMEOUT_S,
    PayloadCommand,
    PayloadSite,
    command_of,
    environment_of,
    in_shell,
    output_path,
    start_fault,
    streams_of,
)
from pilotage_pilot.supervise.watchdog import NEVER, WatchdogLink

INLINE_BYTES = 64 << 10
"""Files up to this size travel in the report."""

_INLINE_SUM_BYTES = 1 << 20

_PARTIAL_FILE_BYTES, _PARTIAL_BYTES = 16 << 20, 64 << 20
"""Limits of the output of a payload that was stopped: of each file, and of all."""


def _partial_limits(bounds: OutputLimits) -> OutputLimits:
    return replace(
        bounds,
        file_bytes=min(bounds.file_bytes, _PARTIAL_FILE_BYTES),
        all_bytes=min(bounds.all_bytes, _PARTIAL_BYTES),
    )


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


_BEGIN_AFTER_S, _BEGIN_PAUSE_S = 0.01, 1.0
"""When it is first looked whether a payload has begun, and the longest pause until the next look."""
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
        confinement: Confinement,
        watchdog: WatchdogLink | None = None,
        containers: Containers | None = None,
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
        self._confinement = confinement
        self._containers = containers
        self._subreaper = Subreaper()
        self._watchdog = watchdog
        if watchdog is not None:
            # It is no process of a payload whose deadline has passed.
            watchdog.set_leader(watchdog.add(NEVER), confinement.launcher.pid)
            watchdog.set_groups(groups.folders if groups is not None else ())
        self._monitor = PayloadMonitor(self._work, handling, self._new_group, self._happens)

    def subscribe(self, publish: Callable[[PayloadEvent], None]) -> None:
        """Call `publish` for each event of a payload from now on."""
        self._publish = publish
        asyncio.get_running_loop().add_reader(self._confinement.launcher, self._launcher_ended)

    def _launcher_ended(self) -> None:
        """End the pilot: only the launcher can start payloads."""
        asyncio.get_running_loop().remove_reader(self._confinement.launcher)
        self._publish(StopRequested("its launcher was killed", at_once=False))

    @property
    def isolation(self) -> Isolation:
        """How payloads are isolated."""
        return self._confinement.level

    @property
    def has_accounts(self) -> bool:
        """Whether payloads run as accounts of their owners."""
        return self._confinement.accounts is not None

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
        """Fetch the input files, the image and the account of a prepared attempt.

        Raises JobFaultError, NodeFaultError, RegistryFaultError or AccountFaultError.
        """
        work = self._work[key]
        if self._confinement.accounts is not None:
            work.account = await self._confinement.accounts.acquire(work.order.job.account)
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
        if work.order.job.description.image is not None:
            if self._containers is None:
                raise NodeFaultError("it needs a container image, and this pilot runs no containers")
            work.image = await self._containers.prepare(work.order.job.description, work.folders.work)

    def set_deadline(self, key: AttemptKey, boot_s: float) -> None:
        """Have the watchdog kill the payload at this time on the boot clock, in place of the time before."""
        work = self._work.get(key)
        if work is not None:
            work.deadline_boot_s = boot_s
            if self._watchdog is not None and work.deadline_place is not None:
                self._watchdog.move(work.deadline_place, boot_s)

    def start(self, key: AttemptKey, now: Now) -> None:
        """Begin to start the payload of a prepared attempt; raises JobFaultError or NodeFaultError.

        PayloadStarted or StartFailed follows, or PayloadExited for a payload of a moment.
        """
        work = self._work[key]
        work.began = now
        self._start(work)
        asyncio.get_running_loop().call_later(_BEGIN_AFTER_S, self._look_for_begin, work, _BEGIN_AFTER_S)

    def _start(self, work: Work, *, by_shell: bool = False) -> None:
        key = work.order.job.key
        order = work.order
        # A payload with a memory limit joins its group at its start, any other at the first check.
        group = self._new_group(work) if order.slot.amounts.memory_mib else None
        try:
            assert work.account is not None or not self.has_accounts, "fetch has brought it"
            work.user = work.account or self._confinement.new_user()
            command = self._command(work, group)
            if order.job.description.new_files_come_back:
                work.seen = plain_files(work.folders.work)
            # Before its start, so that no payload runs without a deadline, wherever the pilot is stopped.
            self._add_deadline(work)
            process = self._confinement.launcher.start(in_shell(command) if by_shell else command)
            marker = self._site.marker_of(order.job)
            work.payload = Payload(key, process, marker, group, self._subreaper, work.user)
            if self._watchdog is not None and work.deadline_place is not None:
                self._watchdog.set_leader(work.deadline_place, process.pid)
        except OSError as error:
            raise _fault(error)(f"its process cannot be started: {error}") from error
        finally:
            if work.payload is None:
                self._remove_deadline(work)
                self._confinement.release(work.user)
                if group is not None:
                    group.remove()
        self._empty.clear()
        # The attempt may be forgotten before its payload has ended.
        work.payload.watch(lambda end: self._ended(work, end))
        self._monitor.keep()

    def _look_for_begin(self, work: Work, pause_s: float) -> None:
        """Publish that the payload has been started; if it has not, look again later."""
        payload = work.payload
        if payload is None or work.began is None:
            return
        if payload.has_begun():
            began, work.began = work.began, None
            self._publish(PayloadStarted(payload.key, began))
            return
        loop = asyncio.get_running_loop()
        if loop.time() - payload.started_s > LAUNCH_TIMEOUT_S and work.start_fault is None:
            work.start_fault = NodeFaultError(f"its process was not started within {LAUNCH_TIMEOUT_S:.0f} s")
            payload.kill()
        loop.call_later(pause_s, self._look_for_begin, work, min(2 * pause_s, _BEGIN_PAUSE_S))

    def _command(self, work: Work, group: Cgroup | None) -> PayloadCommand:
        environment = environment_of(work.order, self._site, work.folders, work.user)
        if work.image is None:
            command, mounts = self._command_on_node(work, environment)
        else:
            command, mounts = self._command_in_image(work, work.image, environment)
        return replace(
            command,
            user=work.user,
            mounts=mounts,
            limits=work.resource_limits(self._handling),
            groups=group.entries if group is not None else (),
        )

    def _command_in_image(
        self, work: Work, image: ReadyImage, environment: Mapping[str, str]
    ) -> tuple[PayloadCommand, Mapping[str, Any] | None]:
        assert self._containers is not None, "it has prepared the image"
        description, slot = work.order.job.description, work.order.slot
        command = streams_of(description, work.folders.work, environment, nice=work.nice(self._handling))
        passed, has_gpus = self._site.passed, bool(slot.gpu_ids)
        job = ContainerJob(description, image, work.folders, passed, has_gpus=has_gpus, wrapper=self._wrapper)
        return self._containers.command(command, job, slot.amounts.memory_mib)

    def _command_on_node(
        self, work: Work, environment: Mapping[str, str]
    ) -> tuple[PayloadCommand, Mapping[str, Any] | None]:
        command = command_of(
            work.order.job.description,
            work.folders.work,
            environment,
            nice=work.nice(self._handling),
            wrapper=self._wrapper,
        )
        program = Path(command.program)
        if not command.wrapped and not program.is_relative_to(work.folders.root) and self._confinement.hides(program):
            raise JobFaultError(f"the program {program} is hidden from jobs on this node: make it an input file")
        needed = () if self._wrapper is None else (self._wrapper,)
        return command, self._confinement.mounts(work.folders, work.order.slot.amounts.memory_mib, needed)

    def _add_deadline(self, work: Work) -> None:
        if self._watchdog is not None:
            work.deadline_place = self._watchdog.add(work.deadline_boot_s)

    def _remove_deadline(self, work: Work) -> None:
        if self._watchdog is not None and work.deadline_place is not None:
            self._watchdog.remove(work.deadline_place)
            work.deadline_place = None

    def _new_group(self, work: Work) -> Cgroup | None:
        return self._groups.make(str(work.order.job.key), work.limits(self._handling)) if self._groups else None

    def _ended(self, work: Work, end: PayloadEnd) -> None:
        key, payload = work.order.job.key, work.payload
        work.cut_streams(self._bounds)
        work.payload = None
        self._remove_deadline(work)
        self._confinement.release(work.user)
        if all(other.payload is None for other in self._work.values()):
            self._empty.set()
        if payload is not None and (work.start_fault is not None or end.start_error is not None):
            self._not_started(work, payload, work.start_fault or end.start_error)
            return
        began, work.began = work.began, None
        limit, limit_mib = _limit_of(work, end)
        exited = PayloadExited(key, end.exit_code, end.signal, end.usage, limit, limit_mib, began=began)
        fault = self._container_fault(work, end)
        if fault:
            exited = PayloadExited(key, None, None, end.usage, fault=fault, began=began)
        if payload is not None and end.is_by_request and not payload.stop_requested:
            # A batch system that ends the glidein signals payload and pilot alike. Wait for the pilot's signal, if any.
            asyncio.get_running_loop().call_later(_PILOT_SIGNAL_DELAY_S, self._publish, exited)
        else:
            self._publish(exited)

    def _not_started(self, work: Work, payload: Payload, error: OSError | PilotageError | None) -> None:
        """Publish that the program of a payload was not executed, or let the shell run it."""
        fault = start_fault(payload.command, error) if isinstance(error, OSError) else error
        try:
            if fault is not None or payload.is_ordered_to_end or self._closed:
                raise fault or NodeFaultError("it was stopped before its start")
            self._start(work, by_shell=True)
        except PilotageError as failure:
            self._publish(start_failed(payload.key, failure))

    def _container_fault(self, work: Work, end: PayloadEnd) -> str:
        if work.image is None or self._containers is None:
            return ""
        stderr = output_path(work.folders.work, work.order.job.description.stderr or "stderr")
        return self._containers.failure(end.exit_code, stderr)

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

    def usages(self) -> dict[AttemptKey, Usage]:
        """Return what each payload has used so far, except new ones: most end before anyone asks."""
        begun_s = asyncio.get_running_loop().time() - self._handling.usage_after_s
        payloads = [work.payload for work in self._work.values() if work.payload is not None]
        return {payload.key: payload.usage() for payload in payloads if payload.started_s <= begun_s}

    def stream_path(self, stream: TailStream) -> Path | None:
        """Return the path of a stream of a prepared attempt; None = it is not kept, or there is no such attempt."""
        work = self._work.get(stream.key)
        if work is None:
            return None
        out, err = stream_files(work.order.job.description)
        return output_path(work.folders.work, err if stream.is_error else out)

    # Output -----------------------------------------------------------------------------------------------------

    def collect_now(self, key: AttemptKey, *, is_partial: bool = False) -> CollectedOutput | None:
        """Return the output of an attempt as `collect`, None = that may take long."""
        work = self._work[key]
        # Output files may have to be found among millions of files; streams alone need no thread.
        if work.order.job.description.output_files or work.seen is not None:
            return None
        return self._collect(work, is_partial=is_partial)

    async def collect(self, key: AttemptKey, *, is_partial: bool = False) -> CollectedOutput:
        """Return the output of an attempt; raises WorldError when it cannot be read."""
        return await asyncio.to_thread(self._collect, self._work[key], is_partial=is_partial)

    def _collect(self, work: Work, *, is_partial: bool) -> CollectedOutput:
        work.bounds = _partial_limits(self._bounds) if is_partial else None
        try:
            bounds = work.bounds or self._bounds
            found = find_output(work.order.job.description, work.folders.work, bounds, work.seen)
            small, large = store_small(found, bounds, work.cut)
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
        checksum, length = await asyncio.to_thread(digest_of, path, (work.bounds or self._bounds).file_bytes)
        await self._link.upload(path, checksum, length)
        return ReportedOutput(name, checksum, length, truncated=name in work.cut or size_of(path) > length)

    def remove(self, key: AttemptKey, removed: Callable[[], None] | None = None) -> None:
        """Remove the folder of an attempt, and call `removed` when it is gone; a spare folder is as it was made."""
        work = self._work.pop(key, None)
        if work is not None and work.image is not None:
            work.image.release()
        folder = self._folder.of_attempt(key)
        # A process of another payload of the same account may still have a file of the folder open.
        is_kept = work is not None and work.account is None and self._spares.keep(work.folders, work.streams)
        if is_kept or remove_small(folder):
            self._removed(work, removed)
            return
        removal = asyncio.get_running_loop().run_in_executor(None, remove_tree, folder)
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)
        removal.add_done_callback(lambda _: None if os.path.lexists(folder) else self._removed(work, removed))

    def _removed(self, work: Work | None, removed: Callable[[], None] | None) -> None:
        if work is not None and work.account is not None and self._confinement.accounts is not None:
            self._confinement.accounts.release(work.order.job.account)
        if removed is not None:
            removed()

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
        asyncio.get_running_loop().remove_reader(self._confinement.launcher)
        if self._containers is not None:
            await asyncio.to_thread(self._containers.close)
        await asyncio.gather(*self._removals)
        adopt_orphans(on=False)
        if self._groups is not None:
            self._groups.close()
        await asyncio.to_thread(self._folder.remove)
        # Last: an account is leased to the next owner only when the folders of this one are gone.
        await asyncio.to_thread(self._confinement.close)


def _fault(error: OSError) -> type[JobFaultError | NodeFaultError]:
    return JobFaultError if error.errno in UNPLACEABLE_ERRNOS else NodeFaultError


def _limit_of(work: Work, end: PayloadEnd) -> tuple[str | None, int]:
    """Return the reason, and the memory in MiB that the payload had, where the kernel has ended it for its memory."""
    if not end.was_out_of_memory:
        return None, 0
    description, limit_mib = work.order.job.description, work.order.slot.amounts.memory_mib
    if not limit_mib:
        used_mib = end.usage.peak_memory_mib
        return node_memory_reason(used_mib, description), used_mib
    return memory_reason(limit_mib, limit_mib, description, killed=True), limit_mib


def _ignore(event: PayloadEvent) -> None:
    del event
