"""The page of the settings of all programs, made from the settings classes and the parsers of command lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from enum import Enum
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, get_args, get_origin

import click
from pydantic import AwareDatetime, BaseModel, SecretStr
from pydantic.fields import FieldInfo

from pilotage.accounts import Quota
from pilotage.command_line.settings_options import SettingOption, default_text
from pilotage.settings import ProgramSettings, alternatives, variable_of
from pilotage_agents.main import program as agents
from pilotage_agents.settings import AgentSettings
from pilotage_pilot.command_line import program as pilot
from pilotage_pilot.settings import PilotSettings
from pilotage_server.main import program as server
from pilotage_server.settings import BrokerUrl, ClassAdExpression, GroupSortExpression, ServerSettings
from support.reference.markdown import code, prose, table

_HEAD = """# Settings

On this page you find every setting, with its default and its bounds. `make reference` writes it from the classes that
read the settings. Keys, variables and options change only
with an entry under "Breaking" in the [changes](../../CHANGELOG.md).

## Sources

Server, agents and pilot read their settings in the same way. The first source that has a setting counts:

1. the command line: an option named below, or `--set KEY=VALUE` for any setting, such as `--set lease_s=600` or
   `--set health.watch=false`;
2. the environment: the variable named below. A section or a list is JSON there, as in `--set`:
   `PILOTAGE_SERVER_HEALTH='{"watch": false}'`;
3. the file of `--config FILE`: TOML, or JSON if it begins with a brace; `-` is the standard input. A pilot's file
   is written by its director;
4. the default.

Sections are merged key by key; lists and texts are replaced. Relative paths start from the folder in which the
program was started. Those whose type says so start from the folder of the file if they are given in one.

An unknown key is an error, and so is an unknown variable with the prefix of the program. All faults are reported at
once, one line each: the place (`FILE: KEY`, the variable or the option), the reason, and what to do. The program
then exits with 2.

    $ pilotage-server run --config server.toml --check-settings
    pilotage-server: server.toml: lesae_s: is no setting; did you mean lease_s?

`--check-settings` reads the settings and exits with 0 or 2, without a start. `--show-settings` prints each setting
with its source, as `lease_s = 600.0  # --set lease_s`. Secrets are hidden; so are the values of `pilot` tables,
which may hold some. Give secrets in files or in the environment: other users see the command line of a process.

A type names the unit and the bounds: s = seconds, MiB = 1024² bytes.
"""

CLIENT_VARIABLES = {
    "PILOTAGE_SERVER": ("--server", "The server, HOST:PORT, or several with commas."),
    "PILOTAGE_TOKEN": ("--token-file", "Your token; the option names a file with it."),
    "PILOTAGE_CONTEXT": (
        "--context",
        "One of the servers that this machine has joined; `pilotage context list` shows them.",
    ),
    "PILOTAGE_CA": ("--ca-file", "A file with the authority of the server's certificate (PEM)."),
    "PILOTAGE_DATA": ("--data", "The data folder of `pilotage up`; default: `~/.local/share/pilotage`."),
    "PILOTAGE_CONDOR_RETURN": ("", "`no` = HTCondor's commands fetch no output of jobs that have ended."),
    "PILOTAGE_TEMPLATES": ("--templates", "The folder of a site's own job templates."),
}
"""The variables that the command line and the Python API read, with their options and meanings."""

_CLIENT = """## Command line and Python API

