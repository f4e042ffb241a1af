"""How far an expression reaches into an ad: what it refers to there, and what that refers to in its turn.

Rules
-----
What is not sure to be out of reach is reached. A name that `eval` is to look up is known where the ad itself says it:
policies for whole machines write eval(strcat("slot", SlotID + 8, "_State")) for lack of arrays. Any other evaluation
of a text may refer to anything.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from pilotage.classad_evaluation import CURRENT_TIME, Ad, compile_expression, evaluate
from pilotage.classad_references import References, references
from pilotage.classad_text import Kind, Token, calls, tokens, with_time_from
from pilotage.classads import AdValue, Expression, InvalidClassAdError

Get: TypeAlias = "Callable[[str], AdValue | None]"
"""Returns what an ad says under a folded name; None = nothing."""

_REMEMBERED = 8192


@lru_cache(maxsize=_REMEMBERED)
def refers_to(text: str) -> References:
    """Return what an expression refers to, the time among it."""
    return references(with_time_from(CURRENT_TIME, text))


def refers_in(text: str, get: Get) -> References:
    """Return what an expression of this ad refers to, with the names that it evaluates there."""
    refers = refers_to(text)
    if not refers.is_dynamic:
        return refers
    parts = _without_evals(text)
    found = refers_to(parts.rest)
    for argument in parts.arguments:
        found |= _evaluated_names(argument, get)
    return refers if found.is_dynamic else found


def follow(refers: References, get: Get) -> tuple[dict[str, AdValue], References]:
    """Return all of an ad that is referred to, and what that refers to in its turn, with all the references."""
    return _follow(refers, get, lambda text: refers_in(text, get))


def _follow(
    refers: References, get: Get, refers_of: Callable[[str], References]
) -> tuple[dict[str, AdValue], References]:
    found: dict[str, AdValue] = {}
    looked_for: frozenset[str] = frozenset()
    while new := refers.in_my - looked_for:
        looked_for |= new
        values = {name: value for name in new if (value := get(name)) is not None}
        found |= values
        for text in expression_texts(values.values()):
            refers |= refers_of(text)
    return found, refers


@lru_cache(maxsize=_REMEMBERED)
def is_random(text: str) -> bool:
    """Whether an expression would be another each time."""
    return "random" in calls(text)


def are_literals(values: Iterable[AdValue]) -> bool:
    """Whether none of these values is an expression, or could hold one."""
    # The exact types first, for many: whether something is a Mapping takes ten times as long to find out.
    return all(type(value) in _LITERALS or not isinstance(value, _HOLDERS) for value in values)


_LITERALS = frozenset({str, int, float, bool})
_HOLDERS = (Expression, tuple, Mapping)


def expression_texts(values: Iterable[AdValue]) -> Iterator[str]:
    """Yield the texts of the expressions in these values, however deep they lie."""
    for value in values:
        match value:
            case Expression(text):
                yield text
            case tuple():
                yield from expression_texts(value)
            case Mapping():
                yield from expression_texts(value.values())
            case _:
                pass


class _Parts(NamedTuple):
    """An expression in which each call of eval is a 0, and what these calls were given."""

    rest: str
    arguments: tuple[str, ...]


@lru_cache(maxsize=_REMEMBERED)
def _without_evals(text: str) -> _Parts:
    pieces = [token for token in tokens(with_time_from(CURRENT_TIME, text)) if not token.is_blank]
    rest: list[str] = []
    arguments: list[str] = []
    place = 0
    while place < len(pieces):
        end = _end_of_eval(pieces, place)
        if end is None:
            rest.append(pieces[place].text)
            place += 1
        else:
            rest.append("0")
            arguments.append(" ".join(token.text for token in pieces[place + 2 : end]))
            place = end + 1
    return _Parts(" ".join(rest), tuple(arguments))


def _end_of_eval(pieces: list[Token], place: int) -> int | None:
    """Return the place of the bracket that closes a call of eval that begins at `place`; None = none begins there."""
    if pieces[place].text.lower() != "eval" or [token.text for token in pieces[place + 1 : place + 2]] != ["("]:
        return None
    depth = 0
    for end in range(place + 1, len(pieces)):
        depth += (pieces[end].kind is Kind.OPEN) - (pieces[end].kind is Kind.CLOSE)
        if depth == 0:
            return end
    return None


_ANYTHING = References(is_dynamic=True)


def _evaluated_names(argument: str, get: Get) -> References:
    """Return what eval of the argument refers to: the argument's own references, and those of the text it comes to."""
    own = refers_to(argument)
    if own.is_dynamic or own.target:
        return _ANYTHING
    found, refers = _follow(own, get, refers_to)  # an argument that evaluates texts itself is not looked into
    if refers.is_dynamic or refers.target or refers.free - found.keys():
        return _ANYTHING
    try:
        text = evaluate(compile_expression(argument), Ad(found))
    except InvalidClassAdError:
        return _ANYTHING
    return own | refers_to(text) if isinstance(text, str) else own
