"""Reads route tables and targets from files.

A route file is a list of ClassAds, or HTCondor configuration with present or former knobs. `RouteSource` reads it again
when it changes, or runs a command again. Targets are a TOML file, by the route's name or its GridResource.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import structlog
from pydantic import Field, model_validator

from pilotage.classads.library import AdValue, expression_from_old_syntax, parse_value
from pilotage.clock import Clock
from pilotage.condor.config import Configuration, ConfigurationContext, KnobRequest, read_configuration, read_text
from pilotage.condor.text import definitions, reference_graph, spelled_references, undefined_macros
from pilotage.errors import Faults, InvalidInputError, Violation, WorldError
from pilotage.resources.tree import QueueId
from pilotage.rpc.channel import Endpoint, split_address
from pilotage.settings import Section, load_section
from pilotage.text import fold
from pilotage_agents.batch_systems.hosts import run_command
from pilotage_agents.router.core.classad_tables import read_ads, routes_of
from pilotage_agents.router.core.fields import condition
from pilotage_agents.router.core.table import (
    InvalidRoutesError,
    LeftOut,
    QueueTarget,
    Route,
    RouteLimits,
    RouteTable,
    RouteTransform,
    ServerTarget,
    Target,
    Targets,
    target_key,
)
from pilotage_agents.router.core.transforms import defined_macros, read_route, read_transform

_ROUTE, _TRANSFORM = "JOB_ROUTER_ROUTE_", "JOB_ROUTER_TRANSFORM_"
_NAMES, _ENTRIES, _DEFAULTS = "JOB_ROUTER_ROUTE_NAMES", "JOB_ROUTER_ENTRIES", "JOB_ROUTER_DEFAULTS"
_CONSTRAINT = "JOB_ROUTER_SOURCE_JOB_CONSTRAINT"
_BEFORE, _AFTER = "JOB_ROUTER_PRE_ROUTE_TRANSFORM_NAMES", "JOB_ROUTER_POST_ROUTE_TRANSFORM_NAMES"
_ROUND_ROBIN, _MAX_JOBS = "JOB_ROUTER_ROUND_ROBIN_SELECTION", "JOB_ROUTER_MAX_JOBS"
_MAX_OF_ROUTE = "JOB_ROUTER_DEFAULT_MAX_JOBS_PER_ROUTE"
_MAX_IDLE_OF_ROUTE = "JOB_ROUTER_DEFAULT_MAX_IDLE_JOBS_PER_ROUTE"
_LIMITS = (_MAX_JOBS, _MAX_OF_ROUTE, _MAX_IDLE_OF_ROUTE)
_ELSEWHERE = ("JOB_ROUTER_ENTRIES_FILE", "JOB_ROUTER_ENTRIES_CMD")
_PROGRAMS = f"{_ROUTE}(?!NAMES$).+|{_TRANSFORM}.+"

_QUERY = KnobRequest(
    names=(_NAMES, _ENTRIES, _DEFAULTS, _CONSTRAINT, _BEFORE, _AFTER, _ROUND_ROBIN, *_LIMITS, *_ELSEWHERE),
    programs=_PROGRAMS,
)
_PROLOGUE = f"{_ROUND_ROBIN} = True\n"  # as in the paper of 2009; HTCondor's default is the first route


def read_route_file(path: Path, *, constraint: str = "", allow_commands: bool = False) -> RouteTable:
    """Return the table in the file at `path`, without routes that are not supported.

    Every job must fulfil JOB_ROUTER_SOURCE_JOB_CONSTRAINT of the table, or else `constraint` ("" = none), an expression
    in the syntax of a configuration. A configuration may run commands, such as `include command`, only with
    `allow_commands`.

    Raises
    ------
    InvalidInputError
        When the file cannot be read, or a route or the constraint is malformed; the violations name the place and the
        fault.
    ClassAdLibraryMissingError
        When HTCondor's Python library is not installed.
    """
    with _at("constraint"):
        fallback = _constraint(constraint) if constraint.strip() else None
    text = read_text(path)
    if _is_list_of_ads(text):
        with _at(str(path)):
            routes, left_out = routes_of(read_ads(text), RouteLimits())
            return RouteTable(tuple(routes), tuple(left_out), fallback).without_unusable()
    context = ConfigurationContext(prologue=_PROLOGUE, subsystem="JOB_ROUTER", allow_commands=allow_commands)
    knobs = _Knobs(read_configuration(path, _QUERY, context), text, fallback)
    with _at(str(path)):
        return knobs.table().without_unusable()


def _is_list_of_ads(text: str) -> bool:
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith(("#", "//"))), "").startswith("[")


def _constraint(text: str) -> str | None:
    return condition({"": parse_value(expression_from_old_syntax(" ".join(text.split())))}, "", "")


@dataclass(frozen=True, slots=True)
class _Knobs:
    """The routes of a configuration.

    `text` is that of its file, for line numbers; `constraint` is used if the configuration has none, None = no
    constraint.
    """

    found: Configuration
    text: str
    constraint: str | None

    def table(self) -> RouteTable:
        """Return the table; raises InvalidRoutesError with every fault."""
        faults = Faults()
        for knob in _QUERY.names:
            with faults.within(""):
                self._check_macros(knob)
        faults.raise_any(InvalidRoutesError)
        if self.found.get(_NAMES) is None and self.found.get(_ENTRIES) is None:
            raise InvalidRoutesError(Violation("", f"has no routes: neither {_NAMES} nor {_ENTRIES} is set"))
        routes: list[Route] = []
        left_out: list[LeftOut] = [
            LeftOut(knob, "is not supported: use the table that it names as the file itself")
            for knob in _ELSEWHERE
            if self.found.get(knob)
        ]
        table = RouteTable(())
        with faults.within(""):
            table = self._settings()
        with faults.within(""):
            routes, others = self._routes(faults)
            left_out += others
        before, after = (self._transforms(knob, faults) for knob in (_BEFORE, _AFTER))
        faults.raise_any(InvalidRoutesError)
        table = replace(table, routes=tuple(routes), left_out=tuple(left_out), before=before, after=after)
        return replace(table, macros=self.found.values)

    def _settings(self) -> RouteTable:
        constraint = self.constraint
        if text := self.found.get(_CONSTRAINT):
            with self._where(_CONSTRAINT):
                constraint = _constraint(text)
        most = self._integer(_MAX_JOBS, -1)
        in_turn = self._boolean(_ROUND_ROBIN)
        return RouteTable((), constraint=constraint, round_robin=in_turn, max_jobs=None if most < 0 else most)

    def _routes(self, faults: Faults) -> tuple[list[Route], list[LeftOut]]:
        """Return the listed routes in that order, else the ads in theirs; and those left out."""
        fallback = RouteLimits()
        idle = self._integer(_MAX_IDLE_OF_ROUTE, fallback.max_idle_jobs or 0)
        defaults = RouteLimits(self._integer(_MAX_OF_ROUTE, fallback.max_jobs), None if idle < 0 else idle)
        ads, left_out = self._entries(defaults)
        known = {fold(route.name): route for route in ads}
        start = fold(_ROUTE)
        programs = {fold(name)[len(start) :]: name for name in self.found.programs if fold(name).startswith(start)}
        left_out += [
            LeftOut(known.pop(name).name, f"{programs[name]} takes its place") for name in programs if name in known
        ]
        routes, seen = list[Route](), set[str]()
        for name in self._names(_NAMES) if self.found.get(_NAMES) else [route.name for route in ads]:
            knob = programs.pop(fold(name), None)
            if knob is not None:
                with faults.within(""), self._where(knob):
                    routes.append(read_route(name, self.found.programs[knob], self._macros, defaults))
            elif fold(name) in known:
                routes.append(known.pop(fold(name)))
            elif fold(name) in seen:
                left_out.append(LeftOut(name, f"{_NAMES} lists it before, and the first time counts"))
            else:
                left_out.append(LeftOut(name, f"{_NAMES} lists it, and nothing defines {_ROUTE}{name}"))
            seen.add(fold(name))
        unlisted = [*(knob[len(_ROUTE) :] for knob in programs.values()), *(route.name for route in known.values())]
        return routes, [*left_out, *(LeftOut(name, f"{_NAMES} does not list it") for name in unlisted)]

    def _entries(self, defaults: RouteLimits) -> tuple[list[Route], list[LeftOut]]:
        """Return the routes of JOB_ROUTER_ENTRIES over JOB_ROUTER_DEFAULTS, and those that others replace."""
        text = self.found.get(_ENTRIES)
        if text is None:
            return [], []
        common: dict[str, AdValue] = {}
        if (entries := self.found.get(_DEFAULTS)) is not None:
            with self._where(_DEFAULTS):
                for ad in read_ads(entries):
                    common = {**ad.with_defaults(common).attributes}
        with self._where(_ENTRIES):
            return routes_of([ad.with_defaults(common) for ad in read_ads(text)], defaults)

    def _transforms(self, knob: str, faults: Faults) -> tuple[RouteTransform, ...]:
        """Return the transforms that `knob` lists; a missing one is a fault, as routed jobs would differ."""
        programs = {fold(name): name for name in self.found.programs}
        read = []
        for name in self._names(knob):
            program = programs.get(fold(_TRANSFORM + name))
            with faults.within(""), self._where(program or knob):
                if program is None:
                    raise InvalidRoutesError(Violation("", f"lists {name}, and nothing defines {_TRANSFORM}{name}"))
                read.append(read_transform(name, self.found.programs[program], self._macros))
        return tuple(read)

    @property
    def _macros(self) -> dict[str, str]:
        """The configuration's macros without those that programs define."""
        defined = defined_macros(self.found.programs.values())
        return {name: text for name, text in self.found.values.items() if name not in defined}

    def _names(self, knob: str) -> list[str]:
        return re.findall(r"[^\s,]+", self.found.get(knob) or "")

    def _integer(self, knob: str, default: int) -> int:
        text = self.found.get(knob)
        if text is None:
            return default
        with self._where(knob):
            value = parse_value(text)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidRoutesError(Violation("", f"{text} is not a whole number"))
        return value

    def _boolean(self, knob: str) -> bool:
        text = self.found.get(knob) or "false"
        with self._where(knob):
            value = parse_value(text)
            if not isinstance(value, bool | int):
                raise InvalidRoutesError(Violation("", f"{text} is neither true nor false"))
        return bool(value)

    def _check_macros(self, knob: str) -> None:
        """Raise InvalidRoutesError if undefined macros change the routes, or leave nothing of a knob's text.

        Nothing left of the defaults means none: computing elements generate them in another file.
        """
        is_emptied = knob.lower() in self.found.emptied
        if is_emptied if knob == _DEFAULTS else not is_emptied and knob != _ENTRIES:
            return
        described = list(definitions(self.text))
        missing = undefined_macros(knob, reference_graph(described), self.found.names)
        spelled = spelled_references(described)
        if missing:
            with self._where(knob):
                why = f"nothing defines {', '.join(spelled[name] for name in missing)}"
                raise InvalidRoutesError(Violation("", why))

    def _where(self, knob: str) -> AbstractContextManager[None]:
        """Add `knob`, and its line if this file defines it, to the violations of the block."""
        lines = [each.line for each in definitions(self.text) if fold(each.name) == fold(knob)]
        return _at(f"line {lines[-1]}, {knob}" if lines else knob)


