"""What `pilotage edit` does to a description: one NAME=VALUE at a time.

A reader that has understood an attribute (`Priority = 3`) may have kept it as it was written, too; its value changes
with the field that it became, lest two parts of the job contradict each other.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from pilotage.errors import InvalidInputError, Violation
from pilotage.folding import fold
from pilotage.job_description import JobDescription, JobPolicy, Value
from pilotage.parameters import SHIPPED
from pilotage.resources import parse_duration, parse_size_mib, parse_whole_number
from pilotage_client.require_options import read_require_options

_TEXTS = ("executable", "arguments", "name", "stdin", "stdout", "stderr", "requirements_expression", "rank")
_LISTS = ("sites", "banned_sites", "platforms", "output_files")
_COUNTS = ("request_cpus", "request_gpus")
_SIZES = {"request_memory": "request_memory_mib", "request_disk": "request_disk_mib"}
_POLICIES = tuple(field.name for field in dataclasses.fields(JobPolicy))
_TIMES = ("cpu_time", "wall_time", "lease")

_KEPT_AS: Mapping[str, frozenset[str]] = {
    "name": frozenset({"jobname", "batchname", "jobbatchname"}),
    "stdin": frozenset({"stdinput", "input"}),
    "stdout": frozenset({"stdoutput"}),
    "stderr": frozenset({"stderror"}),
    "output_files": frozenset({"output", "outputarchive", "outputsandbox", "transferoutput", "transferoutputfiles"}),
    "requirements_expression": frozenset({"requirements", "requirementsexpression"}),
    "rank": frozenset({"rank"}),
    "sites": frozenset({"site", "sites"}),
    "banned_sites": frozenset({"bannedsite", "bannedsites"}),
    "platforms": frozenset({"platform"}),
    "wall_time": frozenset({"ttl", "allowedexecuteduration"}),
    "lease": frozenset({"jobleaseduration"}),
    "priority": frozenset({"priority", "prio"}),
    **{name: frozenset({name.replace("_", "")}) for name in _POLICIES},
    "request_cpus": frozenset({"requestcpus"}),
    "request_gpus": frozenset({"requestgpus"}),
    "request_memory_mib": frozenset({"requestmemory"}),
    "request_disk_mib": frozenset({"requestdisk"}),
}
"""Under which names, without case and underscores, readers keep as it was written what a field comes from."""


def changed(description: JobDescription, change: str) -> JobDescription:
    """Return the description with one NAME=VALUE; raises InvalidInputError for an unknown name or a bad value."""
    name, equals, text = change.partition("=")
    name, text = name.strip(), text.strip()
    if not equals:
        raise InvalidInputError(Violation(change, "is no change; write NAME=VALUE"))
    if name.startswith("requirements."):
        return _with_requirement(description, name.removeprefix("requirements."), text)
    if name.startswith("environment."):
        variable = name.removeprefix("environment.")
        return dataclasses.replace(description, environment={**description.environment, variable: text})
    if name in _POLICIES:
        return with_policies(description, dataclasses.replace(description.policy, **{name: text or None}))
    field, value = _field(name, text)
    return dataclasses.replace(_without_namesakes(description, field, value), **{field: value})


def with_policies(description: JobDescription, policy: JobPolicy) -> JobDescription:
    """Return the description under this policy."""
    for name in _POLICIES:
        if getattr(policy, name) != getattr(description.policy, name):
            description = _without_namesakes(description, name, getattr(policy, name))
    return dataclasses.replace(description, policy=policy)


def _field(name: str, text: str) -> tuple[str, Any]:
    if name in _TEXTS:
        return name, text if text or name in {"executable", "arguments", "name"} else None
    if name in _LISTS:
        return name, tuple(item.strip() for item in text.split(",") if item.strip())
    if name == "priority":
        return name, parse_whole_number(text or 0, name)
    if name in _COUNTS:
        return name, parse_whole_number(text, name, least=0) if text else None
    if name in _SIZES:
        return _SIZES[name], parse_size_mib(text, name) if text else None
    if name in _TIMES:
        return name, parse_duration(text, name) if text else None
    known = ", ".join(
        (*_TEXTS, *_LISTS, *_COUNTS, *_SIZES, *_TIMES, *_POLICIES, "priority", "requirements.NAME", "environment.NAME")
    )
    raise InvalidInputError(Violation(name, f"cannot be changed; these can: {known}"))


def _with_requirement(description: JobDescription, name: str, text: str) -> JobDescription:
    section = dict(description.requirements or {})
    for present in [known for known in section if fold(known) == fold(name)]:
        del section[present]
    if text:
        section.update(read_require_options([f"{name}={text}"], SHIPPED))
    return dataclasses.replace(description, requirements=section or None)


def _without_namesakes(description: JobDescription, field: str, value: Any) -> JobDescription:
    """Return the description with kept attributes of the field's meaning set to `value`, or taken out for none."""
    names = _KEPT_AS.get(field, frozenset())
    namesakes = [name for name in description.attributes if fold(name).replace("_", "") in names]
    if not namesakes:
        return description
    others = {name: each for name, each in description.attributes.items() if name not in namesakes}
    shown = _as_attribute(field, value)
    attributes = others if shown is None else others | dict.fromkeys(namesakes, shown)
    # A warning begins with the name of what it is about: it told of the value that is no more.
    warnings = tuple(text for text in description.warnings if text.partition(" ")[0] not in namesakes)
    return dataclasses.replace(description, attributes=attributes, warnings=warnings)


def _as_attribute(field: str, value: Any) -> Value | None:
    """Return a field's value as its owner could have written it: times in seconds, sizes with their unit."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds
    if value in (None, "", ()):
        return None
    return f"{value} MB" if field in _SIZES.values() else value
