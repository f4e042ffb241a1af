"""Reads trees in YAML, without its surprising conversions.

Only null, true, false and plain decimal numbers are converted; all else is text: `NO`, `2026-01-01`, `1:30`, `010`.
Names are always text. A duplicate name in a mapping is an error, and so is a tag such as `!!set`. Aliases repeat
their content, so the size of a text with its aliases is limited.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Mapping
from typing import TYPE_CHECKING

import yaml

from pilotage.errors import InvalidTreeError, Violation
from pilotage.resources.formats.plain import as_section, syntax_error, too_deep, too_long_a_number

if TYPE_CHECKING:
    from yaml import SafeLoader as _Base
else:
    # libyaml's parser is ten times as fast; PyYAML may be built without it.
    _Base = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

_DEEPEST = 64
_MOST_VALUES = 500_000
_WHOLE = r"(?:0|[1-9][0-9]*)"

_PLAIN_VALUES = {
    "bool": (r"true|True|TRUE|false|False|FALSE", "tTfF"),
    "int": (rf"[-+]?{_WHOLE}", "-+0123456789"),
    "float": (rf"[-+]?(?:{_WHOLE}?\.[0-9]+|{_WHOLE}\.?)(?:[eE][-+]?[0-9]+)?", "-+0123456789."),
    "null": (r"~|null|Null|NULL|", "~nN"),
    "merge": (r"<<", "<"),
}
"""By type: the pattern of a plain scalar of this type, and its possible first characters."""


class _TreeLoader(_Base):
    """The safe loader with fewer conversions."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict[Hashable, object]:
        """Return a mapping whose names are text; raises ConstructorError for a duplicate name."""
        assert isinstance(node, yaml.MappingNode), "the loader calls this for mappings"
        _refuse_repetitions(node)
        self.flatten_mapping(node)
        return {_name(key): self.construct_object(value, deep=True) for key, value in node.value}


def _refuse_repetitions(node: yaml.MappingNode) -> None:
    # Before merge keys are resolved: a mapping may override names that it merges.
    seen: set[str] = set()
    for key, _ in node.value:
        name = _name(key)
        if name in seen:
            raise _refused(f'"{name}" stands twice in one mapping', key)
        seen.add(name)


def _name(key: yaml.Node) -> str:
    if not isinstance(key, yaml.ScalarNode):
        raise _refused("a name must be a text", key)
    return str(key.value)


def _refused(why: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, why, node.start_mark)


for _kind, (_pattern, _first) in _PLAIN_VALUES.items():
    _begins = [*_first, ""] if _kind == "null" else list(_first)
    _TreeLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_kind}", re.compile(rf"(?:{_pattern})\Z"), _begins)


def read_yaml(text: str) -> Mapping[str, object]:
    """Return the plain data of a tree in YAML; raises InvalidTreeError for a syntax error."""
    try:
        _check_limits(text)
        return as_section(yaml.load(text, Loader=_TreeLoader))  # noqa: S506 (derived from the safe loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = ", ".join(part for part in (error.context, error.problem) if part) or "this is not YAML"
        if mark is None:
            raise InvalidTreeError(Violation("", why)) from error
        raise syntax_error(why, mark.line + 1, mark.column + 1) from error
    except yaml.YAMLError as error:  # a control character
        raise InvalidTreeError(Violation("", f"this is not YAML: {' '.join(str(error).split())}")) from error
    except ValueError as error:
        raise too_long_a_number(text) from error


def _place(event: yaml.Event) -> tuple[int, int]:
    assert event.start_mark is not None, "the parser marks what it reads"
    return event.start_mark.line + 1, event.start_mark.column + 1


def _check_limits(text: str) -> None:
    # Deep nesting must be found here: libyaml builds nodes recursively, which would crash the process.
    size = _DocumentSize()
    for event in yaml.parse(text, Loader=_Base):
        size.add(event)
        if size.depth > _DEEPEST:
            raise too_deep(*_place(event))
        if size.values > _MOST_VALUES:
            raise syntax_error(f"more than {_MOST_VALUES:,} values, with those that aliases repeat", *_place(event))
        if isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent) and event.tag:
            why = f"a tag such as {event.tag} has no meaning in a tree"
            raise syntax_error(why, *_place(event))


class _DocumentSize:
    """The size of a text with its aliases, up to the last added event."""

    def __init__(self) -> None:
        self.values = 0
        """The number of scalars, lists and mappings, including those that aliases repeat."""
        self._open: list[tuple[str | None, int]] = []
        self._of_anchors: dict[str, int] = {}

    @property
    def depth(self) -> int:
        """The number of open lists and mappings."""
        return len(self._open)

    def add(self, event: yaml.Event) -> None:
        """Count one event of the parser."""
        if isinstance(event, yaml.CollectionStartEvent):
            self._open.append((event.anchor, self.values))
            self.values += 1
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = self._open.pop()
            self._name(anchor, self.values - before)
        elif isinstance(event, yaml.ScalarEvent):
            self._name(event.anchor, 1)
            self.values += 1
        elif isinstance(event, yaml.AliasEvent):
            self.values += self._of_anchors.get(event.anchor or "", 1)

    def _name(self, anchor: str | None, values: int) -> None:
        if anchor is not None:
            self._of_anchors[anchor] = values