@contextmanager
def _at(where: str) -> Iterator[None]:
    """Add `where` to the violations of the block."""
    try:
        yield
    except InvalidInputError as error:
        wheres = (", ".join(part for part in (where, each.where) if part) for each in error.violations)
        found = [Violation(place, each.why) for place, each in zip(wheres, error.violations, strict=True)]
        raise InvalidRoutesError(*found) from error


log = structlog.get_logger()

_UNREAD = ("unread",)
"""Stands for the stamps of files that could not be read: they are read again in any case."""


@dataclass(frozen=True, slots=True)
class TableSettings:
    """The sources of a table.

    `file` holds it; with a `command`, its output is saved there. It is read again after `refresh`; None = a file when
    it has changed, a command never. `targets_file` is checked for changes too, None = the targets never change.
    """

    file: Path
    command: tuple[str, ...]
    refresh: timedelta | None
    targets: Callable[[], Targets]
    targets_file: Path | None = None
    constraint: str = ""
    allow_commands: bool = False
    timeout_s: float = 60.0


class RouteSource:
    """Reads the table again when it may have changed; a faulty newer one is rejected, and the old one stays active.

    `fault` says why the newest was rejected, empty = it is active.
    """

    def __init__(self, settings: TableSettings, clock: Clock) -> None:
        self.fault = ""
        self._settings = settings
        self._clock = clock
        self._read_at: datetime | None = None
        self._stamps: tuple[object, ...] = ()
        self._table: RouteTable | None = None

    async def load_newer(self) -> RouteTable | None:
        """Return the table if it has changed, None = it has not.

        Raises
        ------
        PilotageError
            When it is not available, or has faults, and there is no earlier one.
        """
        files = [self._settings.targets_file, None if self._settings.command else self._settings.file]
        stamps = tuple(_stamp(file) for file in files if file is not None)
        if not self._is_due(stamps):
            return None
        try:
            table = await self._read()
        except (InvalidInputError, WorldError) as error:
            if self._table is None:
                raise
            why = str(error)
            if why != self.fault:
                log.warning("newer route table rejected, the previous one stays active", reason=why)
            self.fault = why
            table = self._table
            if isinstance(error, WorldError) and not self._settings.command:
                stamps = _UNREAD
        else:
            self.fault = ""
        self._read_at, self._stamps = self._clock(), stamps
        if table == self._table:
            return None
        self._table = table
        return table

    def _is_due(self, stamps: tuple[object, ...]) -> bool:
        if self._read_at is None or stamps != self._stamps:
            return True
        refresh = self._settings.refresh
        return refresh is not None and self._clock() >= self._read_at + refresh

    async def _read(self) -> RouteTable:
        if self._settings.command:
            command = self._settings.command
            answer = await run_command(command, timeout_s=self._settings.timeout_s)
            if answer.exit_code:
                raise InvalidInputError(Violation(command[0], answer.error_text))
            try:
                await asyncio.to_thread(self._settings.file.write_text, answer.stdout)
            except OSError as error:
                raise WorldError(f"{self._settings.file}: {error.strerror}", transient=True) from error
        return await asyncio.to_thread(self._read_files)

    def _read_files(self) -> RouteTable:
        settings = self._settings
        table = read_route_file(settings.file, constraint=settings.constraint, allow_commands=settings.allow_commands)
        return table.with_targets(settings.targets())


