"""What a copy is to run: the original's description, with what its route has changed in its ad.

Rules
-----
What the route left alone stays as the original has it; what it took away is gone. Attributes that a field of the
description says change that field, all others that it set become the copy's own attributes. Values are HTCondor's:
memory in MiB, disk in KiB, times in seconds. Of what users and routes of HTCondor's computing element say, xcount is
cores, maxMemory is MiB and maxWallTime minutes; default_xcount, default_maxMemory and default_maxWallTime hold where
the job asks for nothing. An expression without a value says nothing. That a job may be repeated stays with the
original: who may have copies of it run decides that, and not a second time where one of them has come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import timedelta
from typing import Any

from pilotage.arguments import join_arguments, quoting_fault
from pilotage.classad_evaluation import Ad, NoValue
from pilotage.classads import AdValue, Expression
from pilotage.condor_quoting import environment_attribute, environment_in_attribute, environment_settings
from pilotage.errors import InvalidInputError, Violation
from pilotage.faults import Faults
from pilotage.folding import fold
from pilotage.job_description import JobDescription, JobPolicy, Value
from pilotage.resources import parse_duration, parse_size_mib, parse_whole_number
from pilotage_agents.core.routes.route_fields import expression_text
from pilotage_agents.core.routes.route_table import InvalidRoutesError
from pilotage_agents.router.route_edges import RoutableJob

ROUTE_NAME = "RouteName"
_KIB_IN_MIB = 1024


def with_environment(job: RoutableJob) -> RoutableJob:
    """Return the job with its environment in its ad, where a route can change it: servers keep it out of ads."""
    environment = job.description.environment
    if not environment or any(fold(name) == "environment" for name in job.ad):
        return job
    return replace(job, ad={**job.ad, "Environment": environment_attribute(environment)})


def described_copy(job: RoutableJob, copy_ad: Mapping[str, AdValue]) -> JobDescription:
    """Return what a copy of the job with this ad is to run.

    Raises
    ------
    InvalidRoutesError
        For attributes that cannot be what they are there for; each violation names the route and the attribute.
    """
    changes = _changes(job.ad, copy_ad)
    faults = Faults()
    faults.unless("cmd" not in changes.gone, "Cmd", "a copy needs a program")
    said: dict[str, Any] = {}
    for meanings, read in ((_FIELDS, changes.value), (_EXPRESSIONS, changes.text)):
        said |= {name: _DEFAULTS[name] for folded, (name, _) in meanings.items() if folded in changes.gone}
        for folded, (name, meaning) in meanings.items():
            if folded in changes.new:
                with faults.within(changes.new[folded][0]):
                    said |= _taken(name, meaning, read(folded))
    said |= _computing_element(job.description, changes, said, faults)
    if faults:
        _blame(changes, faults)
    policy = {name: said.pop(name) for name in _POLICIES & said.keys()}
    attributes, warnings = _own_attributes(job.description.attributes, changes)
    return replace(
        job.description,
        **said,
        policy=replace(job.description.policy, **policy),
        attributes=attributes,
        warnings=(*job.description.warnings, *warnings),
    )


@dataclass(frozen=True, slots=True)
class _Changes:
    """What a route made of an ad: attributes that it set, by folded name, and folded names of those it took away."""

    ad: Mapping[str, AdValue]
    new: Mapping[str, tuple[str, AdValue]]
    gone: frozenset[str]
    _evaluated: list[Ad] = field(default_factory=list)

    def value(self, folded: str) -> AdValue | None:
        """Return what a new attribute comes to; None = to nothing. Raises InvalidInputError."""
        return self.evaluated(*self.new[folded])

    def text(self, folded: str) -> str:
        """Return a new attribute as an expression."""
        return expression_text(self.new[folded][1])

    def evaluated(self, name: str, value: AdValue) -> AdValue | None:
        """Return what an attribute of the copy comes to; None = to nothing. Raises InvalidInputError."""
        if not isinstance(value, Expression):
            return value
        if not self._evaluated:
            self._evaluated.append(Ad(self.ad))
        result = self._evaluated[0].value(name)
        if result is NoValue.ERROR:
            raise InvalidInputError(Violation("", f"{value.text} comes to an error"))
        return None if isinstance(result, NoValue) else result


def _changes(before: Mapping[str, AdValue], after: Mapping[str, AdValue]) -> _Changes:
    old = {fold(name): value for name, value in before.items()}
    now = {fold(name): (name, value) for name, value in after.items()}
    new = {folded: each for folded, each in now.items() if folded not in old or not _same(old[folded], each[1])}
    return _Changes(after, new, frozenset(old.keys() - now.keys()))


def _same(one: AdValue, other: AdValue) -> bool:
    return type(one) is type(other) and one == other  # 1 and true are not the same


Meaning = Callable[[Any], object]


def _taken(name: str, meaning: Meaning, value: AdValue | None) -> dict[str, object]:
    return {} if value is None else {name: meaning(value)}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(Violation("", f"{value!r:.60} is no text"))
    return value


def _program(value: object) -> str:
    if not _text(value).strip():
        raise InvalidInputError(Violation("", "names no program"))
    return _text(value)


def _arguments(value: object) -> str:
    if fault := quoting_fault(_text(value)):
        raise InvalidInputError(Violation("", f"cannot be taken apart: {fault}"))
    return _text(value)


def _environment(read: Callable[[str], dict[str, str]]) -> Meaning:
    def take(value: object) -> dict[str, str]:
        try:
            return read(_text(value))
        except ValueError as error:
            raise InvalidInputError(Violation("", str(error))) from error

    return take


def _at_least(least: int) -> Meaning:
    return lambda value: parse_whole_number(value, least=least)


def _disk_mib(value: object) -> int:
    return -(-parse_whole_number(value, least=0) // _KIB_IN_MIB)


def _minutes(value: object) -> timedelta:
    return timedelta(minutes=parse_whole_number(value, least=1))


def _expression(text: object) -> str | None:
    return None if text == "undefined" else _text(text)


_FIELDS: Mapping[str, tuple[str, Meaning]] = {
    "cmd": ("executable", _program),
    "args": ("arguments", lambda value: join_arguments(_text(value).split())),
    "arguments": ("arguments", _arguments),
    "env": ("environment", _environment(environment_settings)),
    "environment": ("environment", _environment(environment_in_attribute)),
    "in": ("stdin", _text),
    "out": ("stdout", _text),
    "err": ("stderr", _text),
    "jobbatchname": ("name", _text),
    "jobprio": ("priority", parse_whole_number),
    "requestcpus": ("request_cpus", _at_least(1)),
    "requestmemory": ("request_memory_mib", parse_size_mib),
    "requestdisk": ("request_disk_mib", _disk_mib),
    "requestgpus": ("request_gpus", _at_least(0)),
    "allowedexecuteduration": ("wall_time", parse_duration),
    "jobleaseduration": ("lease", parse_duration),
}
"""What attributes say that have a value, by folded name; of two for one field the later counts."""

_EXPRESSIONS: Mapping[str, tuple[str, Meaning]] = {
    "requirements": ("requirements_expression", _expression),
    "rank": ("rank", _expression),
    "periodichold": ("periodic_hold", _expression),
    "periodicholdreason": ("periodic_hold_reason", _expression),
    "periodicholdsubcode": ("periodic_hold_subcode", _expression),
    "periodicrelease": ("periodic_release", _expression),
    "periodicremove": ("periodic_remove", _expression),
}
"""What attributes say that are expressions."""

_OF_THE_ORIGINAL = frozenset({"mayberepeated", "urgent"})
"""Attributes by which copies of a job race."""

_POLICIES = frozenset(each.name for each in fields(JobPolicy))
_DEFAULTS: Mapping[str, object] = {
    each.name: each.default if each.default_factory is MISSING else each.default_factory()
    for kind in (JobDescription, JobPolicy)
    for each in fields(kind)
}

_COMPUTING_ELEMENT: Mapping[str, tuple[tuple[str, Meaning], ...]] = {
    "request_cpus": (("xcount", _at_least(1)),),
    "request_memory_mib": (("maxmemory", parse_size_mib),),
    "wall_time": (("maxwalltime", _minutes), ("batchruntime", parse_duration)),
}
_BY_DEFAULT: Mapping[str, tuple[str, Meaning]] = {
    "request_cpus": ("default_xcount", _at_least(1)),
    "request_memory_mib": ("default_maxmemory", parse_size_mib),
    "wall_time": ("default_maxwalltime", _minutes),
}


def _computing_element(
    description: JobDescription, changes: _Changes, said: Mapping[str, Any], faults: Faults
) -> dict[str, Any]:
    """Return the sizes that the words of HTCondor's computing element ask for, where the route itself asks none."""
    spelled = {fold(name): name for name in changes.ad}
    found: dict[str, Any] = {}
    for name, meanings in _COMPUTING_ELEMENT.items():
        default = () if getattr(description, name) is not None else (_BY_DEFAULT[name],)
        for folded, meaning in () if said.get(name) is not None else (*meanings, *default):
            if folded in spelled and name not in found:
                with faults.within(spelled[folded]):
                    found |= _taken(name, meaning, changes.evaluated(spelled[folded], changes.ad[spelled[folded]]))
    return found


