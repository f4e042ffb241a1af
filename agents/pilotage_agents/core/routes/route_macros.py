"""Macros in the statements of a transform: `$(x)`, `$(x:default)`, `$INT(x)` and the like.

Rules
-----
What takes a macro's place is never looked through for macros again: it may be a user's word. A default may have macros
of its own. `$$(x)` is no macro of a transform: it asks for something of the slot that a job gets, and stays as it is.
Source: HTCondor manual, ClassAd transforms.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from pilotage.classads import InvalidClassAdError, parse_value
from pilotage.errors import Violation
from pilotage_agents.core.routes.route_table import InvalidRoutesError

_START = re.compile(r"(?<!\$)\$(?P<function>\w*)\(")
_NAME = re.compile(r"(?P<name>[A-Za-z_][\w.]*)(?P<end>[:)])")
_OF_THE_SLOT = re.compile(r"\$\$\(")
_DEEPEST_DEFAULTS = 8
_NUMBERS = {"INT": int, "REAL": float}
EVALUATING = frozenset({"STRING", *_NUMBERS})
"""Functions of what an attribute comes to, not of how it is written."""

_FUNCTIONS = EVALUATING | {"", "F"}


@dataclass(frozen=True, slots=True)
class Macro:
    """A reference to one: `text` is all of it; `default` None = it says none."""

    function: str
    name: str
    default: str | None
    text: str

    def worth(self, text: str) -> str:
        """Return what stands for it where its name stands for `text`; raises InvalidRoutesError."""
        if self.function == "F":
            return text.strip('"')
        return _number(self.function, text) if self.function in _NUMBERS else text


def has_macros(text: str) -> bool:
    """Return whether a text refers to macros."""
    return any(isinstance(piece, Macro) for piece in _pieces(text))


def asks_for_the_slot(text: str) -> bool:
    """Return whether a text has `$$(x)` in it."""
    return _OF_THE_SLOT.search(text) is not None


def replaced(text: str, replacement: Callable[[Macro], str | None], depth: int = 0) -> str:
    """Return the text with its macros replaced, an innermost default first; None = the macro stays.

    Raises
    ------
    InvalidRoutesError
        When one is of a form that is not known here, or stands too deep in the defaults of others.
    """
    if depth > _DEEPEST_DEFAULTS:
        raise _fault("macros stand too deep inside one another")
    return "".join(
        piece if isinstance(piece, str) else _replaced_one(piece, replacement, depth) for piece in _pieces(text)
    )


def known_replaced(text: str, known: Mapping[str, str]) -> str:
    """Return the text with the macros replaced that are `known`, by names in lower case."""

    def replacement(macro: Macro) -> str | None:
        value = known.get(macro.name.lower())
        return None if value is None else macro.worth(value)

    return replaced(text, replacement)


def _replaced_one(macro: Macro, replacement: Callable[[Macro], str | None], depth: int) -> str:
    if macro.default is not None:
        default = replaced(macro.default, replacement, depth + 1)
        macro = Macro(macro.function, macro.name, default, f"${macro.function}({macro.name}:{default})")
    said = replacement(macro)
    return macro.text if said is None else said


def _pieces(text: str) -> Iterator[str | Macro]:
    """Yield the text's macros and what stands between them."""
    place = 0
    while (start := _START.search(text, place)) is not None:
        yield text[place : start.start()]
        piece = _macro(text, start) or start.group()
        place = start.start() + len(piece if isinstance(piece, str) else piece.text)
        yield piece
    yield text[place:]


def _macro(text: str, start: re.Match[str]) -> Macro | None:
    """Return the macro that begins at `start`, None = it is none, such as `$(a b)`."""
    function, named = start["function"], _NAME.match(text, start.end())
    if function not in _FUNCTIONS:
        raise _fault(f"${function}() is not known here")
    if named is None and function:
        raise _fault(f"${function}() is followed by a name, or by a name and a default as in ${function}(name:default)")
    if named is None:
        return None
    if named["end"] == ")":
        return Macro(function, named["name"], None, text[start.start() : named.end()])
    end = _closing(text, named.end())
    return Macro(function, named["name"], text[named.end() : end], text[start.start() : end + 1])


def _closing(text: str, start: int) -> int:
    """Return the place of the bracket that closes a default which begins at `start`."""
    depth = 1
    for place in range(start, len(text)):
        depth += (text[place] == "(") - (text[place] == ")")
        if depth == 0:
            return place
    raise _fault(f"the default {text[start:][:20]} has no end")


def _number(function: str, text: str) -> str:
    try:
        value = parse_value(text)
    except InvalidClassAdError:
        value = text
    if not isinstance(value, int | float):
        raise _fault(f"{text} is not a number")
    return str(_NUMBERS[function](value))


def _fault(why: str) -> InvalidRoutesError:
    return InvalidRoutesError(Violation("", why))
