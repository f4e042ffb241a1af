"""The text formats of a resource tree: JSON, TOML, YAML and DIRAC's CFG.

A new format needs a module with one function `read_…(text) -> mapping` that raises InvalidTreeError with the line of
a syntax error, a member of `TreeFormat`, and a row in the tables of this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from types import MappingProxyType

from pilotage.errors import InvalidTreeError, Violation
from pilotage.resources.formats.cfg import read_cfg_tree
from pilotage.resources.formats.plain import read_json, read_toml
from pilotage.resources.formats.yaml import read_yaml

__all__ = ["TreeFormat", "read_tree_text", "tree_format"]


class TreeFormat(StrEnum):
    """The formats, by file name suffix."""

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
    """Return the format of a format name or of a file name's suffix.

    Raises
    ------
    InvalidTreeError
        The format is unknown.
    """
    ending = format_or_filename.rpartition(".")[2].lower()
    found = _ENDINGS.get(ending)
    if found is None:
        known = ", ".join(TreeFormat)
        why = f'"{format_or_filename}" has no known format: the formats of a tree are {known}'
        raise InvalidTreeError(Violation("", why))
    return found


def read_tree_text(text: str, format_or_filename: str) -> Mapping[str, object]:
    """Return the plain data of a tree's text, for `pilotage.resources.tree_reader.tree_from_mapping`.

    Raises
    ------
    InvalidTreeError
        For a syntax error (`where` = "line 3, column 7") or an unknown format.
    """
    return _READERS[tree_format(format_or_filename)](text.removeprefix("\ufeff"))
