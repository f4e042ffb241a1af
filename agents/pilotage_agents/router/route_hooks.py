"""Hooks of the job router: commands of the operator that see a copy begin, run and end.

What they are given and what they print is as for the hooks of HTCondor's Job Router: ads as lines `Name = value`. A
hook that fails is never passed over. They run as the router's own user; one at a time of a kind for a job.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import structlog

from pilotage.ad_lines import ad_lines
from pilotage.ad_text import ad_text
from pilotage.classad_evaluation import Ad
from pilotage.classads import AdValue
from pilotage.errors import InvalidInputError, WorldError
from pilotage.folding import fold
from pilotage.job_file import read_job_text
from pilotage_agents.batch_systems.commands import ask
from pilotage_agents.core.copies.copy_life import HeldCopy
from pilotage_agents.core.routes.route_table import Route
from pilotage_agents.router.hook_records import Hooked, HookRecords
from pilotage_agents.router.side_by_side import side_by_side

log = structlog.get_logger()

_BETWEEN_ADS = "------\n"
_MOST_PRINTED = 1 << 20
_MOST_AT_ONCE = 8
"""So many hooks of a kind run at a time for a route: those that hang keep no other route's waiting."""

_MOST_IN_ALL = 64
"""So many run at a time of all: each takes a process and some files."""

_NO_ROUTE = ""
"""In place of the route of copies that are no router's any more."""

_MOST_STRAYS = 16
"""So many copies that are no router's are cleaned up at a time; the others when copies are adopted next."""


class HookKind(StrEnum):
    """When a hook runs."""

    TRANSLATE = "translate"
    """Before the copy is made; prints the ad that the route's changes start from, in place of the job's."""
    UPDATE = "update"
    """At each look while the copy runs; prints attributes."""
    FINALISE = "finalise"
    """When the copy's payload has ended."""
    CLEANUP = "cleanup"
    """At every end of the copy, however it ended."""


Commands = Mapping[HookKind, tuple[str, ...]]
"""The commands of a keyword."""


@dataclass(frozen=True, slots=True)
class HookSettings:
    """The commands by folded keyword, the keyword of jobs that say none ("" = none), and how long a hook may take."""

    commands: Mapping[str, Commands]
    default: str
    timeout_s: float