def _own_attributes(own: Mapping[str, Value], changes: _Changes) -> tuple[Mapping[str, Value], tuple[str, ...]]:
    """Return the copy's own attributes, and what cannot be one."""
    replaced = changes.gone | changes.new.keys() | _OF_THE_ORIGINAL
    kept = {name: value for name, value in own.items() if fold(name) not in replaced}
    warnings = []
    for folded, (name, value) in changes.new.items():
        if folded in _FIELDS or folded in _EXPRESSIONS or folded in _OF_THE_ORIGINAL:
            continue
        plain = _plain(changes, name, value)
        if plain is None:
            warnings.append(f"{name} of the copy has no plain value, and is left out")
        else:
            kept[name] = plain
    return kept, tuple(warnings)


def _plain(changes: _Changes, name: str, value: AdValue) -> Value | None:
    try:
        value_now = changes.evaluated(name, value)
    except InvalidInputError:
        return None
    match value_now:
        case bool() | int() | float() | str():
            return value_now
        case tuple():
            return tuple(_scalars(value_now)) if len([*_scalars(value_now)]) == len(value_now) else None
        case _:
            return None


def _scalars(values: tuple[AdValue, ...]) -> Iterator[bool | int | float | str]:
    return (each for each in values if isinstance(each, bool | int | float | str))


def _blame(changes: _Changes, faults: Faults) -> None:
    named = changes.ad.get(ROUTE_NAME)
    try:
        faults.raise_any()
    except InvalidInputError as error:
        start = f"{named}, " if isinstance(named, str) else ""
        raise InvalidRoutesError(*(Violation(f"{start}{each.where}", each.why) for each in error.violations)) from error
