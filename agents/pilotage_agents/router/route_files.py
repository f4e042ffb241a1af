"""Reads a file of routes: a list of ClassAds, or HTCondor configuration with today's or yesterday's knobs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from pilotage.classads import AdValue, expression_from_old_syntax, parse_value
from pilotage.condor_config import Asked, Configuration, Surroundings, read_configuration, read_text
from pilotage.condor_text import definitions, reference_graph, spelled_references, undefined_macros
from pilotage.errors import InvalidInputError, Violation
from pilotage.faults import Faults
from pilotage.folding import fold
from pilotage_agents.core.routes.route_ads import read_ads, routes_of
from pilotage_agents.core.routes.route_fields import condition
from pilotage_agents.core.routes.route_table import InvalidRoutesError, LeftOut, Limits, Route, RouteTable, Transform
from pilotage_agents.core.routes.route_transforms import own_macros, read_route, read_transform

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

_ASKED = Asked(
    names=(_NAMES, _ENTRIES, _DEFAULTS, _CONSTRAINT, _BEFORE, _AFTER, _ROUND_ROBIN, *_LIMITS, *_ELSEWHERE),
    programs=_PROGRAMS,
)
_PROLOGUE = f"{_ROUND_ROBIN} = True\n"  # as the paper has it; HTCondor takes the first route unless told otherwise


def read_route_file(path: Path, *, constraint: str = "", allow_commands: bool = False) -> RouteTable:
    """Return the table in the file at `path`, with those routes left out that can have no meaning here.

    Every job must fulfil the table's JOB_ROUTER_SOURCE_JOB_CONSTRAINT, or `constraint` where it says none ("" = none
    either), an expression as a configuration has it. A configuration may run commands, such as `include command`, only
    where `allow_commands` says so.

    Raises
    ------
    InvalidInputError
        When the file cannot be read, or one of its routes or the constraint is malformed; the violations say which,
        where and why.
    ClassAdLibraryMissingError
        When HTCondor's Python library is not installed.
    """
    with _at("constraint"):
        usual = _constraint(constraint) if constraint.strip() else None
    text = read_text(path)
    if _is_list_of_ads(text):
        with _at(str(path)):
            return _from_ads(text, usual).without_unusable()
    around = Surroundings(prologue=_PROLOGUE, subsystem="JOB_ROUTER", allow_commands=allow_commands)
    knobs = _Knobs(read_configuration(path, _ASKED, around), text, usual)
    with _at(str(path)):
        return knobs.table().without_unusable()


def _is_list_of_ads(text: str) -> bool:
    lines = (line.strip() for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith(("#", "//"))), "").startswith("[")


def _from_ads(text: str, constraint: str | None) -> RouteTable:
    routes, left_out = routes_of(read_ads(text), Limits())
    return RouteTable(tuple(routes), tuple(left_out), constraint)


def _constraint(text: str) -> str | None:
    return condition({"": parse_value(expression_from_old_syntax(" ".join(text.split())))}, "", "")


@dataclass(frozen=True, slots=True)
class _Knobs:
    """What a configuration says of routes.

    `text` is that of its file, for telling where; `constraint` is what jobs must fulfil unless it says so itself, None
    = nothing.
    """

    found: Configuration
    text: str
    constraint: str | None

    def table(self) -> RouteTable:
        """Return the table; raises InvalidRoutesError with every fault."""
        if self.found.get(_NAMES) is None and self.found.get(_ENTRIES) is None:
            raise InvalidRoutesError(Violation("", f"names no routes: neither {_NAMES} nor {_ENTRIES} is set"))
        faults = Faults()
        routes: list[Route] = []
        left_out: list[LeftOut] = [self._elsewhere(knob) for knob in _ELSEWHERE if self.found.get(knob)]
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
        """Return the routes that are listed, in that order, else the ads in theirs; and those left out."""
        defaults = self._default_limits()
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

    def _entries(self, defaults: Limits) -> tuple[list[Route], list[LeftOut]]:
        """Return the routes of JOB_ROUTER_ENTRIES, over JOB_ROUTER_DEFAULTS, and those whose place another takes."""
        text = self.found.get(_ENTRIES)
        if text is None:
            return [], []
        common: dict[str, AdValue] = {}
        if (said := self.found.get(_DEFAULTS)) is not None:
            with self._where(_DEFAULTS):
                for ad in read_ads(said):
                    common = {**ad.over(common).attributes}
        with self._where(_ENTRIES):
            return routes_of([ad.over(common) for ad in read_ads(text)], defaults)

    def _default_limits(self) -> Limits:
        usual = Limits()
        idle = self._integer(_MAX_IDLE_OF_ROUTE, usual.max_idle_jobs or 0)
        return Limits(self._integer(_MAX_OF_ROUTE, usual.max_jobs), None if idle < 0 else idle)

    def _transforms(self, knob: str, faults: Faults) -> tuple[Transform, ...]:
        """Return the transforms that `knob` lists; one that is missing is a fault, as copies would be other ones."""
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
        """The configuration's macros, but for those that programs define themselves."""
        own = own_macros(self.found.programs.values())
        return {name: text for name, text in self.found.values.items() if name not in own}

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

    def _elsewhere(self, knob: str) -> LeftOut:
        return LeftOut(knob, "is not followed: give the table that it names as the file itself")

    def _where(self, knob: str) -> AbstractContextManager[None]:
        """Say of what is wrong in the block that it is in `knob`, and where this very file defines that."""
        described = list(definitions(self.text))
        lines = [each.line for each in described if fold(each.name) == fold(knob)]
        graph = reference_graph(described)
        missing = undefined_macros(knob, graph, self.found.names) if knob == _ENTRIES else ()
        spelled = spelled_references(described)
        undefined = f" (nothing defines {', '.join(spelled[name] for name in missing)})" if missing else ""
        return _at(f"line {lines[-1]}, {knob}{undefined}" if lines else f"{knob}{undefined}")


@contextmanager
def _at(where: str) -> Iterator[None]:
    """Say of what is wrong in the block that it is at `where`."""
    try:
        yield
    except InvalidInputError as error:
        places = (", ".join(part for part in (where, each.where) if part) for each in error.violations)
        found = [Violation(place, each.why) for place, each in zip(places, error.violations, strict=True)]
        raise InvalidRoutesError(*found) from error
