"""Explains why an expression is not true: which of the clauses joined by && fail, and with which values.

Rules
-----
An expression is split only where that cannot change its meaning: at && on the outermost level, if no operator
there binds looser. HTCondor's library evaluates each clause. Every result but True is a failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pilotage.classads.evaluation import Ad, NoValue, Result, compile_expression, evaluate, is_true
from pilotage.classads.library import Expression, InvalidClassAdError, quoted
from pilotage.classads.references import references
from pilotage.classads.tokens import Token, TokenKind, tokens
from pilotage.text import fold

_MOST_VALUES = 4
_LONGEST_CLAUSE = 120
_LOOSER = frozenset({"||", "?"})
"""Operators that bind looser than && in the ClassAd language."""

_LONG_OPERATORS = frozenset({"&&", "||", "=?", "=?="})
"""Operators of several characters, and their prefixes."""


def clauses(text: str) -> tuple[str, ...]:
    """Return the clauses that must all be true for the expression to be true, in order."""
    # Brackets that enclose all of the text are left out.
    inner = text.strip()
    while (whole := [token for token in tokens(inner) if not token.is_blank]) and _encloses(whole):
        inner = inner[whole[0].end : whole[-1].start].strip()
    parts = _joined_by_and(inner)
    if len(parts) == 1:
        return (inner,)
    return tuple(clause for part in parts for clause in clauses(part))


@dataclass(frozen=True, slots=True)
class FailingClause:
    """A clause that is not true, with its result in words.

    `values` lists the attributes that it refers to with their values; "" = `text` shows them already.
    """

    text: str
    values: str = ""

    def __str__(self) -> str:
        """Return the text with the values in brackets."""
        return f"{self.text} ({self.values})" if self.values else self.text


def failing_clauses(text: str, my: Ad, target: Ad | None = None) -> list[FailingClause]:
    """Return the clauses that are not true in these ads, in order; empty = the expression is true."""
    results = ((clause, _value_of(clause, my, target)) for clause in clauses(text))
    return [_failing_clause(clause, result, my, target) for clause, result in results if not is_true(result)]


def _value_of(text: str, my: Ad, target: Ad | None) -> Result:
    try:
        return evaluate(compile_expression(text), my, target)
    except InvalidClassAdError:
        return NoValue.ERROR


def _failing_clause(clause: str, result: Result, my: Ad, target: Ad | None) -> FailingClause:
    # The library writes these signs as words, which would run into our sentence.
    signs = {"is": "=?=", "isnt": "=!="}
    shown = " ".join("".join(signs.get(fold(token.text), token.text) for token in tokens(clause)).split())
    if len(shown) > _LONGEST_CLAUSE:
        shown = shown[:_LONGEST_CLAUSE] + "…"
    seen = ", ".join(f"{name} = {value}" for name, value in _referenced_values(clause, my, target))
    return FailingClause(f"{shown} is {_shown(result)}", seen)


def _referenced_values(clause: str, my: Ad, target: Ad | None) -> list[tuple[str, str]]:
    """Return the first attributes that a clause refers to, as spelled there, with their values."""
    referred = references(clause)
    known = referred.my | referred.target | referred.free
    seen: dict[str, tuple[str, str]] = {}
    for token in tokens(clause):
        refers = token.kind is TokenKind.WORD and fold(token.text.rpartition(".")[2]) in known
        if refers and fold(token.text) not in seen and len(seen) < _MOST_VALUES:
            seen[fold(token.text)] = (token.text, _shown(_value_of(token.text, my, target)))
    return [] if fold(clause.strip()) in seen else list(seen.values())


def _shown(value: Result) -> str:
    match value:
        case NoValue():
            return value.value
        case bool():
            return str(value).lower()
        case str():
            return quoted(value)
        case Expression(text):
            return text
        case _:
            return str(value)


def _encloses(whole: list[Token]) -> bool:
    if whole[0].text != "(" or whole[-1].text != ")":
        return False
    depth = 0
    for token in whole[:-1]:
        depth += (token.kind is TokenKind.OPEN) - (token.kind is TokenKind.CLOSE)
        if depth == 0:
            return False
    return len(whole) > 2


def _joined_by_and(text: str) -> list[str]:
    """Return the parts between && on the outermost level; the whole text if an operator there binds looser."""
    cuts: list[tuple[int, int]] = []
    depth = 0
    for token in _operators_joined(tokens(text)):
        depth += (token.kind is TokenKind.OPEN) - (token.kind is TokenKind.CLOSE)
        if depth == 0 and token.text in _LOOSER:
            return [text]
        if depth == 0 and token.text == "&&":
            cuts.append((token.start, token.end))
    starts = [0, *(end for _, end in cuts)]
    ends = [*(start for start, _ in cuts), len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def _operators_joined(pieces: Iterable[Token]) -> Iterator[Token]:
    """Yield the tokens, with the characters of an operator (&&, ||, =?=) joined into one token."""
    pending: Token | None = None
    for piece in pieces:
        if pending is not None and piece.kind is TokenKind.OTHER and pending.text + piece.text in _LONG_OPERATORS:
            pending = replace(pending, text=pending.text + piece.text)
            continue
        if pending is not None:
            yield pending
        pending = piece
    if pending is not None:
        yield pending
