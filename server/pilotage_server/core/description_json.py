"""Job descriptions as canonical JSON, and back: the form in which the server keeps them.

Rules
-----
Equal descriptions give equal texts. What stands at its default is left out, so a field that a later release
adds reads as its default from older texts. Times are in seconds. A list is told from a single value by JSON
itself; integers stay integers and fractions stay fractions.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields, replace
from datetime import timedelta
from typing import Any

from pilotage.job_description import InputFile, JobDescription, JobPolicy, Value
from pilotage_server.core.alike import Alike, Own

_TIMES = frozenset({"cpu_time", "wall_time", "lease"})
_TEXTS = frozenset({"output_files", "sites", "banned_sites", "platforms", "warnings"})
_SECTIONS = frozenset({"requirements", "attributes"})
_NAMES = tuple(field.name for field in fields(JobDescription))
_EMPTY = JobDescription(executable="")
_GAP = "\0"
"""Stands in no description: texts are refused that hold it."""
_quoted = json.JSONEncoder(ensure_ascii=False).encode


def description_to_json(description: JobDescription) -> str:
    """Return the canonical text; `description_from_json` makes an equal description of it."""
    values = {name: getattr(description, name) for name in _NAMES}
    given = {name: _plain(name, value) for name, value in values.items() if value != getattr(_EMPTY, name)}
    return json.dumps(given, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def texts_of(alike: Alike) -> Iterator[str]:
    """Yield the canonical text of each of the descriptions: that of their model, with what is each one's own."""
    if len(alike.own) == 1:
        yield description_to_json(alike.model)
        return
    forms: dict[tuple[bool, bool], Callable[[Own], str]] = {}
    for own in alike.own:
        said = bool(own.arguments), bool(own.name)
        if said not in forms:
            forms[said] = _form(alike.model, *said)
        yield forms[said](own)


def _form(model: JobDescription, arguments: bool, name: bool) -> Callable[[Own], str]:
    """Return what fills the gaps that are left in the model's text for arguments and name, where there are any."""
    gaps = replace(model, arguments=_GAP if arguments else "", name=_GAP if name else "")
    before, *after = description_to_json(gaps).split(_quoted(_GAP))
    match arguments, name, after:
        case True, True, [between, end]:  # keys are sorted
            return lambda own: f"{before}{_quoted(own.arguments)}{between}{_quoted(own.name)}{end}"
        case True, False, [end]:
            return lambda own: f"{before}{_quoted(own.arguments)}{end}"
        case False, True, [end]:
            return lambda own: f"{before}{_quoted(own.name)}{end}"
        case False, False, []:
            return lambda _: before
        case _:
            raise AssertionError("no text of a description holds the gap")


def description_from_json(text: str) -> JobDescription:
    """Return the description that `description_to_json` wrote."""
    given: dict[str, Any] = json.loads(text)
    return JobDescription(**{"executable": ""} | {name: _read(name, value) for name, value in given.items()})


def _plain(name: str, value: Any) -> Any:
    if name in _TIMES:
        return value / timedelta(microseconds=1) / 1e6
    if name == "input_files":
        return [asdict(file) for file in value]
    if name == "policy":
        return {name: text for name, text in asdict(value).items() if text is not None}
    return dict(value) if isinstance(value, Mapping) else value


def _read(name: str, value: Any) -> Any:
    if name in _TIMES:
        return timedelta(seconds=value)
    if name == "input_files":
        return tuple(InputFile(**file) for file in value)
    if name == "policy":
        return JobPolicy(**value)
    if name in _TEXTS:
        return tuple(value)
    return _section(value) if name in _SECTIONS else value


def _section(section: Mapping[str, Any]) -> dict[str, Value]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in section.items()}
