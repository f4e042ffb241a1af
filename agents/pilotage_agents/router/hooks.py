"""Hooks of the job router: commands of the operator that run when a routed job begins, runs and ends.

Input and output are those of the hooks of HTCondor's Job Router: ads as lines `Name = value`. A failed hook is never
ignored. Hooks run as the router's user, one at a time of a kind for a job. A record of each routed job with hooks is
kept, for the router that ends it.
"""

from __future__ import annotations

import asyncio
import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from threading import Lock
from typing import Any

import structlog

from pilotage.classads.evaluation import Ad
from pilotage.classads.library import AdValue
from pilotage.classads.text import ad_lines, ad_text
from pilotage.condor.job_file import read_job_text
from pilotage.errors import InvalidInputError, WorldError
from pilotage.text import fold
from pilotage_agents.batch_systems.hosts import run_command
from pilotage_agents.router.core.routed_job import TrackedJob
from pilotage_agents.router.core.table import Route
from pilotage_agents.router.tasks import gather_bounded

log = structlog.get_logger()

_VERSION = 1
"""The version of a record; another version is not read."""


@dataclass(frozen=True, slots=True)
class HookRecord:
    """The record of a routed job with hooks: keyword, ad as text, and attributes of its update hook as text.

    `finalised` is why its finalise hook failed, "" = it succeeded, None = it has not run.
    """

    keyword: str
    ad: str
    attributes: str = ""
    finalised: str | None = None


class HookRecords:
    """Keeps one file per routed job in a folder, which is made at the first write."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()

    def names(self) -> frozenset[str]:
        """Return the names of the jobs with records; raises WorldError."""
        try:
            return frozenset(path.stem for path in self._folder.iterdir() if path.suffix == ".json")
        except FileNotFoundError:
            if self._folder.parent.parent.is_dir():
                return frozenset()
            raise WorldError(f"{self._folder.parent.parent}: is not there", transient=True) from None
        except OSError as error:
            raise WorldError(f"{self._folder}: {error.strerror}", transient=True) from error

    def read(self, name: str) -> HookRecord | None:
        """Return the record of a job, None = there is none that can be read; a fault is logged."""
        path = self._path(name)
        try:
            return _parse_record(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("hook record cannot be read", path=str(path), reason=str(error))
            return None

    def add(self, name: str, record: HookRecord) -> None:
        """Add the record of a job; raises WorldError."""
        with self._lock:
            self._write(self._path(name), record)

    def update(self, name: str, record: HookRecord) -> None:
        """Replace the record of a job, unless it was removed; raises WorldError."""
        with self._lock:
            if (path := self._path(name)).exists():
                self._write(path, record)

    def _write(self, path: Path, record: HookRecord) -> None:
        fields = {
            "form": _VERSION,
            "keyword": record.keyword,
            "copy": record.ad,
            "said": record.attributes,
            "finalised": record.finalised,
        }
        try:
            for folder in (self._folder.parent, self._folder):  # not their parent, which may not be mounted
                folder.mkdir(mode=0o700, exist_ok=True)
            new = path.with_suffix(".new")
            new.touch(mode=0o600)
            new.write_text(json.dumps(fields))
            new.replace(path)
        except OSError as error:
            raise WorldError(f"{path}: {error.strerror}", transient=True) from error

    def remove(self, name: str) -> None:
        """Remove the record of a job; a failure is logged."""
        path = self._path(name)
        try:
            with self._lock:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("hook record cannot be removed", path=str(path), reason=str(error))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _parse_record(fields: Any) -> HookRecord:
    if fields["form"] != _VERSION:
        raise ValueError(f"its form is {fields['form']}, expected {_VERSION}")
    finalised = fields["finalised"]
    return HookRecord(
        str(fields["keyword"]), str(fields["copy"]), str(fields["said"]), None if finalised is None else str(finalised)
    )


_BETWEEN_ADS = "------\n"
_MAX_OUTPUT = 1 << 20
_MAX_AT_ONCE = 8
"""The largest number of hooks of a kind and route that run at a time: hanging ones delay no other route."""

_MAX_IN_ALL = 64
"""The largest number of hooks that run at a time: each takes a process and some files."""

_NO_ROUTE = ""
"""Stands for the route of a job that no router tracks."""

_MAX_STRAYS = 16
"""The largest number of stray records in one pass; the others follow after the next adoption."""


class HookKind(StrEnum):
    """When a hook runs."""

    TRANSLATE = "translate"
    """Before the ad is transformed; prints the ad that the changes start from, in place of the job's."""
    UPDATE = "update"
    """At each poll while the job runs; prints attributes."""
    FINALISE = "finalise"
    """When the payload has ended."""
    CLEANUP = "cleanup"
    """At every end of the routed job, whatever its outcome."""


