"""The texts that a resource tree can be written in: JSON, TOML, YAML and DIRAC's CFG.

A new format is a module with one function `read_…(text) -> mapping` that raises InvalidTreeError with the
line of a syntax error, a member of `TreeFormat`, and a row in the tables of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

from pilotage.errors import InvalidTreeError, Violation
from pilotage.tree_formats.cfg_tree import read_cfg_tree
from pilotage.tree_formats.json_text import read_json
from pilotage.tree_formats.toml_text import read_toml
from pilotage.tree_formats.yaml_text import read_yaml

__all__ = ["TreeFormat", "read_tree_text", "tree_format"]


class TreeFormat(StrEnum):
    """The formats, by the ending of a file's name."""

    JSON = "json"
    TOML = "toml"
    YAML = "yaml"
    CFG = "cfg"


_ENDINGS: Mapping[str, TreeFormat] = MappingProxyType(
    {**{known.value: known for known in TreeFormat}, "yml": TreeFormat.YAML}
)

_READERS: Mapping[TreeFormat, Callable[[str], Mapping[str, object]]] = MappingProxyType(
    {
        TreeFormat.JSON: read_json,
        TreeFormat.TOML: read_toml,
        TreeFormat.YAML: read_yaml,
        TreeFormat.CFG: read_cfg_tree,
    }
)


def tree_format(format_or_filename: str) -> TreeFormat:
    """Return the format that a name or the ending of a file's name says.

    Raises
    ------
    InvalidTreeError
        When it says none that is known.
    """
    ending = format_or_filename.rpartition(".")[2].lower()
    found = _ENDINGS.get(ending)
    if found is None:
        known = ", ".join(TreeFormat)
        why = f'"{format_or_filename}" does not say its format: a tree is written in one of {known}'
        raise InvalidTreeError(Violation("", why))
    return found


def read_tree_text(text: str, format_or_filename: str) -> Mapping[str, object]:
    """Return the plain data of a tree's text, for `pilotage.tree_reading.tree_from_mapping`.

    Raises
    ------
    InvalidTreeError
        For a syntax error (`where` = "line 3, column 7") or an unknown format.
    """
    return _READERS[tree_format(format_or_filename)](text.removeprefix("\ufeff"))
