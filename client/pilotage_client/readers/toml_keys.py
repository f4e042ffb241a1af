"""The keys of a job in TOML, and what each means."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import PurePosixPath
from typing import Any

from pilotage.arguments import join_arguments, split_arguments
from pilotage.classad_evaluation import bounded
from pilotage.classads import InvalidClassAdError, check_expression
from pilotage.job_description import InputFile, JobPolicy, Scalar, Value
from pilotage.resources import LARGEST_COUNT, parse_duration, parse_size_mib, parse_whole_number
from pilotage_client.readers.draft import Draft


class InvalidValueError(Exception):
    """A value that cannot be; the text completes "KEY …"."""


_POLICIES = tuple(field.name for field in fields(JobPolicy))

Put = Callable[[Draft, Any], None]
"""Puts a value into a draft; raises InvalidValueError or InvalidRequirementsError."""


def _text(field: str) -> Put:
    return lambda draft, value: draft.put(**{field: _text_of(value)})


def _texts(field: str) -> Put:
    return lambda draft, value: draft.put(**{field: tuple(_texts_of(value))})


def _executable(draft: Draft, value: Any) -> None:
    if not _text_of(value):
        raise InvalidValueError("must not be empty")
    draft.put(executable=value)


def _arguments(draft: Draft, value: Any) -> None:
    if isinstance(value, list):
        draft.put(arguments=join_arguments(as_text(element) for element in value))
        return
    try:
        split_arguments(_text_of(value))
    except ValueError as error:
        raise InvalidValueError(f"has {str(error).lower()}") from error
    draft.put(arguments=value)


def _environment(draft: Draft, value: Any) -> None:
    for name, each in _table_of(value).items():
        if not name or "=" in name:
            raise InvalidValueError(f"has {name!r}, which cannot be the name of a variable")
        draft.environment[name] = as_text(each)


def _input_files(draft: Draft, value: Any) -> None:
    """Read paths, or tables that give the name in the job's folder, too."""
    for entry in value if isinstance(value, list) else [value]:
        if isinstance(entry, str):
            draft.input_files.append(InputFile(PurePosixPath(entry).name or ".", source=entry))
        elif isinstance(entry, dict) and set(entry) == {"name", "source"}:
            draft.input_files.append(InputFile(_text_of(entry["name"]), source=_text_of(entry["source"])))
        else:
            raise InvalidValueError("must be paths, or tables with name and source")


def _output_files(draft: Draft, value: Any) -> None:
    draft.output_files.extend(_texts_of(value))


def _requirements(draft: Draft, value: Any) -> None:
    draft.requirements = {name: _value_of(name, each) for name, each in _table_of(value).items()}
    for name, asked in draft.requirements.items():
        if asked == ():
            raise InvalidValueError(f"asks for an empty list under {name}")


def _expression(field: str) -> Put:
    def put(draft: Draft, value: Any) -> None:
        try:
            check_expression(_text_of(value))
        except InvalidClassAdError as error:
            raise InvalidValueError(f"is no expression: {error}") from error
        draft.put(**{field: value})

    return put


def _policy(draft: Draft, value: Any) -> None:
    for name, text in _table_of(value).items():
        if name not in _POLICIES:
            raise InvalidValueError(f"has {name}, which is none of {', '.join(_POLICIES)}")
        try:
            bounded(_text_of(text))
        except InvalidClassAdError as error:
            raise InvalidValueError(f"has no expression under {name}: {error}") from error
        draft.put_policy(**{name: text})


def _attributes(draft: Draft, value: Any) -> None:
    for name, each in _table_of(value).items():
        draft.keep(name, _value_of(name, each))


def _measured(field: str, measure: Callable[[object], object]) -> Put:
    return lambda draft, value: draft.put(**{field: measure(value)})


def _count(field: str, least: int) -> Put:
    def put(draft: Draft, value: Any) -> None:
        if not isinstance(value, int):
            raise InvalidValueError("must be a whole number")
        draft.put(**{field: parse_whole_number(value, least=least)})

    return put


def _hold(draft: Draft, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidValueError("must be true or false")
    draft.put(hold=value)


def _text_of(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValueError("must be a text")
    return value


def _texts_of(value: object) -> list[str]:
    return [_text_of(element) for element in (value if isinstance(value, list) else [value])]


def _table_of(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValueError("must be a table")
    return value


def _value_of(name: str, value: object) -> Value:
    if isinstance(value, list):
        return tuple(_scalar_of(name, element) for element in value)
    return _scalar_of(name, value)


def _scalar_of(name: str, value: object) -> Scalar:
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    if is_infinite or not isinstance(value, bool | int | float | str):
        raise InvalidValueError(f"has neither a plain value nor a list of such under {name}")
    return value


def as_text(value: object) -> str:
    """Return a plain value as text; raises InvalidValueError for any other."""
    if not isinstance(value, bool | int | float | str):
        raise InvalidValueError("must hold texts and numbers")
    return str(value).lower() if isinstance(value, bool) else str(value)


KEYS: Mapping[str, Put] = {
    "executable": _executable,
    "arguments": _arguments,
    "name": _text("name"),
    "environment": _environment,
    "stdin": _text("stdin"),
    "stdout": _text("stdout"),
    "stderr": _text("stderr"),
    "input_files": _input_files,
    "output_files": _output_files,
    "requirements": _requirements,
    "requirements_expression": _expression("requirements_expression"),
    "rank": _expression("rank"),
    "sites": _texts("sites"),
    "banned_sites": _texts("banned_sites"),
    "platforms": _texts("platforms"),
    "cpu_time": _measured("cpu_time", parse_duration),
    "wall_time": _measured("wall_time", parse_duration),
    "lease": _measured("lease", parse_duration),
    "request_cpus": _count("request_cpus", least=0),
    "request_memory": _measured("request_memory_mib", parse_size_mib),
    "request_disk": _measured("request_disk_mib", parse_size_mib),
    "request_gpus": _count("request_gpus", least=0),
    "priority": _count("priority", least=-LARGEST_COUNT),
    "hold": _hold,
    "policy": _policy,
    "attributes": _attributes,
    "count": _count("count", least=1),
    "parameters": lambda draft, value: None,  # read before the job is
}
"""What each key of a job puts into its draft."""