`pilotage` and the Python API read these. [Server and token](command-line.md#server-and-token) says which source
counts. Times are options of the commands, such as `--patience`.
"""


class _Program(NamedTuple):
    """A program: its title, the class of its settings, and its commands."""

    title: str
    name: str
    model: type[ProgramSettings]
    commands: click.Group


PROGRAMS = (
    _Program("Server", "pilotage-server", ServerSettings, server),
    _Program("Agents", "pilotage-agents", AgentSettings, agents),
    _Program("Pilot", "pilotage-pilot", PilotSettings, pilot),
)


def page() -> str:
    """Return the text of the page."""
    lines = [_HEAD]
    for program in PROGRAMS:
        lines += _program(program)
    rows = [(code(name), code(option) if option else "", text) for name, (option, text) in CLIENT_VARIABLES.items()]
    return "\n".join([*lines, _CLIENT, *table(("variable", "option", "meaning"), rows)])


def sections(model: type[BaseModel]) -> dict[type[BaseModel], list[str]]:
    """Return the sections below a class with all their keys, such as `batch_systems.NAME`, in order."""
    found: dict[type[BaseModel], list[str]] = {}
    for key, section in _sections_below(model, ""):
        found.setdefault(section, []).append(key)
    return found


def _sections_below(model: type[BaseModel], above: str) -> Iterator[tuple[str, type[BaseModel]]]:
    for name, field in model.model_fields.items():
        for key, section in _sections_in(field.rebuild_annotation(), f"{above}{name}"):
            yield key, section
            yield from _sections_below(section, f"{key}.")


def _sections_in(annotation: Any, key: str) -> Iterator[tuple[str, type[BaseModel]]]:
    for each in alternatives(annotation):
        if isinstance(each, type) and issubclass(each, BaseModel):
            yield key, each
        elif get_origin(each) is dict:
            yield from _sections_in(get_args(each)[1], f"{key}.NAME")
        elif get_origin(each) is tuple:
            yield from _sections_in(get_args(each)[0], key)


def options_of(group: click.Group) -> Mapping[str, str]:
    """Return the option of each setting that has one, of all commands of a program."""
    found: dict[str, str] = {}
    for command in group.commands.values():
        found |= {each.key: each.opts[-1] for each in command.params if isinstance(each, SettingOption) and each.key}
        found |= options_of(command) if isinstance(command, click.Group) else {}
    return found


def _program(program: _Program) -> list[str]:
    options = options_of(program.commands)
    lines = [
        f"## {program.title}",
        "",
        f"`{program.name}`; each variable begins with `{program.model.model_config.get('env_prefix')}`.",
        "",
        *_table(program.model, "", options, program.model),
    ]
    for section, keys in sections(program.model).items():
        lines += [f"### {_title(section, keys[0])}", ""]
        also = f" Also {code(*keys[1:])}." if keys[1:] else ""
        lines += [f"{prose(section.__doc__ or '')}{also}", ""]
        lines += _table(section, f"{keys[0]}.", options, None)
    return lines


def _title(section: type[BaseModel], key: str) -> str:
    kind = section.model_fields.get("type")
    values = get_args(kind.annotation) if kind is not None else ()
    return f"`{key}`, type `{values[0]}`" if values else f"`{key}`"


def _table(
    section: type[BaseModel], above: str, options: Mapping[str, str], program: type[ProgramSettings] | None
) -> list[str]:
    rows = []
    for name, field in section.model_fields.items():
        names = [name, *([variable_of(program, name)] if program else [])]
        names += [options[key]] if (key := f"{above}{name}") in options else []
        cells = ("<br>".join(map(code, names)), type_text(name, field), _default(field), prose(field.description or ""))
        rows.append(cells)
    return table(("setting", "type", "default", "meaning"), rows)


def _default(field: FieldInfo) -> str:
    text = "required" if field.is_required() else default_text(field)
    return text if text in ("required", "none", "") else code(text)


_NAMES: Mapping[Any, str] = {
    str: "text",
    int: "integer",
    float: "number",
    bool: "true or false",
    Path: "path",
    SecretStr: "secret text",
    datetime: "time",
    AwareDatetime: "time with its zone",
    IPv4Network: "network",
    IPv6Network: "network",
    Quota: "number or text",
    Any: "any value",
    ClassAdExpression: "ClassAd expression",
    GroupSortExpression: "ClassAd expression",
    BrokerUrl: "secret URL",
}
_NEW_LINE = r"\n"
_UNITS = {"s": "s", "mib": "MiB", "bytes": "bytes"}
"""Units by the words of names."""


def type_text(name: str, field: FieldInfo) -> str:
    """Return the type of a setting with unit and bounds; raises KeyError for an unknown type."""
    annotation = field.rebuild_annotation()
    unit = next((f" in {unit}" for word, unit in _UNITS.items() if word in name.split("_")), "")
    kind, bounds = _type_and_bounds(annotation)
    return ", ".join(filter(None, (kind + unit, bounds)))


def _type_and_bounds(annotation: Any) -> tuple[str, str]:
    if annotation in _NAMES:
        return _NAMES[annotation], ""
    if get_origin(annotation) is Annotated:
        inner, *metadata = get_args(annotation)
        kind, bounds = _type_and_bounds(inner)
        if any(type(each).__name__ == "_FromFile" for each in metadata):
            kind = f"{kind}, in a file from its folder"
        return kind, ", ".join(filter(None, (bounds, _bounds(list(_constraints(metadata)), kind))))
    if len(alternatives(annotation)) > 1:
        parts = [_type_and_bounds(each) for each in get_args(annotation) if each is not type(None)]
        kinds, bounds_of = dict.fromkeys(kind for kind, _ in parts), dict.fromkeys(each for _, each in parts if each)
        return " or ".join(kinds), ", ".join(bounds_of)
    return _compound(annotation), ""


def _compound(annotation: Any) -> str:
    arguments = get_args(annotation)
    if get_origin(annotation) is tuple:
        kind, bounds = _type_and_bounds(arguments[0])
        many = "list" if arguments[-1] is Ellipsis else f"list of {len(arguments)}"
        return f"{many}: {kind}" + (f" ({bounds})" if bounds else "")
    if get_origin(annotation) is dict:
        kind, bounds = _type_and_bounds(arguments[1])
        return f"table: {kind}" + (f" ({bounds})" if bounds else "")
    if get_origin(annotation) is Literal:
        return " or ".join(code(each) for each in arguments)
    if issubclass(annotation, Enum):
        return " or ".join(code(each.value) for each in annotation)
    if issubclass(annotation, BaseModel):
        return "section"
    raise KeyError(annotation)


def _constraints(metadata: list[Any]) -> Iterator[Any]:
    for each in metadata:
        yield from each.metadata if isinstance(each, FieldInfo) else (each,)


def _bounds(constraints: list[Any], kind: str) -> str:
    """Return the bounds as text, such as "1 to 3600"."""
    found: dict[str, Any] = {}
    for each in constraints:
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern"):
            if (value := getattr(each, name, None)) is not None:
                found[name] = value
    lengths = [found.get("min_length"), found.get("max_length")]
    texts = []
    if "ge" in found and "le" in found:
        texts.append(f"{_number(found['ge'])} to {_number(found['le'])}")
    else:
        texts += [f"above {_number(found['gt'])}"] if "gt" in found else []
        texts += [f"at least {_number(found['ge'])}"] if "ge" in found else []
        texts += [f"at most {_number(found['le'])}"] if "le" in found else []
        texts += [f"below {_number(found['lt'])}"] if "lt" in found else []
    if kind.startswith(("list", "table")):
        texts += [f"{lengths[0]} or more"] if lengths[0] else []
        texts += [f"at most {lengths[1]}"] if lengths[1] else []
    else:
        texts += ["not empty"] if lengths[0] else []
        texts += [f"at most {lengths[1]} characters"] if lengths[1] else []
    texts += [f"like {code(found['pattern'].replace(chr(10), _NEW_LINE))}"] if "pattern" in found else []
    return ", ".join(texts)


def _number(value: float) -> str:
    return str(int(value) if value == int(value) else value)
