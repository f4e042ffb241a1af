"""The real workshop: payloads as processes of this machine, each in a folder of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path

from pilotage.errors import InvalidInputError, PilotageError, WorldError
from pilotage.job_folders import NO_PLACE, JobAtFaultError, inside, remove_small, remove_tree
from pilotage.job_output import digest_of, find_output, plain_files, size_of, stream_names
from pilotage_pilot.core.events import PayloadExited
from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.core.jobs import AttemptKey, StoredFile
from pilotage_pilot.link.base import FileLink
from pilotage_pilot.supervise.ad_files import write_ads
from pilotage_pilot.supervise.base import Collected, Happening, NodeAtFaultError, PayloadTime
from pilotage_pilot.supervise.cache import FileCache
from pilotage_pilot.supervise.cgroups import CgroupMaker, Group
from pilotage_pilot.supervise.descent import Descent, Warden, adopt_orphans
from pilotage_pilot.supervise.environment import Site, environment_of
from pilotage_pilot.supervise.folders import PilotFolder, folders_in, make_folders, write_over
from pilotage_pilot.supervise.lookout import Lookout
from pilotage_pilot.supervise.output import store_small
from pilotage_pilot.supervise.payload import End, Payload
from pilotage_pilot.supervise.processes import all_processes
from pilotage_pilot.supervise.spare_folders import SpareFolders
from pilotage_pilot.supervise.spawn import command_of, spawn
from pilotage_pilot.supervise.work import Handling, Work

_PILOT_IS_TOLD_WITHIN_S = 0.5
_LAST_KILL_S = 5.0


class LocalWorkshop:
    """Runs payloads on this machine; close it in the end."""

    def __init__(
        self, folder: PilotFolder, link: FileLink, site: Site, handling: Handling, groups: CgroupMaker | None
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
        self._hear: Callable[[Happening], None] = _nobody
        self._removals: set[asyncio.Future[None]] = set()
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._descent = Descent()
        self._warden = Warden(site.marker, groups.folders if groups is not None else ())
        self._descent.except_for(self._warden.pid)
        self._lookout = Lookout(self._work, handling, self._new_group, self._happens)

    def listen(self, hear: Callable[[Happening], None]) -> None:
        """Tell `hear` of all that happens to payloads from now on."""
        self._hear = hear

    def _happens(self, happening: Happening) -> None:
        self._hear(happening)

    # Making ready -----------------------------------------------------------------------------------------------

    def wrap(self, wrapper: Path | None) -> None:
        """Run this program in place of those of all payloads from now on, with theirs as its arguments; or not."""
        self._wrapper = wrapper

    def prepare(self, order: PrepareJob) -> None:
        """Make the folder of an attempt; raises NodeAtFaultError."""
        folders = folders_in(self._folder.of_attempt(order.job.key))
        streams = stream_names(order.job.description)
        try:
            # Input files have to find their places free.
            if order.job.description.input_files or not self._spares.give(folders.root, streams):
                make_folders(folders)
            write_ads(order, folders)
        except OSError as error:
            raise NodeAtFaultError(f"its folder could not be made: {error}") from error
        self._work[order.job.key] = Work(order, folders, streams)

    async def fetch(self, key: AttemptKey) -> None:
        """Bring the input files of a prepared attempt; raises JobAtFaultError or NodeAtFaultError."""
        work = self._work[key]
        try:
            for file in work.order.job.description.input_files:
                await self._cache.put(key.job_id, file, inside(work.folders.work, file.name))
        except FileExistsError as error:
            raise JobAtFaultError(f"two of its input files have one place: {error.filename}") from error
        except (JobAtFaultError, NodeAtFaultError):
            raise
        except OSError as error:
            raise _fault(error)(f"its folder could not be filled: {error}") from error
        except PilotageError as error:
            raise NodeAtFaultError(f"its input did not arrive: {error}") from error

    def start(self, key: AttemptKey) -> None:
        """Start the payload of a prepared attempt; raises JobAtFaultError or NodeAtFaultError."""
        work = self._work[key]
        order = work.order
        environment = environment_of(order, self._site, work.folders)
        # What may take no more memory than it asked for is in its group at once, the others when they are looked at.
        group = self._new_group(work) if order.slot.amounts.memory_mib else None
        try:
            description = order.job.description
            nice = work.nice(self._handling)
            command = command_of(description, work.folders.work, environment, nice=nice, wrapper=self._wrapper)
            if description.new_files_come_back:
                work.seen = plain_files(work.folders.work)
            process = spawn(command)
            work.payload = Payload(key, process, self._site.marker_of(order.job), group, self._descent)
        except OSError as error:
            raise _fault(error)(f"its process could not be made: {error}") from error
        finally:
            if group is not None and work.payload is None:
                group.remove()
        if group is not None:
            group.add(process.pid)
        self._empty.clear()
        work.payload.watch(lambda end: self._ended(key, end))
        self._lookout.keep()

    def _new_group(self, work: Work) -> Group | None:
        return self._groups.make(str(work.order.job.key), work.limits(self._handling)) if self._groups else None

    def _ended(self, key: AttemptKey, end: End) -> None:
        work = self._work.get(key)
        payload = self._payload(key)
        if work is not None:
            work.cut_streams(self._bounds)
            work.payload = None
        if all(other.payload is None for other in self._work.values()):
            self._empty.set()
        exited = PayloadExited(key, end.exit_code, end.signal, end.usage, end.limit)
        if payload is not None and end.is_by_request and not payload.was_told_to_end:
            # A batch system that ends its job asks payload and pilot alike: was it so, the pilot hears it by then.
            asyncio.get_running_loop().call_later(_PILOT_IS_TOLD_WITHIN_S, self._hear, exited)
        else:
            self._hear(exited)

    # What can be done to a payload ------------------------------------------------------------------------------

    def stop(self, key: AttemptKey) -> None:
        """Ask all processes of a payload to end themselves."""
        payload = self._payload(key)
        if payload is not None:
            payload.stop()

    def kill(self, key: AttemptKey) -> None:
        """End all processes of a payload."""
        payload = self._payload(key)
        if payload is not None:
            payload.kill()

    def suspend(self, key: AttemptKey) -> None:
        """Stop all processes of a payload for a while."""
        payload = self._payload(key)
        if payload is not None:
            payload.suspend()

    def resume(self, key: AttemptKey) -> None:
        """Let all processes of a suspended payload go on."""
        payload = self._payload(key)
        if payload is not None:
            payload.resume()

    def warn(self, key: AttemptKey, left_s: float) -> None:
        """Write the warning file of a payload and send it the signal that is set for this."""
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
        """Return what each running payload has used so far."""
        running = [(work.order.slot.name, work.payload) for work in self._work.values() if work.payload is not None]
        processes = all_processes() if running else {}
        return tuple(PayloadTime(payload.key, slot, payload.cpu_s(processes)) for slot, payload in running)

    # Output -----------------------------------------------------------------------------------------------------

    async def collect(self, key: AttemptKey) -> Collected:
        """Return what an attempt left; raises WorldError when it cannot be read."""
        work = self._work[key]
        # What has to be looked for may lie among millions of files; the streams alone take no time worth a thread.
        if work.order.job.description.output_files or work.seen is not None:
            return await asyncio.to_thread(self._collect, work)
        return self._collect(work)

    def _collect(self, work: Work) -> Collected:
        try:
            found = find_output(work.order.job.description, work.folders.work, self._bounds, work.seen)
            small, large = store_small(found, self._bounds, work.cut)
        except OSError as error:
            raise WorldError(f"the output cannot be read: {error}", transient=False) from error
        return Collected(small, found.notes, large)

    async def bring(self, key: AttemptKey, left: Collected) -> Collected:
        """Bring what is large of it to the server; returns it with nothing large. Raises WorldError."""
        files, notes = list(left.files), list(left.notes)
        try:
            for name, path in left.large.items():
                try:
                    files.append(await self._bring(self._work[key], name, path))
                except InvalidInputError as error:
                    notes.append(f"the server does not take output file {name}: {error}")
        except OSError as error:
            raise WorldError(f"the output cannot be read: {error}", transient=False) from error
        return Collected(tuple(files), tuple(notes))

    async def _bring(self, work: Work, name: str, path: Path) -> StoredFile:
        checksum, length = await asyncio.to_thread(digest_of, path, self._bounds.file_bytes)
        await self._link.upload(path, checksum, length)
        return StoredFile(name, checksum, length, truncated=name in work.cut or size_of(path) > length)

    def forget(self, key: AttemptKey) -> None:
        """Remove the folder of an attempt."""
        work = self._work.pop(key, None)
        if work is not None and self._spares.keep(work.folders, work.streams):
            return
        folder = self._folder.of_attempt(key)
        if not remove_small(folder):
            removal = asyncio.get_running_loop().run_in_executor(None, remove_tree, folder)
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)

    async def close(self) -> None:
        """End every payload, the warden, and all folders."""
        if self._closed:
            return
        self._closed = True
        for work in tuple(self._work.values()):
            if work.payload is not None:
                work.payload.kill()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_KILL_S):
                await self._empty.wait()
        self._lookout.end()
        await asyncio.gather(*self._removals)
        await asyncio.to_thread(self._warden.end, _LAST_KILL_S)
        adopt_orphans(on=False)
        if self._groups is not None:
            self._groups.close()
        await asyncio.to_thread(self._folder.remove)


def _fault(error: OSError) -> type[JobAtFaultError | NodeAtFaultError]:
    return JobAtFaultError if error.errno in NO_PLACE else NodeAtFaultError


def _nobody(happening: Happening) -> None:
    del happening