Commands = Mapping[HookKind, tuple[str, ...]]
"""The commands of a keyword."""


@dataclass(frozen=True, slots=True)
class HookSettings:
    """The commands by folded keyword, the keyword of jobs without one ("" = none), and the timeout of a hook."""

    commands: Mapping[str, Commands]
    default: str
    timeout_s: float


class RouteHooks:
    """Runs hooks, and keeps records of their jobs for the router that takes over."""

    def __init__(self, settings: HookSettings, folder: Path) -> None:
        self._settings = settings
        self._records = HookRecords(folder)
        self._records_by_name: dict[str, HookRecord] = {}
        self._gates: defaultdict[tuple[str, HookKind], asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_MAX_AT_ONCE)
        )
        self._gate_of_all = asyncio.Semaphore(_MAX_IN_ALL)

    async def recorded(self) -> frozenset[str]:
        """Return the names of the jobs with records; raises WorldError."""
        return await asyncio.to_thread(self._records.names) if self._settings.commands else frozenset()

    async def load(self, tracked: Collection[str], recorded: Collection[str]) -> None:
        """Load the records of tracked jobs, and forget those of others."""
        self._records_by_name = {name: record for name, record in self._records_by_name.items() if name in tracked}
        for name in recorded:
            if name in tracked and name not in self._records_by_name:
                record = await asyncio.to_thread(self._records.read, name)
                if record is not None:
                    self._records_by_name.setdefault(name, record)

    async def clean_up_strays(self, strays: Collection[str]) -> None:
        """Run the cleanup hooks of some stray records; a record stays until its hook succeeds."""

        async def clean(name: str) -> None:
            record = await asyncio.to_thread(self._records.read, name)
            if record is not None and await self._run_cleanup_hook(name, _NO_ROUTE, record):
                log.info("stray hook record cleaned up", routed_job=name)

        await gather_bounded([clean(name) for name in sorted(strays)[:_MAX_STRAYS]])

    def has_hooks(self, routed: TrackedJob) -> bool:
        """Whether the job has hooks."""
        return routed.name in self._records_by_name

    async def translate(self, routed: TrackedJob, route: Route, job: Mapping[str, AdValue]) -> Mapping[str, AdValue]:
        """Return the ad that the route's changes start from; raises WorldError when the hook fails.

        This makes the job one with hooks, if its keyword has some.
        """
        keyword = next((value for name, value in job.items() if fold(name) == "hookkeyword"), None)
        keyword = fold(keyword) if isinstance(keyword, str) else fold(self._settings.default)
        if keyword not in self._settings.commands:
            return job
        text = ad_text(job)
        self._records_by_name[routed.name] = record = HookRecord(keyword, text)
        await asyncio.to_thread(self._records.add, routed.name, record)
        about: dict[str, AdValue] = {
            "Name": route.name,
            "TargetUniverse": route.universe,
            "GridResource": route.grid_resource,
        }
        stdin_text = f"{ad_text(about)}\n{_BETWEEN_ADS}{ad_lines(text)}"
        printed = await self._run(HookKind.TRANSLATE, routed.route, record, stdin_text)
        return job if printed is None else _attributes(HookKind.TRANSLATE, printed)

    async def save_ad(self, routed: TrackedJob, ad: Mapping[str, AdValue]) -> None:
        """Save the ad of the routed job; raises WorldError."""
        if routed.name in self._records_by_name:
            await self._change(routed.name, ad=ad_text(ad))

    async def update(self, routed: TrackedJob) -> None:
        """Run the update hook of a running job; a failure adds no attributes."""
        record = self._records_by_name.get(routed.name)
        if record is None:
            return
        try:
            printed = await self._run(HookKind.UPDATE, routed.route, record, ad_lines(record.ad))
            if printed and printed.strip():
                text = ad_text({**self.attributes_of(routed), **_attributes(HookKind.UPDATE, printed)})
                if text != record.attributes:
                    await self._change(routed.name, attributes=text)
        except WorldError as error:
            log.warning("hook failed", routed_job=routed.name, reason=str(error))

    def attributes_of(self, routed: TrackedJob) -> Mapping[str, AdValue]:
        """Return the attributes from the update hook of a job."""
        record = self._records_by_name.get(routed.name)
        return Ad.read(record.attributes).plain() if record is not None and record.attributes else {}

    async def finalise(self, routed: TrackedJob, source: Mapping[str, AdValue]) -> str:
        """Run the finalise hook once; `source` is the ad of the original. Returns why it failed, else ""."""
        record = self._records_by_name.get(routed.name)
        if record is None:
            return ""
        if record.finalised is not None:
            return record.finalised
        why = ""
        try:
            stdin_text = f"{ad_lines(ad_text(source))}{_BETWEEN_ADS}{ad_lines(record.ad)}"
            await self._run(HookKind.FINALISE, routed.route, record, stdin_text)
        except WorldError as error:
            why = str(error)
        try:
            await self._change(routed.name, finalised=why)
        except WorldError as error:
            log.warning("result of a hook could not be saved", routed_job=routed.name, reason=str(error))
        return why

    async def run_cleanup(self, routed: TrackedJob) -> bool:
        """Run the cleanup hook of a job; returns whether it succeeded, else it is to be run again."""
        record = self._records_by_name.get(routed.name)
        if record is None:
            return True
        is_clean = await self._run_cleanup_hook(routed.name, routed.route, record)
        if is_clean:
            self._records_by_name.pop(routed.name, None)
        return is_clean

    async def _run_cleanup_hook(self, name: str, route: str, record: HookRecord) -> bool:
        """Run the cleanup hook, and remove the record if it succeeds."""
        try:
            await self._run(HookKind.CLEANUP, route, record, ad_lines(record.ad))
        except WorldError as error:
            log.warning("hook failed and will be repeated", routed_job=name, reason=str(error))
            return False
        await asyncio.to_thread(self._records.remove, name)
        return True

    async def _run(self, kind: HookKind, route: str, record: HookRecord, stdin_text: str) -> str | None:
        """Return the output of a hook, None = the job has none of the kind; raises WorldError when it fails."""
        command = self._settings.commands.get(record.keyword, {}).get(kind)
        if not command:
            return None
        try:
            async with self._gates[route, kind], self._gate_of_all:
                answer = await run_command(command, timeout_s=self._settings.timeout_s, stdin=stdin_text.encode())
        except WorldError as error:
            raise WorldError(f"hook {kind}: {error}", transient=error.transient) from error
        except OSError as error:
            raise WorldError(f"hook {kind}: it cannot be run: {error.strerror}", transient=True) from error
        if answer.exit_code:
            raise WorldError(f"hook {kind}: {answer.error_text}", transient=False)
        if len(answer.stdout) > _MAX_OUTPUT:
            raise WorldError(f"hook {kind}: it prints more than {_MAX_OUTPUT} characters", transient=False)
        return answer.stdout

    async def _change(self, name: str, **fields: str) -> None:
        """Update the record of a job in memory and on disk; raises WorldError if it cannot be written."""
        if (record := self._records_by_name.get(name)) is not None:
            self._records_by_name[name] = changed = replace(record, **fields)
            await asyncio.to_thread(self._records.update, name, changed)


def _attributes(kind: HookKind, printed: str) -> dict[str, AdValue]:
    try:
        found = read_job_text(printed)
        Ad(found)
    except InvalidInputError as error:
        raise WorldError(f"hook {kind}: its output is not an ad: {error}", transient=False) from error
    return found
