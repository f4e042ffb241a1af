"""Requirements on a command line: NAME=VALUE, a comma makes a list, quotes make text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pilotage.errors import InvalidRequirementsError, Violation
from pilotage.folding import fold
from pilotage.job_description import Scalar, Value
from pilotage.parameters import ParameterDeclarations, ParameterType
from pilotage.resources import parse_size

_ITEM = re.compile(r"""\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<plain>[^,"']*))\s*(?P<comma>,)?""")
_INTEGER = re.compile(r"[+-]?\d+$")
_NUMBER = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)([eE][+-]?\d+)?$")
_SIZE = re.compile(r"(\d+\.\d*|\.\d+|\d+)\s*[kmgt](i?b)?$", re.IGNORECASE)
_AS_WRITTEN = frozenset({ParameterType.VERSION, ParameterType.TAGS})
"""Types whose values are texts even where they look like numbers: version 2.10 is not 2.1."""


def read_require_options(options: Iterable[str], declarations: ParameterDeclarations) -> dict[str, Value]:
    """Return a Requirements section; sizes with units become MiB, numbers and booleans are typed.

    Raises
    ------
    InvalidRequirementsError
        An option has no "=", an empty name, an unclosed quote, or a name that another option has.
    """
    section: dict[str, Value] = {}
    for option in options:
        name, equals, text = option.partition("=")
        name = name.strip()
        if not equals or not name:
            raise InvalidRequirementsError(Violation(option, "is no requirement; write NAME=VALUE"))
        if fold(name) in {fold(known) for known in section}:
            raise InvalidRequirementsError(Violation(name, "is required twice; write a list with commas"))
        declared = declarations.get(name)
        section[name] = _value(name, text, declared.type if declared else None)
    return section


def _value(name: str, text: str, declared: ParameterType | None) -> Value:
    items = [_item(match, declared) for match in _matches(name, text)]
    if len(items) == 1:
        return items[0]
    return tuple(item for item in items if item != "")


def _matches(name: str, text: str) -> Iterator[re.Match[str]]:
    position = 0
    while True:
        match = _ITEM.match(text, position)
        if match is None or (not match["comma"] and match.end() != len(text)):
            raise InvalidRequirementsError(Violation(name, f"cannot be read from here: {text[position:]}"))
        yield match
        if not match["comma"]:
            return
        position = match.end()


def _item(match: re.Match[str], declared: ParameterType | None) -> Scalar:
    quoted = match["double"] if match["double"] is not None else match["single"]
    if quoted is not None:
        return quoted
    plain = match["plain"].strip()
    return plain if declared in _AS_WRITTEN else _typed(plain, sizes=declared is not ParameterType.VALUE)


def _typed(text: str, *, sizes: bool) -> Scalar:
    if text.lower() in {"true", "false"}:
        return text.lower() == "true"
    if _INTEGER.match(text):
        return int(text)
    if _NUMBER.match(text):
        return float(text)
    return parse_size(text) if sizes and _SIZE.match(text) else text
