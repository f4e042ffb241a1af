"""Loads the settings of every program from a file, the environment and the command line.

Rules
-----
- The command line overrides the environment, which overrides the file; tables are merged key by key.
- The file is TOML, or JSON if it begins with a brace.
- A variable is the program's prefix and the name of a setting. A list or a table in a variable or in `--set` is JSON.
- Unknown keys and unknown variables with the program's prefix are rejected.
- All faults are reported together, each with its file, variable or option and its key.

`pilotage.command_line.settings_options` makes the options of a command line.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

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
    """Values, and a function that names the place of a key.

    `name` returns a key of the first level as the source writes it. `has_json` = lists and tables are JSON texts.
    """

    values: Mapping[str, Any]
    place: Callable[[str], str]
    name: Callable[[str], str] = str
    has_json: bool = False


@dataclass(frozen=True, slots=True)
class SettingsSources(Generic[Program]):
    """The sources of a program's settings; earlier ones override later ones."""

    model: type[Program]
    sources: tuple[_Source, ...]

    def load(self) -> Program:
        """Return the settings; raises InvalidInputError with every fault and its place."""
        return _validated(self.model, self.sources)

    def shown(self, settings: Program) -> Iterator[str]:
        """Yield each of the loaded settings as `key = value  # source`, where the value is JSON and hides secrets."""
        for path, value in _leaves(self.model, settings.model_dump(mode="json"), ()):
            found = next((each for each in self.sources if _depth(each.values, path) == len(path)), None)
            key = ".".join(path)
            place = "default" if found is None else found.place(key)
            yield f"{key} = {'(none)' if value is None else json.dumps(value, ensure_ascii=False)}  # {place}"


def settings_sources(
    model: type[Program],
    file: Path | None,
    options: Mapping[str, Any],
    *,
    flags: Mapping[str, str] | None = None,
    assignments: Sequence[str] = (),
) -> SettingsSources[Program]:
    """Return the sources: options, assignments, environment and file; the file "-" is the standard input.

    `options` are values by the keys of the file, and `flags` the options of the command line by dotted key.
    `assignments` are texts KEY=VALUE with dotted keys.

    Raises
    ------
    InvalidInputError
        When the file cannot be read, or an assignment is none.
    """
    variable = partial(variable_of, model)
    sources = [
        _Source(options, lambda key: _flag(flags or {}, key)),
        _Source(_assigned(model, assignments), lambda key: f"--set {key}", has_json=True),
        _Source(_environment(model), variable, variable, has_json=True),
    ]
    if file is not None:
        sources.append(_file_source(model, file))
    return SettingsSources(model, tuple(sources))


def load_settings(model: type[Program], file: Path | None, options: Mapping[str, Any]) -> Program:
    """Return a program's settings, as `settings_sources` and `load` do; raises InvalidInputError."""
    return settings_sources(model, file, options).load()


def variable_of(model: type[ProgramSettings], key: str) -> str:
    """Return the environment variable of a setting, with the keys below it after a dot; "" = the program has none."""
    prefix = model.model_config.get("env_prefix", "")
    name, dot, below = key.partition(".")
    return f"{prefix}{name.upper()}{dot}{below}" if prefix and key else ""


def load_section(model: type[Model], file: Path) -> Model:
    """Return a section from its own file; raises InvalidInputError as `load_settings` does."""
    return _validated(model, (_file_source(model, file),))


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


