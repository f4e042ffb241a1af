"""The JSON Schemas of what commands print with --json, and the page that lists them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from typing_extensions import is_typeddict

from pilotage_client.cli.show.outputs import ErrorJson
from pilotage_client.cli.show.schemas import OUTPUTS, WITHOUT_JSON, error_schema, schema_of

FOLDER = "schemas"
ERROR = "error.json"


def files() -> Mapping[str, Callable[[], str]]:
    """Return the makers of all files, by name."""
    schemas = {f"{FOLDER}/{file_name(command)}": partial(_of_command, command) for command in OUTPUTS}
    return {**schemas, f"{FOLDER}/{ERROR}": lambda: _text(error_schema()), f"{FOLDER}/README.md": page}


def file_name(command: str) -> str:
    """Return the name of the file with the schema of a command."""
    return f"{command.replace(' ', '-')}.json"


def page() -> str:
    """Return the page that lists the schemas."""
    lines = [
        "# Schemas of JSON output",
        "",
        "With these [JSON Schemas](https://json-schema.org) you can check or read what commands print. They are",
        "written by `make reference` from the types in the client's `cli/show`. Each describes one object, which is",
        "one line of the output; [the command line](../command-line.md#json) says more about the keys. With",
        "`--columns` objects have the chosen keys only.",
        "",
        "| command | objects |",
        "|---|---|",
        *(f"| [`{command}`]({file_name(command)}) | {_what(command)} |" for command in OUTPUTS),
        f"| [errors of all commands]({ERROR}) | {_docs(ErrorJson)} |",
        "",
        *(f"`{command}` has no `--json`: {why}." for command, why in WITHOUT_JSON.items()),
    ]
    return "\n".join(lines) + "\n"


def _what(command: str) -> str:
    return " Or: ".join(_docs(each) for each in OUTPUTS[command])


def _docs(printed: Any) -> str:
    return printed.__doc__ if is_typeddict(printed) else "An object whose keys follow from the input."


def _of_command(command: str) -> str:
    return _text(schema_of(command))


def _text(schema: Mapping[str, Any]) -> str:
    return json.dumps(schema, indent=2) + "\n"
