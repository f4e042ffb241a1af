"""Hooks of the job router: commands of the operator that see a copy begin, run and end.

What they are given and what they print is as for the hooks of HTCondor's Job Router: ads as lines `Name = value`. A
hook that fails is never passed over. They run as the router's own user; one at a time of a kind for a job.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
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

log = structlog.get_logger()

_BETWEEN_ADS = "------\n"
_MOST_PRINTED = 1 << 20
_MOST_AT_ONCE = 8
"""So many hooks run at a time, of all routes: each takes a process and some files."""


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


@dataclass
class _Hooked:
    """A copy that has hooks: its keyword, the ads of job and copy as text, and what its update hook has said."""

    keyword: str
    job: str
    copy: str
    said: dict[str, AdValue] = field(default_factory=dict)
    finalised: str | None = None


class RouteHooks:
    """Runs hooks; of copies that have some it keeps the ads in `folder`, for the router that takes them over."""

    def __init__(self, settings: HookSettings, folder: Path) -> None:
        self._settings = settings
        self._folder = folder
        self._hooked: dict[str, _Hooked] = {}
        self._gate = asyncio.Semaphore(_MOST_AT_ONCE)

    def open(self) -> None:
        """Make the folder, if there are hooks at all, and read what it holds; raises WorldError."""
        if not self._settings.commands:
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            for path in self._folder.glob("*.json"):
                self._hooked[path.stem] = _Hooked(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise WorldError(f"{self._folder} cannot be read: {error}", transient=False) from error

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
        self._hooked[copy.name] = _Hooked(keyword, text, text)
        await self._keep(copy)
        about: dict[str, AdValue] = {
            "Name": route.name,
            "TargetUniverse": route.universe,
            "GridResource": route.grid_resource,
        }
        printed = await self._run(HookKind.TRANSLATE, copy, f"{ad_text(about)}\n{_BETWEEN_ADS}{ad_lines(text)}")
        return job if printed is None else _attributes(HookKind.TRANSLATE, printed)

    async def made(self, copy: HeldCopy, ad: Mapping[str, AdValue]) -> None:
        """Take note of the copy's ad; raises WorldError when it cannot be kept."""
        if (hooked := self._hooked.get(copy.name)) is not None:
            hooked.copy = ad_text(ad)
            await self._keep(copy)

    async def update(self, copy: HeldCopy) -> None:
        """Let the hook of a running copy say what it knows; one that fails says nothing."""
        try:
            printed = await self._run(HookKind.UPDATE, copy, ad_lines(self._hooked[copy.name].copy))
            if printed and printed.strip():
                self._hooked[copy.name].said |= _attributes(HookKind.UPDATE, printed)
        except WorldError as error:
            log.warning("hook failed", copy=copy.name, reason=str(error))

    def said_of(self, copy: HeldCopy) -> Mapping[str, AdValue]:
        """Return what the update hook has said of a copy."""
        return self._hooked[copy.name].said if copy.name in self._hooked else {}

    async def finalise(self, copy: HeldCopy, source: Mapping[str, AdValue]) -> str:
        """Run the hook of a payload that has ended, once; `source` is its job's ad. Returns why it failed, else ""."""
        hooked = self._hooked.get(copy.name)
        if hooked is None:
            return ""
        if hooked.finalised is None:
            try:
                given = f"{ad_lines(ad_text(source))}{_BETWEEN_ADS}{ad_lines(hooked.copy)}"
                await self._run(HookKind.FINALISE, copy, given)
                hooked.finalised = ""
            except WorldError as error:
                hooked.finalised = str(error)
        return hooked.finalised

    async def cleaned_up(self, copy: HeldCopy) -> bool:
        """Run the hook of an end; returns whether all is clean. Else it is to be asked again."""
        hooked = self._hooked.get(copy.name)
        if hooked is None:
            return True
        try:
            await self._run(HookKind.CLEANUP, copy, ad_lines(hooked.copy))
        except WorldError as error:
            log.warning("hook failed, and is run again", copy=copy.name, reason=str(error))
            return False
        del self._hooked[copy.name]
        await asyncio.to_thread(self._path(copy).unlink, missing_ok=True)
        return True

    async def _run(self, kind: HookKind, copy: HeldCopy, given: str) -> str | None:
        """Return what the hook of a copy prints, None = it has none of the kind; raises WorldError when it fails."""
        command = self._settings.commands.get(self._hooked[copy.name].keyword, {}).get(kind)
        if not command:
            return None
        try:
            async with self._gate:
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

    async def _keep(self, copy: HeldCopy) -> None:
        hooked = self._hooked[copy.name]
        text = json.dumps({"keyword": hooked.keyword, "job": hooked.job, "copy": hooked.copy})
        try:
            await asyncio.to_thread(_write, self._path(copy), text)
        except OSError as error:
            raise WorldError(f"{self._path(copy)}: {error.strerror}", transient=True) from error

    def _path(self, copy: HeldCopy) -> Path:
        return self._folder / f"{copy.name}.json"


def _write(path: Path, text: str) -> None:
    new = path.with_suffix(".new")
    new.touch(mode=0o600)
    new.write_text(text)
    new.replace(path)


def _attributes(kind: HookKind, printed: str) -> dict[str, AdValue]:
    try:
        found = read_job_text(printed)
        Ad(found)
    except InvalidInputError as error:
        raise WorldError(f"hook {kind}: what it prints is no ad: {error}", transient=False) from error
    return found