def _stamp(path: Path) -> object:
    try:
        status = path.stat()
    except OSError as error:
        return error.errno
    return status.st_mtime_ns, status.st_size, status.st_ino


class _Target(Section):
    """A target: a queue of the tree, "SITE/CE/QUEUE", or a server, "host:port" or several with commas."""

    queue: str | None = Field(None, description='A queue of the tree, "SITE/CE/QUEUE".')
    server: str | None = Field(None, description='A server, "host:port", or several with commas.')

    @model_validator(mode="after")
    def _check_one_target(self) -> _Target:
        if (self.queue is None) == (self.server is None):
            raise ValueError("needs either a queue or a server")
        return self

    def target(self) -> Target:
        """Return the target; raises InvalidInputError."""
        if self.queue is not None:
            return QueueTarget(QueueId.parse(self.queue))
        assert self.server is not None, "a target is one of the two"
        addresses = Endpoint.parse(self.server).addresses
        for address in addresses:
            split_address(address)
        return ServerTarget(addresses)


class TargetsSection(Section):
    """A targets file, or a section of a larger one; unknown keys are rejected."""

    routes: dict[str, _Target] = Field(default_factory=dict, description="The targets by the route's name.")
    grid_resources: dict[str, _Target] = Field(
        default_factory=dict, description="The targets by the route's GridResource."
    )

    def targets(self, where: str) -> Targets:
        """Return the targets; raises InvalidInputError with `where` in its text."""
        routes = _read(where, "routes", self.routes)
        return Targets(routes, _read(where, "grid_resources", self.grid_resources))


def read_targets(path: Path) -> Targets:
    """Return the targets in the file at `path`; raises InvalidInputError with every fault and its place."""
    return load_section(TargetsSection, path).targets(str(path))


def _read(where: str, section: str, entries: dict[str, _Target]) -> dict[str, Target]:
    targets: dict[str, Target] = {}
    names: dict[str, str] = {}
    for name, target in entries.items():
        key = target_key(name)
        try:
            if names.setdefault(key, name) != name:
                raise InvalidInputError(Violation("", f'is the same as "{names[key]}", but for letter case or blanks'))
            targets[key] = target.target()
        except InvalidInputError as error:
            why = "; ".join(each.why for each in error.violations)
            raise InvalidInputError(Violation(f'{where}: {section}."{name}"', why)) from error
    return targets
