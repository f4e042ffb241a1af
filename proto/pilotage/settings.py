"""Loads the settings of every program from a file, the environment and the command line.

Rules
-----
- The command line overrides the environment, which overrides the file; tables are merged key by key.
- The file is TOML, or JSON if it begins with a brace.
- Unknown keys and unknown variables with the program's prefix are rejected.
- All faults are reported together, each with its file, variable or option and its key.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_settings import (
    BaseSettings,
    EnvSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from pilotage.errors import InvalidInputError, Violation

STANDARD_INPUT = Path("-")

Model = TypeVar("Model", bound=BaseModel)
Program = TypeVar("Program", bound="ProgramSettings")


class _FromFile:
    """Marks paths that are relative to the folder of their settings file."""


AnchoredPath = Annotated[Path, _FromFile()]
"""A path; in a settings file, a relative one starts from the folder of that file."""


class Section(BaseModel):
    """A table of settings."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ProgramSettings(BaseSettings):
    """All settings of one program; with an `env_prefix` in its `model_config` variables are read too."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Return the only source: the values that `load_settings` has merged."""
        del settings_cls, env_settings, dotenv_settings, file_secret_settings
        return (init_settings,)


class _Source(NamedTuple):
    """Values, and a function that names the place of a key."""

    values: Mapping[str, Any]
    place: Callable[[str], str]


def load_settings(model: type[Program], file: Path | None, options: Mapping[str, Any]) -> Program:
    """Return a program's settings; the file "-" is the standard input.

    Raises
    ------
    InvalidInputError
        With every fault and its place, also if the file cannot be read.
    """
    prefix = model.model_config.get("env_prefix", "")
    environment = _environment(model, prefix) if prefix else {}
    sources = [_Source(options, str), _Source(environment, lambda key: _variable(prefix, key))]
    if file is not None:
        sources.append(_file_source(model, file))
    return _validated(model, sources)


def load_section(model: type[Model], file: Path) -> Model:
    """Return a section from its own file; raises InvalidInputError as `load_settings` does."""
    return _validated(model, [_file_source(model, file)])


def _file_source(model: type[BaseModel], file: Path) -> _Source:
    values = _anchored(model, _read(file), file.absolute().parent)
    return _Source(values, lambda key: f"{file}: {key}" if key else str(file))


def _read(file: Path) -> dict[str, Any]:
    try:
        text = sys.stdin.read() if file == STANDARD_INPUT else file.read_text(encoding="utf-8")
        values = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except OSError as error:
        raise InvalidInputError(Violation(str(file), f"cannot be read: {error.strerror or error}")) from error
    except ValueError as error:
        raise InvalidInputError(Violation(str(file), str(error))) from error
    assert isinstance(values, dict), "text that begins with a brace is a JSON object, and TOML is a table"
    return values


def _anchored(annotation: Any, value: Any, folder: Path) -> Any:
    """Return a value of a file with its relative `AnchoredPath`s joined to `folder`."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        is_path = isinstance(value, str) and any(isinstance(mark, _FromFile) for mark in arguments)
        return str(folder / value) if is_path else _anchored(arguments[0], value, folder)
    if origin in (Union, UnionType):
        for each in arguments:
            value = _anchored(each, value, folder)
    elif origin is tuple and isinstance(value, list):
        return [_anchored(arguments[0], each, folder) for each in value]
    elif origin is dict and isinstance(value, dict):
        return {key: _anchored(arguments[1], each, folder) for key, each in value.items()}
    elif _is_model(annotation) and isinstance(value, dict):
        fields = {name: field.rebuild_annotation() for name, field in annotation.model_fields.items()}
        return {key: _anchored(fields.get(key), each, folder) for key, each in value.items()}
    return value


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def _environment(model: type[ProgramSettings], prefix: str) -> Mapping[str, Any]:
    known = [_variable(prefix, name) for name in model.model_fields]
    ours = [name for name in os.environ if name.upper().startswith(prefix)]
    unknown = [Violation(name, _is_unknown(name.upper(), known)) for name in ours if name.upper() not in known]
    if unknown:
        raise InvalidInputError(*unknown)
    try:
        return EnvSettingsSource(model, env_prefix=prefix)()
    except SettingsError as error:
        raise InvalidInputError(Violation(f"{prefix}*", str(error))) from error


def _variable(prefix: str, key: str) -> str:
    """Return the variable of a setting; keys below it follow after a dot."""
    name, dot, below = key.partition(".")
    return f"{prefix}{name.upper()}{dot}{below}"


def _validated(model: type[Model], sources: list[_Source]) -> Model:
    """Return the settings of the sources; earlier sources override later ones."""
    merged: dict[str, Any] = {}
    for source in reversed(sources):
        merged = _merged(merged, source.values)
    try:
        return model.model_validate(merged)
    except ValidationError as error:  # not chained: its text shows values, which may be secrets
        faults = [_violation(model, sources, fault) for fault in error.errors()]
    raise InvalidInputError(*faults)


def _merged(lower: Mapping[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    tables = {
        key: _merged(lower[key], value)
        for key, value in upper.items()
        if isinstance(value, Mapping) and isinstance(lower.get(key), Mapping)
    }
    return {**lower, **upper, **tables}


def _violation(model: type[BaseModel], sources: list[_Source], fault: Any) -> Violation:
    path = [str(part) for part in fault["loc"]]
    source = max(sources, key=lambda each: _depth(each.values, path))
    if source.values.keys().isdisjoint(path[:1]):  # missing everywhere: blame the file
        source = sources[-1]
    if fault["type"] == "extra_forbidden":
        why = _is_unknown(path[-1], _names_beside(model, path))
    else:
        why = str(fault["msg"]).removeprefix("Value error, ")
    return Violation(source.place(".".join(path)), f"{why[:1].lower()}{why[1:]}")


def _depth(values: Any, path: list[str]) -> int:
    """Return how many keys of the path exist in the values."""
    for depth, key in enumerate(path):
        if not isinstance(values, Mapping) or key not in values:
            return depth
        values = values[key]
    return len(path)


def _names_beside(model: type[BaseModel], path: list[str]) -> Iterable[str]:
    """Return the settings in the section of a key, empty if it is no plain section."""
    for key in path[:-1]:
        field = model.model_fields.get(key)
        annotation = None if field is None else field.annotation
        below = [each for each in (annotation, *get_args(annotation)) if _is_model(each)]
        if not below:
            return ()
        model = below[0]
    return model.model_fields


def _is_unknown(name: str, known: Iterable[str]) -> str:
    nearest = get_close_matches(name, known, n=1)
    return f"is no setting; did you mean {nearest[0]}?" if nearest else "is no setting"
