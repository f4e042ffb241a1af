"""Requirements on a command line: NAME=VALUE, a comma makes a list, quotes make text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from pilotage.errors import InvalidRequirementsError, Violation
from pilotage.job_description import Scalar, Value
from pilotage.resources.parameters import ParameterDeclaration, ParameterDeclarations, ParameterType
from pilotage.text import fold, folded_set
from pilotage.units import SIZE, NotAnAmount, amount_of

_ITEM = re.compile(r"""\s*(?:"(?P<double>[^"]*)"|'(?P<single>[^']*)'|(?P<plain>[^,"']*))\s*(?P<comma>,)?""")
_QUANTITY = re.compile(r"[+-]?(\d+\.\d*|\.\d+|\d+)(e[+-]?\d+|\s*[kmgt](i?b)?)?", re.IGNORECASE | re.ASCII)
_FLAGS = {"true": True, "false": False}
_TEXT_TYPES = frozenset({ParameterType.VERSION, ParameterType.TAGS})
"""Types whose values stay texts even if they look like numbers: version 2.10 is not 2.1."""


def read_require_options(options: Iterable[str], declarations: ParameterDeclarations) -> dict[str, Value]:
    """Return a Requirements section; numbers, sizes with units and booleans are converted, all else is text.

    A number with a unit is converted to the base unit of the declaration; without a declaration it is a size in MiB.

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
            raise InvalidRequirementsError(Violation(option, "is not a requirement; write NAME=VALUE"))
        if fold(name) in folded_set(section):
            raise InvalidRequirementsError(Violation(name, "is required twice; write a list with commas"))
        items = [_item(match, declarations.get(name)) for match in _matches(name, text)]
        section[name] = items[0] if len(items) == 1 else tuple(item for item in items if item != "")
    return section


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


def _item(match: re.Match[str], declaration: ParameterDeclaration | None) -> Scalar:
    quoted = match["double"] if match["double"] is not None else match["single"]
    if quoted is not None:
        return quoted
    plain = match["plain"].strip()
    if declaration is None:
        return _typed(plain, SIZE.base) if _QUANTITY.fullmatch(plain) else _FLAGS.get(fold(plain), plain)
    return plain if declaration.type in _TEXT_TYPES else _typed(plain, declaration.unit)


def _typed(text: str, unit: str | None) -> Scalar:
    amount = amount_of(text, unit)
    return _FLAGS.get(fold(text), text) if isinstance(amount, NotAnAmount) else amount
