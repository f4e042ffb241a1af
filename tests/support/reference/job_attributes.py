"""The page of job attributes, made from the readers' tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pilotage_client.readers.jdl import JDL_ATTRIBUTES
from pilotage_client.readers.submit_commands import CUSTOM_ATTRIBUTES, SUBMIT_COMMANDS
from pilotage_client.readers.support import KnownAttribute, Support
from pilotage_client.workflows.dag_statements import DAG_STATEMENTS
from support.reference.markdown import table

_HEAD = """# Attributes of job files

On this page you find what happens to each attribute of a job file. `make reference` writes it from the tables of the
readers. [Job languages](job-languages.md) describes
the languages, [unsupported statements](../how-to/unsupported-statements.md) what to do about a refused file.

Each known attribute has one of three classes:

- **Done**: it has the effect that the table names.
- **Harmless**: it is kept as an attribute of the job and has no other effect. A warning says so if one may be expected.
- **Refused**: the job would not be the one that the file describes, so the file is not submitted.
  `--ignore-unsupported` ignores such statements. A value that asks for nothing, such as `false` or `0`, is accepted.

Other names are accepted: as macros in submit files, and as attributes of the job, with a warning that names a similar
known one. An attribute of a job may be a text, a number, true, false or a list of these. HTCondor's custom resources
(`request_NAME`) are refused.
"""

_CLASSES = {Support.DONE: "done", Support.HARMLESS: "harmless", Support.REFUSED: "refused"}


def page() -> str:
    """Return the text of the page."""
    return "\n".join(
        [
            _HEAD,
            *_section("Commands of submit files", "command", SUBMIT_COMMANDS),
            *_section("Custom attributes of submit files (`+Name`, `MY.Name`)", "attribute", CUSTOM_ATTRIBUTES),
            *_section("Statements of DAG files", "statement", DAG_STATEMENTS),
            *_section("Attributes of JDL (DIRAC, gLite, AliEn) and CFG", "attribute", JDL_ATTRIBUTES),
        ]
    )


def _section(title: str, what: str, attributes: Iterable[KnownAttribute[Any]]) -> list[str]:
    known = list(attributes)
    lines = [f"## {title}", ""]
    for support, name in _CLASSES.items():
        rows = [each for each in known if each.support is support]
        if rows:
            cells = ((", ".join(f"`{name}`" for name in each.names), each.note) for each in rows)
            lines += [f"### {name.capitalize()}", "", *table((what, _COLUMNS[support]), cells)]
    return lines


_COLUMNS = {
    Support.DONE: "becomes",
    Support.HARMLESS: "why it may be ignored",
    Support.REFUSED: "why it is refused, and what to do",
}
