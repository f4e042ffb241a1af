"""Why an expression is not true: which of the clauses that it joins by && stand in the way, and on what values.

Rules
-----
Clauses are taken apart by the outline only where that cannot change a meaning: && at the outermost level, with
nothing there that binds looser. What a clause comes to is said by the library; only True is no obstacle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pilotage.classad_evaluation import Ad, NoValue, Result, compile_expression, evaluate, is_true
from pilotage.classad_references import references
from pilotage.classad_text import Kind, Token, tokens
from pilotage.classads import Expression, InvalidClassAdError, quoted
from pilotage.folding import fold

_MOST_VALUES = 4
_LONGEST_CLAUSE = 120
_LOOSER = frozenset({"||", "?"})
"""What binds looser than && in the ClassAd language."""

_LONG_OPERATORS = frozenset({"&&", "||", "=?", "=?="})
"""Operators of several characters, and how they begin."""


def clauses(text: str) -> tuple[str, ...]:
    """Return the parts of an expression that all have to be true for it to be true, in their order."""
    inner = _unwrapped(text)
    parts = _joined_by_and(inner)
    if len(parts) == 1:
        return (inner,)
    return tuple(clause for part in parts for clause in clauses(part))


@dataclass(frozen=True, slots=True)
class FailingClause:
    """A clause that is not true: what it comes to, in words, and the values that it looks at; "" = it shows them."""

    claim: str
    seen: str = ""

    def __str__(self) -> str:
        """Return both for people."""
        return f"{self.claim} ({self.seen})" if self.seen else self.claim


def failing_clauses(text: str, my: Ad, target: Ad | None = None) -> list[FailingClause]:
    """Return which clauses are not true in these ads, in their order; none = the expression is true."""
    results = ((clause, _value_of(clause, my, target)) for clause in clauses(text))
    return [_told(clause, result, my, target) for clause, result in results if not is_true(result)]


def _value_of(text: str, my: Ad, target: Ad | None) -> Result:
    try:
        return evaluate(compile_expression(text), my, target)
    except InvalidClassAdError:
        return NoValue.ERROR


def _told(clause: str, result: Result, my: Ad, target: Ad | None) -> FailingClause:
    shown = " ".join(_with_signs(clause).split())
    if len(shown) > _LONGEST_CLAUSE:
        shown = shown[:_LONGEST_CLAUSE] + "…"
    seen = ", ".join(f"{name} = {value}" for name, value in _values_seen(clause, my, target))
    return FailingClause(f"{shown} is {_shown(result)}", seen)


def _with_signs(clause: str) -> str:
    """Return the clause with =?= and =!=, which the library writes as words that would read on into ours."""
    signs = {"is": "=?=", "isnt": "=!="}
    return "".join(signs.get(fold(token.text), token.text) for token in tokens(clause))


def _values_seen(clause: str, my: Ad, target: Ad | None) -> list[tuple[str, str]]:
    """Return the first attributes that a clause refers to, as it spells them, with their values."""
    referred = references(clause)
    known = referred.my | referred.target | referred.free
    seen: dict[str, tuple[str, str]] = {}
    for token in tokens(clause):
        refers = token.kind is Kind.WORD and fold(token.text.rpartition(".")[2]) in known
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


def _unwrapped(text: str) -> str:
    """Return the text without brackets that enclose all of it, and without blanks around it."""
    inner = text.strip()
    while (whole := [token for token in tokens(inner) if not token.is_blank]) and _encloses(whole):
        inner = inner[whole[0].end : whole[-1].start].strip()
    return inner


def _encloses(whole: list[Token]) -> bool:
    if whole[0].text != "(" or whole[-1].text != ")":
        return False
    depth = 0
    for token in whole[:-1]:
        depth += (token.kind is Kind.OPEN) - (token.kind is Kind.CLOSE)
        if depth == 0:
            return False
    return len(whole) > 2


def _joined_by_and(text: str) -> list[str]:
    """Return the parts between && at the outermost level; the whole where something there binds looser."""
    cuts: list[tuple[int, int]] = []
    depth = 0
    for token in _operators_joined(tokens(text)):
        depth += (token.kind is Kind.OPEN) - (token.kind is Kind.CLOSE)
        if depth == 0 and token.text in _LOOSER:
            return [text]
        if depth == 0 and token.text == "&&":
            cuts.append((token.start, token.end))
    starts = [0, *(end for _, end in cuts)]
    ends = [*(start for start, _ in cuts), len(text)]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def _operators_joined(pieces: Iterable[Token]) -> Iterator[Token]:
    """Yield the tokens, those of an operator of several characters (&&, ||, =?=) as one."""
    pending: Token | None = None
    for piece in pieces:
        if pending is not None and piece.kind is Kind.OTHER and pending.text + piece.text in _LONG_OPERATORS:
            pending = replace(pending, text=pending.text + piece.text)
            continue
        if pending is not None:
            yield pending
        pending = piece
    if pending is not None:
        yield pending
