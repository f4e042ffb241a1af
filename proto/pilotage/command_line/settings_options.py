"""Options of command lines that give settings: the same names, texts and faults in all programs.

Named options are for settings that are often given; `--set KEY=VALUE` gives any other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from pilotage.settings import ProgramSettings, alternatives, annotation_of, settings_sources, variable_of

Program = TypeVar("Program", bound=ProgramSettings)


class SettingOption(click.Option):
    """An option that gives a setting; `key` is its dotted key, "" = the option is about all settings."""

    def __init__(self, *args: Any, key: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.key = key


class SettingsCommand(click.Command):
    """A command whose help shows the options of settings in a section of their own."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the sections."""
        for heading, is_setting in (("Options", False), ("Settings", True)):
            options = [each for each in self.get_params(ctx) if isinstance(each, SettingOption) is is_setting]
            if records := [record for each in options if (record := each.get_help_record(ctx)) is not None]:
                with formatter.section(heading):
                    formatter.write_dl(records)


def settings_options(
    model: type[Program], keys: Sequence[str] = (), names: Mapping[str, Sequence[str]] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that passes the settings to a command as its first argument, read from all their sources.

    It adds `--config`, `--set`, `--show-settings`, `--check-settings`, and an option for each of the dotted `keys`. The
    option of `drain_controller.setpoint` is `--setpoint` unless `names` has others; the last name is the one that
    faults show. The two options that show and check end the command before it does anything. Faults of settings raise
    InvalidInputError, with every fault and its place.
    """
    options = {key: _setting(model, key, (names or {}).get(key)) for key in keys}
    flags = {key: option.opts[-1] for key, option in options.items()}

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(command)
        def with_settings(
            config: Path | None,
            assignments: Sequence[str],
            show_settings: bool,
            check_settings: bool,
            **others: Any,
        ) -> Any:
            given: dict[str, Any] = {}
            for key, option in options.items():
                assert option.name is not None, "its name is given"
                if (value := others.pop(option.name)) not in (None, ()):
                    _put(given, key, value)
            sources = settings_sources(model, config, given, flags=flags, assignments=list(assignments))
            settings = sources.load()
            if show_settings:
                sys.stdout.writelines(f"{line}\n" for line in sources.shown(settings))
            if show_settings or check_settings:
                return 0
            return command(settings, **others)

        # Decorators of click add parameters from the last one in the help to the first.
        params = [*getattr(command, "__click_params__", []), *reversed([*_common_options(model), *options.values()])]
        with_settings.__click_params__ = params  # type: ignore[attr-defined]
        return with_settings

    return decorate


def params_of(decorated: Callable[..., Any]) -> list[click.Parameter]:
    """Return the parameters that decorators have added to a function, in the order of the help."""
    return list(reversed(getattr(decorated, "__click_params__", [])))


def _common_options(model: type[ProgramSettings]) -> list[SettingOption]:
    order = f"options win over the environment ({variable_of(model, 'name')[:-4]}*), which wins over the file"
    return [
        SettingOption(
            ["--config"],
            type=click.Path(path_type=Path, allow_dash=True),
            metavar="FILE",
            help=f"Settings, TOML or JSON; - = the standard input; {order}.",
        ),
        SettingOption(
            ["--set", "assignments"],
            multiple=True,
            metavar="KEY=VALUE",
            help="Any setting, such as log_level=debug or section.key=5; lists and tables are JSON; repeatable.",
        ),
        SettingOption(["--show-settings"], is_flag=True, help="Print the settings with their sources, and exit."),
        SettingOption(["--check-settings"], is_flag=True, help="Check the settings, and exit."),
    ]


def _setting(model: type[ProgramSettings], key: str, names: Sequence[str] | None) -> SettingOption:
    option = f"--{key.rpartition('.')[2].replace('_', '-')}"
    is_list = any(get_origin(each) is tuple for each in alternatives(annotation_of(model, key.split("."))))
    return SettingOption(
        [*(names or (option,)), key.replace(".", "__")],
        key=key,
        multiple=is_list,
        metavar=option.rpartition("-")[2].upper(),
        help=_help(model, key, is_list=is_list),
    )


def _put(given: dict[str, Any], key: str, value: object) -> None:
    """Put a value at a dotted key."""
    *tables, name = key.split(".")
    for each in tables:
        given = given.setdefault(each, {})
    given[name] = list(value) if isinstance(value, tuple) else value


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