class RouteHooks:
    """Runs hooks; of copies that have some it keeps records, for the router that takes them over."""

    def __init__(self, settings: HookSettings, folder: Path) -> None:
        self._settings = settings
        self._records = HookRecords(folder)
        self._hooked: dict[str, Hooked] = {}
        self._gates: defaultdict[tuple[str, HookKind], asyncio.Semaphore] = defaultdict(_gate)
        self._gate_of_all = asyncio.Semaphore(_MOST_IN_ALL)

    async def kept(self) -> frozenset[str]:
        """Return the names of the copies of which there are records; raises WorldError."""
        return await asyncio.to_thread(self._records.names) if self._settings.commands else frozenset()

    async def take_over(self, held: Collection[str], kept: Collection[str]) -> None:
        """Know of the copies that are held, and of no others, what is kept of some."""
        self._hooked = {name: hooked for name, hooked in self._hooked.items() if name in held}
        for name in kept:
            if name in held and name not in self._hooked:
                hooked = await asyncio.to_thread(self._records.read, name)
                if hooked is not None:
                    self._hooked.setdefault(name, hooked)

    async def clean_up(self, strays: Collection[str]) -> None:
        """Run the hooks of ends of some of the copies that are no router's any more, each until it has gone well."""

        async def clean(name: str) -> None:
            hooked = await asyncio.to_thread(self._records.read, name)
            if hooked is not None and await self._cleaned(name, _NO_ROUTE, hooked):
                log.info("copy that is no router's any more is cleaned up", copy=name)

        await side_by_side([clean(name) for name in sorted(strays)[:_MOST_STRAYS]])

    def are_for(self, copy: HeldCopy) -> bool:
        """Whether the copy has hooks."""
        return copy.name in self._hooked

    async def translate(self, copy: HeldCopy, route: Route, job: Mapping[str, AdValue]) -> Mapping[str, AdValue]:
        """Return the ad that the changes of the route start from; raises WorldError when the hook fails.

        From now on the copy has hooks, if its job has.
        """
        keyword = self._keyword(job)
        if keyword not in self._settings.commands:
            return job
        text = ad_text(job)
        self._hooked[copy.name] = hooked = Hooked(keyword, text)
        await asyncio.to_thread(self._records.begin, copy.name, hooked)
        about: dict[str, AdValue] = {
            "Name": route.name,
            "TargetUniverse": route.universe,
            "GridResource": route.grid_resource,
        }
        given = f"{ad_text(about)}\n{_BETWEEN_ADS}{ad_lines(text)}"
        printed = await self._run(HookKind.TRANSLATE, copy.route, hooked, given)
        return job if printed is None else _attributes(HookKind.TRANSLATE, printed)

    async def made(self, copy: HeldCopy, ad: Mapping[str, AdValue]) -> None:
        """Take note of the copy's ad; raises WorldError when it cannot be kept."""
        if copy.name in self._hooked:
            await self._change(copy.name, copy=ad_text(ad))

    async def update(self, copy: HeldCopy) -> None:
        """Let the hook of a running copy say what it knows; one that fails says nothing."""
        hooked = self._hooked.get(copy.name)
        if hooked is None:
            return
        try:
            printed = await self._run(HookKind.UPDATE, copy.route, hooked, ad_lines(hooked.copy))
            if printed and printed.strip():
                said = ad_text({**self.said_of(copy), **_attributes(HookKind.UPDATE, printed)})
                if said != hooked.said:
                    await self._change(copy.name, said=said)
        except WorldError as error:
            log.warning("hook failed", copy=copy.name, reason=str(error))

    def said_of(self, copy: HeldCopy) -> Mapping[str, AdValue]:
        """Return what the update hook has said of a copy."""
        hooked = self._hooked.get(copy.name)
        return Ad.read(hooked.said).plain() if hooked is not None and hooked.said else {}

    async def finalise(self, copy: HeldCopy, source: Mapping[str, AdValue]) -> str:
        """Run the hook of a payload that has ended, once; `source` is its job's ad. Returns why it failed, else ""."""
        hooked = self._hooked.get(copy.name)
        if hooked is None:
            return ""
        if hooked.finalised is not None:
            return hooked.finalised
        why = ""
        try:
            given = f"{ad_lines(ad_text(source))}{_BETWEEN_ADS}{ad_lines(hooked.copy)}"
            await self._run(HookKind.FINALISE, copy.route, hooked, given)
        except WorldError as error:
            why = str(error)
        try:
            await self._change(copy.name, finalised=why)
        except WorldError as error:
            log.warning("that a hook has run could not be kept", copy=copy.name, reason=str(error))
        return why

    async def cleaned_up(self, copy: HeldCopy) -> bool:
        """Run the hook of an end; returns whether all is clean. Else it is to be asked again."""
        hooked = self._hooked.get(copy.name)
        if hooked is None:
            return True
        is_clean = await self._cleaned(copy.name, copy.route, hooked)
        if is_clean:
            self._hooked.pop(copy.name, None)
        return is_clean

    async def _cleaned(self, name: str, route: str, hooked: Hooked) -> bool:
        """Run the hook of an end, and keep nothing of the copy once it has gone well."""
        try:
            await self._run(HookKind.CLEANUP, route, hooked, ad_lines(hooked.copy))
        except WorldError as error:
            log.warning("hook failed, and is run again", copy=name, reason=str(error))
            return False
        await asyncio.to_thread(self._records.remove, name)
        return True

    async def _run(self, kind: HookKind, route: str, hooked: Hooked, given: str) -> str | None:
        """Return what the hook of a copy prints, None = it has none of the kind; raises WorldError when it fails."""
        command = self._settings.commands.get(hooked.keyword, {}).get(kind)
        if not command:
            return None
        try:
            async with self._gates[route, kind], self._gate_of_all:
                answer = await ask(command, timeout_s=self._settings.timeout_s, stdin=given.encode())
        except WorldError as error:
            raise WorldError(f"hook {kind}: {error}", transient=error.transient) from error
        except OSError as error:
            raise WorldError(f"hook {kind}: it cannot be run: {error.strerror}", transient=True) from error
        if answer.exit_code:
            raise WorldError(f"hook {kind}: {answer.complaint}", transient=False)
        if len(answer.stdout) > _MOST_PRINTED:
            raise WorldError(f"hook {kind}: it prints more than {_MOST_PRINTED} characters", transient=False)
        return answer.stdout

    def _keyword(self, job: Mapping[str, AdValue]) -> str:
        said = next((value for name, value in job.items() if fold(name) == "hookkeyword"), None)
        return fold(said) if isinstance(said, str) else fold(self._settings.default)

    async def _change(self, name: str, **said: str) -> None:
        """Know this of a copy from now on, also after a restart; raises WorldError when it cannot be kept."""
        if (hooked := self._hooked.get(name)) is not None:
            self._hooked[name] = changed = replace(hooked, **said)
            await asyncio.to_thread(self._records.change, name, changed)


def _gate() -> asyncio.Semaphore:
    return asyncio.Semaphore(_MOST_AT_ONCE)


def _attributes(kind: HookKind, printed: str) -> dict[str, AdValue]:
    try:
        found = read_job_text(printed)
        Ad(found)
    except InvalidInputError as error:
        raise WorldError(f"hook {kind}: what it prints is no ad: {error}", transient=False) from error
    return found
