"""Options of command lines that give settings: the same names, texts and faults in all programs.

Named options are for settings that are often given; `--set KEY=VALUE` gives any other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pilotage.errors import InvalidInputError
from pilotage.settings import ProgramSettings, alternatives, annotation_of, settings_sources, variable_of

Program = TypeVar("Program", bound=ProgramSettings)


def add_settings_options(
    parser: argparse.ArgumentParser,
    model: type[ProgramSettings],
    keys: Sequence[str] = (),
    names: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Add `--config`, `--set`, `--show-settings`, `--check-settings`, and an option for each of the dotted `keys`.

    The option of `drain_controller.setpoint` is `--setpoint` unless `names` has others; the last name is the one that
    faults show. `read_settings_options` reads them.
    """
    group = parser.add_argument_group(
        "settings", f"options win over the environment ({variable_of(model, 'name')[:-4]}*), which wins over the file"
    )
    group.add_argument("--config", type=Path, metavar="FILE", help="settings, TOML or JSON; - = the standard input")
    group.add_argument(
        "--set",
        dest="assignments",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any setting, such as log_level=debug or section.key=5; lists and tables are JSON; repeatable",
    )
    group.add_argument("--show-settings", action="store_true", help="print the settings with their sources, and exit")
    group.add_argument("--check-settings", action="store_true", help="check the settings, and exit")
    flags = {}
    for key in keys:
        option = f"--{key.rpartition('.')[2].replace('_', '-')}"
        options = (names or {}).get(key, (option,))
        flags[key] = options[-1]
        is_list = any(get_origin(each) is tuple for each in alternatives(annotation_of(model, key.split("."))))
        group.add_argument(
            *options,
            dest=key,
            action="append" if is_list else "store",
            metavar=option.rpartition("-")[2].upper(),
            help=_help(model, key, is_list=is_list).replace("%", "%%"),
        )
    parser.set_defaults(setting_flags=flags)


def read_settings_options(model: type[Program], parsed: argparse.Namespace) -> Program:
    """Return the settings of a command line, of the environment and of the file.

    Raises
    ------
    InvalidInputError
        With every fault and its place.
    SystemExit
        After `--show-settings`, which prints them, and after `--check-settings`.
    """
    given: dict[str, Any] = {}
    for key in parsed.setting_flags:
        if (value := getattr(parsed, key)) is not None:
            *tables, name = key.split(".")
            table = given
            for each in tables:
                table = table.setdefault(each, {})
            table[name] = value
    sources = settings_sources(model, parsed.config, given, flags=parsed.setting_flags, assignments=parsed.assignments)
    settings = sources.load()
    if parsed.show_settings:
        sys.stdout.writelines(f"{line}\n" for line in sources.shown(settings))
    if parsed.show_settings or parsed.check_settings:
        raise SystemExit(0)
    return settings


def report_faults(program: str, error: InvalidInputError) -> None:
    """Write one line for each fault to the standard error: program, place, reason and what to do."""
    for violation in error.violations:
        sys.stderr.write(f"{program}: {' '.join(str(violation).splitlines())}\n")


def default_text(field: FieldInfo) -> str:
    """Return the default of a setting for people: JSON, "none", or "" for that of a section."""
    default = field.get_default(call_default_factory=True)
    if default is None:
        return "none"
    if isinstance(default, BaseModel):
        return ""
    if isinstance(default, float) and default.is_integer():
        default = int(default)
    text = json.dumps(default, default=str, ensure_ascii=False)
    return text.removeprefix('"').removesuffix('"') if isinstance(default, str) and default else text


def _help(model: type[ProgramSettings], key: str, *, is_list: bool) -> str:
    table, _, name = key.rpartition(".")
    (section,) = (
        each
        for each in alternatives(annotation_of(model, table.split(".") if table else []))
        if isinstance(each, type) and issubclass(each, BaseModel)
    )
    field = section.model_fields[name]
    what = (field.description or "").removesuffix(".")
    repeatable = "; repeatable" if is_list else ""
    default = "required" if field.is_required() else f"default: {default_text(field)}"
    variable = "" if table else f"; {variable_of(model, key)}"
    return f"{what}{repeatable} [{default}{variable}]"