def alternatives(annotation: Any) -> list[Any]:
    """Return the types of a union, without their metadata; of any other annotation that alone."""
    if get_origin(annotation) is Annotated:
        return alternatives(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [type_ for each in get_args(annotation) for type_ in alternatives(each)]
    return [annotation]


def annotation_of(annotation: Any, path: Sequence[str]) -> Any:
    """Return the annotation of the key at a path below a table; None = there is no such key, object = any value."""
    for key in path:
        below = (_annotation_below(each, key) for each in alternatives(annotation))
        annotation = next((each for each in below if each is not None), None)
    return annotation


def _annotation_below(table: Any, key: str) -> Any:
    if table in (Any, object):
        return object
    if get_origin(table) is dict:
        return get_args(table)[1]
    field = table.model_fields.get(key) if _is_model(table) else None
    return None if field is None else field.rebuild_annotation()


def _environment(model: type[ProgramSettings]) -> Mapping[str, Any]:
    """Return the values of all variables that have the prefix of the program, also of unknown ones."""
    prefix = model.model_config.get("env_prefix", "")
    if not prefix:
        return {}
    ours = {name.upper(): text for name, text in os.environ.items() if name.upper().startswith(prefix)}
    values = {name.removeprefix(prefix).lower(): text for name, text in ours.items()}
    return {key: _value(annotation_of(model, [key]), text) for key, text in values.items()}


def _assigned(model: type[ProgramSettings], assignments: Iterable[str]) -> Mapping[str, Any]:
    """Return the values of texts KEY=VALUE; a later one overrides an earlier one."""
    values: dict[str, Any] = {}
    for text in assignments:
        key, equals, written = text.partition("=")
        path = key.strip().split(".")
        if not equals or not all(path):
            raise InvalidInputError(Violation(f"--set {text}", "is not KEY=VALUE, such as log_level=debug"))
        value = _value(annotation_of(model, path), written.strip())
        for name in reversed(path):
            value = {name: value}
        values = _merged(values, value)
    return values


def _value(annotation: Any, text: str) -> Any:
    """Return the value in a text: that of JSON where a list, a table or any value may stand, else the text itself."""
    types = alternatives(annotation)
    if any(_is_table(each) or get_origin(each) is tuple or each in (Any, object) for each in types):
        with suppress(ValueError):
            return json.loads(text)
    return text


def _is_table(annotation: Any) -> bool:
    return _is_model(annotation) or get_origin(annotation) is dict


def _leaves(annotation: Any, value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield paths and values of all settings; of tables with free keys, which may hold secrets, only the keys."""
    if isinstance(value, dict) and value and any(_is_table(each) for each in alternatives(annotation)):
        for key, each in value.items():
            yield from _leaves(annotation_of(annotation, [key]), each, (*path, key))
    else:
        yield path, _hidden(annotation, value)


def _hidden(annotation: Any, value: Any) -> Any:
    """Return a value with the values of free keys hidden."""
    if annotation in (Any, object):
        return "**********"
    if isinstance(value, list):
        elements = [get_args(each)[0] for each in alternatives(annotation) if get_origin(each) is tuple]
        return [_hidden((*elements, None)[0], each) for each in value]
    if isinstance(value, dict):
        return {key: _hidden(annotation_of(annotation, [key]), each) for key, each in value.items()}
    return value


def _flag(flags: Mapping[str, str], key: str) -> str:
    """Return the option that sets a key or a table above it, else the key."""
    parts = key.split(".")
    above = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((flags[each] for each in above if each in flags), key)


def _validated(model: type[Model], sources: Sequence[_Source]) -> Model:
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


def _violation(model: type[BaseModel], sources: Sequence[_Source], fault: Any) -> Violation:
    path, table = _place_of(model, fault)
    source = max(sources, key=lambda each: _depth(each.values, path))
    if source.values.keys().isdisjoint(path[:1]):  # missing everywhere: blame the file
        source = sources[-1]
    if fault["type"] == "extra_forbidden":
        written = source.name if len(path) == 1 else str
        why = _is_unknown(written(path[-1]), map(written, _names_in(table)))
    elif fault["type"] in _NO_COMPOUND:
        why = f"{_NO_COMPOUND[fault['type']]}{', written as JSON' if source.has_json else ''}"
    elif fault["type"] == "union_tag_invalid":
        why = f"is {fault['ctx']['tag']!r}, not one of {fault['ctx']['expected_tags']}"
    elif fault["type"] == "union_tag_not_found":
        why = "field required"
    elif fault["type"] == "missing" and len(path) == 1 and issubclass(model, ProgramSettings):
        return _missing(model, sources, path[0])
    else:
        why = str(fault["msg"]).removeprefix("Value error, ")
    return Violation(source.place(".".join(path)), f"{why[:1].lower()}{why[1:]}")


_NO_COMPOUND = {"tuple_type": "is not a list", "dict_type": "is not a table", "model_type": "is not a table"}
"""Pydantic's types of faults, in our words."""


def _missing(model: type[ProgramSettings], sources: Sequence[_Source], key: str) -> Violation:
    option = sources[0].place(key)
    ways = (
        f"by {option}" if option.startswith("--") else f"by --set {key}=VALUE",
        *((f"by {variable}",) if (variable := variable_of(model, key)) else ()),
        "in the settings file",
    )
    place = sources[-1].place(key)
    return Violation(key if place == variable else place, f"is not set; give it {', '.join(ways[:-1])} or {ways[-1]}")


def _depth(values: Any, path: Sequence[str]) -> int:
    """Return how many keys of the path exist in the values."""
    for depth, key in enumerate(path):
        if not isinstance(values, Mapping) or key not in values:
            return depth
        values = values[key]
    return len(path)


def _place_of(model: type[BaseModel], fault: Any) -> tuple[list[str], Any]:
    """Return the path of a fault, and the annotation of the table that holds its last key.

    Of sections of several kinds pydantic also names the kind, which is no key, and it leaves out the key "type".
    """
    path: list[str] = []
    table = annotation = model
    for part in map(str, fault["loc"]):
        kinds = [each for each in alternatives(annotation) if _is_model(each) and "type" in each.model_fields]
        named = (each for each in kinds if part in get_args(each.model_fields["type"].annotation))
        if len(kinds) > 1 and (kind := next(named, None)) is not None:
            annotation = kind
        else:
            table, annotation = annotation, annotation_of(annotation, [part])
            path.append(part)
    return [*path, *(["type"] if fault["type"].startswith("union_tag") else [])], table


def _names_in(table: Any) -> Iterable[str]:
    """Return the settings in a section, empty if it is none."""
    return [name for each in alternatives(table) if _is_model(each) for name in each.model_fields]


def _is_unknown(name: str, known: Iterable[str]) -> str:
    nearest = get_close_matches(name, list(known), n=1)
    return f"is no setting; did you mean {nearest[0]}?" if nearest else "is no setting"
