"""The description of a routed job: the original's, with the changes of its route to the ad.

Rules
-----
- An attribute that the route left alone keeps the original's value. One that it removed is gone.
- An attribute that stands for a field of the description sets that field. All others become attributes of the job.
- Units are HTCondor's: memory in MiB, disk in KiB, times in seconds. An undefined expression sets nothing.
- HTCondor's computing element: xcount is cores, maxMemory MiB, maxWallTime minutes. default_xcount, default_maxMemory
  and default_maxWallTime hold if the job requests nothing.
- MayBeRepeated and Urgent stay with the original: the server decides once which jobs may race. So do retries and what
  on_exit_hold and on_exit_remove say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import timedelta
from typing import Any

from pilotage.classads.evaluation import Ad, NoValue
from pilotage.classads.library import AdValue, Expression
from pilotage.condor.quoting import (
    environment_attribute,
    environment_in_attribute,
    environment_settings,
    join_arguments,
    quoting_fault,
)
from pilotage.errors import Faults, InvalidInputError, Violation
from pilotage.job_description import JobDescription, JobPolicy, Value, without_exit_policy
from pilotage.text import fold, given_value
from pilotage.units import parse_duration, parse_size_mib, parse_whole_number
from pilotage.values.routing import RoutableJob
from pilotage_agents.router.core.fields import expression_text
from pilotage_agents.router.core.table import InvalidRoutesError

ROUTE_NAME = "RouteName"
_KIB_IN_MIB = 1024


def with_environment(job: RoutableJob) -> RoutableJob:
    """Return the job with its environment in its ad, where a route can change it: servers do not put it there."""
    environment = job.description.environment
    if not environment or any(fold(name) == "environment" for name in job.ad):
        return job
    return replace(job, ad={**job.ad, "Environment": environment_attribute(environment)})


def routed_description(job: RoutableJob, ad: Mapping[str, AdValue]) -> JobDescription:
    """Return the description of the routed job with this ad.

    Raises
    ------
    InvalidRoutesError
        For attributes with invalid values; each violation names the route and the attribute.
    """
    changes = _changes(job.ad, ad)
    faults = Faults()
    faults.unless("cmd" not in changes.removed, "Cmd", "a routed job needs a program")
    values: dict[str, Any] = {}
    for readers, read in ((_FIELDS, changes.value), (_EXPRESSIONS, changes.text)):
        values |= {name: _DEFAULTS[name] for folded, (name, _) in readers.items() if folded in changes.removed}
        for folded, (name, reader) in readers.items():
            if folded in changes.new:
                with faults.within(changes.new[folded][0]):
                    values |= _read_field(name, reader, read(folded))
    values |= _computing_element(job.description, changes, values, faults)
    if faults:
        _raise_faults(changes, faults)
    policy = {name: values.pop(name) for name in _POLICIES & values.keys()}
    attributes, warnings = _job_attributes(job.description.attributes, changes)
    return replace(
        without_exit_policy(job.description),
        **values,
        policy=replace(without_exit_policy(job.description).policy, **policy),
        attributes=attributes,
        warnings=(*job.description.warnings, *warnings),
    )


@dataclass(frozen=True, slots=True)
class _Changes:
    """Changes of a route to an ad: attributes that it set, by folded name, and folded names of removed ones."""

    ad: Mapping[str, AdValue]
    new: Mapping[str, tuple[str, AdValue]]
    removed: frozenset[str]
    _evaluated: list[Ad] = field(default_factory=list)

    def value(self, folded: str) -> AdValue | None:
        """Return the value of a new attribute; None = undefined. Raises InvalidInputError."""
        return self.evaluated(*self.new[folded])

    def text(self, folded: str) -> str:
        """Return a new attribute as an expression."""
        return expression_text(self.new[folded][1])

    def evaluated(self, name: str, value: AdValue) -> AdValue | None:
        """Return the value of an attribute; None = undefined. Raises InvalidInputError."""
        if not isinstance(value, Expression):
            return value
        if not self._evaluated:
            self._evaluated.append(Ad(self.ad))
        result = self._evaluated[0].value(name)
        if result is NoValue.ERROR:
            raise InvalidInputError(Violation("", f"{value.text} evaluates to an error"))
        return None if isinstance(result, NoValue) else result


def _changes(before: Mapping[str, AdValue], after: Mapping[str, AdValue]) -> _Changes:
    old = {fold(name): value for name, value in before.items()}
    now = {fold(name): (name, value) for name, value in after.items()}
    new = {folded: each for folded, each in now.items() if folded not in old or not _same(old[folded], each[1])}
    return _Changes(after, new, frozenset(old.keys() - now.keys()))


def _same(one: AdValue, other: AdValue) -> bool:
    return type(one) is type(other) and one == other  # 1 and true differ


Reader = Callable[[Any], object]


def _read_field(name: str, reader: Reader, value: AdValue | None) -> dict[str, object]:
    return {} if value is None else {name: reader(value)}


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInputError(Violation("", f"{value!r:.60} is not a text"))
    return value


def _program(value: object) -> str:
    if not _text(value).strip():
        raise InvalidInputError(Violation("", "names no program"))
    return _text(value)


def _arguments(value: object) -> str:
    if fault := quoting_fault(_text(value)):
        raise InvalidInputError(Violation("", f"cannot be split: {fault}"))
    return _text(value)


def _environment(read: Callable[[str], dict[str, str]]) -> Reader:
    def take(value: object) -> dict[str, str]:
        try:
            return read(_text(value))
        except ValueError as error:
            raise InvalidInputError(Violation("", str(error))) from error

    return take


def _at_least(least: int) -> Reader:
    return lambda value: parse_whole_number(value, least=least)


def _disk_mib(value: object) -> int:
    return -(-parse_whole_number(value, least=0) // _KIB_IN_MIB)


def _minutes(value: object) -> timedelta:
    return timedelta(minutes=parse_whole_number(value, least=1))


def _names(value: object) -> tuple[str, ...]:
    """Return the names of a list, or of one text with commas."""
    listed = value.split(",") if isinstance(value, str) else value if isinstance(value, tuple) else (value,)
    return tuple(name for each in listed if (name := _text(each).strip()))


def _section(value: object) -> dict[str, Value]:
    if not isinstance(value, Mapping):
        raise InvalidInputError(Violation("", f"{value!r:.60} is not a nested ad"))
    faults, section = Faults(), dict[str, Value]()
    for name, each in value.items():
        with faults.within(name):
            section[name] = given_value(each)
    faults.raise_any()
    return section


def _expression(text: object) -> str | None:
    return None if text == "undefined" else _text(text)


_FIELDS: Mapping[str, tuple[str, Reader]] = {
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
    "maxstarts": ("max_starts", _at_least(1)),
    "site": ("sites", _names),
    "bannedsites": ("banned_sites", _names),
    "platform": ("platforms", _names),
    "cputime": ("cpu_time", parse_duration),
    "jobrequirements": ("requirements", _section),
}
"""Fields that attributes with values set, by folded name; of two for one field the later counts."""

_EXPRESSIONS: Mapping[str, tuple[str, Reader]] = {
    "requirements": ("requirements_expression", _expression),
    "rank": ("rank", _expression),
    "periodichold": ("periodic_hold", _expression),
    "periodicholdreason": ("periodic_hold_reason", _expression),
    "periodicholdsubcode": ("periodic_hold_subcode", _expression),
    "periodicrelease": ("periodic_release", _expression),
    "periodicremove": ("periodic_remove", _expression),
}
"""Fields that attributes with expressions set."""

_OF_THE_ORIGINAL = frozenset({"mayberepeated", "urgent"})
"""Attributes that let a job race; they stay with the original."""

_POLICIES = frozenset(each.name for each in fields(JobPolicy))
_DEFAULTS: Mapping[str, object] = {
    each.name: each.default if each.default_factory is MISSING else each.default_factory()
    for kind in (JobDescription, JobPolicy)
    for each in fields(kind)
}

_COMPUTING_ELEMENT: Mapping[str, tuple[tuple[str, Reader], ...]] = {
    "request_cpus": (("xcount", _at_least(1)),),
    "request_memory_mib": (("maxmemory", parse_size_mib),),
    "wall_time": (("maxwalltime", _minutes), ("batchruntime", parse_duration)),
}
_BY_DEFAULT: Mapping[str, tuple[str, Reader]] = {
    "request_cpus": ("default_xcount", _at_least(1)),
    "request_memory_mib": ("default_maxmemory", parse_size_mib),
    "wall_time": ("default_maxwalltime", _minutes),
}


def _computing_element(
    description: JobDescription, changes: _Changes, values: Mapping[str, Any], faults: Faults
) -> dict[str, Any]:
    """Return the sizes that attributes of HTCondor's computing element request, unless the route sets them."""
    spelled = {fold(name): name for name in changes.ad}
    found: dict[str, Any] = {}
    for name, readers in _COMPUTING_ELEMENT.items():
        default = () if getattr(description, name) is not None else (_BY_DEFAULT[name],)
        for folded, reader in () if values.get(name) is not None else (*readers, *default):
            if folded in spelled and name not in found:
                with faults.within(spelled[folded]):
                    found |= _read_field(name, reader, changes.evaluated(spelled[folded], changes.ad[spelled[folded]]))
    return found


def _job_attributes(own: Mapping[str, Value], changes: _Changes) -> tuple[Mapping[str, Value], tuple[str, ...]]:
    """Return the attributes of the routed job, and warnings for values that cannot be one."""
    replaced = changes.removed | changes.new.keys() | _OF_THE_ORIGINAL
    attributes = {name: value for name, value in own.items() if fold(name) not in replaced}
    warnings = []
    for folded, (name, value) in changes.new.items():
        if folded in _FIELDS or folded in _EXPRESSIONS or folded in _OF_THE_ORIGINAL:
            continue
        plain = _plain(changes, name, value)
        if plain is None:
            warnings.append(f"{name} of the routed job has no plain value and is left out")
        else:
            attributes[name] = plain
    return attributes, tuple(warnings)


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


def _raise_faults(changes: _Changes, faults: Faults) -> None:
    route_name = changes.ad.get(ROUTE_NAME)
    try:
        faults.raise_any()
    except InvalidInputError as error:
        start = f"{route_name}, " if isinstance(route_name, str) else ""
        raise InvalidRoutesError(*(Violation(f"{start}{each.where}", each.why) for each in error.violations)) from error
