"""Bounds on the expressions that users bring: how long and deep they are, and what could keep the library busy.

Rules
-----
Read from the outline alone. The library cannot be stopped once it evaluates, so what multiplies its work or its
texts again and again is refused before: such functions inside one another, and eval of what is only made up then.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from pilotage.classad_patterns import patterns_fault
from pilotage.classad_text import Kind, Token, calls, nesting, tokens

LARGEST_EXPRESSION = 4096
"""Bytes of an expression that a user may bring (DESIGN §7)."""

DEEPEST_EXPRESSION = 50
"""How deep its brackets may nest."""

REPEATING = frozenset({"evalineachcontext", "countmatches"})
"""Functions that evaluate an expression once for every element of a list."""

GROWING = frozenset({"replaceall", "regexps"})
"""Functions that put a text into another as often as they find a third."""

MULTIPLYING = REPEATING | GROWING


def bounds_fault(text: str) -> str | None:
    """Return why users may not bring the expression `text`, None = they may as far as its outline shows."""
    size, depth = len(text.encode()), nesting(text)
    if size > LARGEST_EXPRESSION:
        return f"it is {size} bytes long, at most {LARGEST_EXPRESSION} are allowed"
    if depth > DEEPEST_EXPRESSION:
        return f"its brackets nest {depth} deep, at most {DEEPEST_EXPRESSION} are allowed"
    if any(token.kind is Kind.QUOTED_NAME and "\\" in token.text for token in tokens(text)):
        return "a quoted name has a backslash"
    return _fault_of_calls(text)


def evaluated_texts(text: str) -> Iterator[str | None]:
    """Yield the text that each eval evaluates; None = it is not written there, only made up then."""
    spoken = [token for token in tokens(text) if not token.is_blank]
    for place, (token, following) in enumerate(pairwise(spoken)):
        if token.name == "eval" and following.text == "(":
            yield _only_text(spoken[place + 2 : place + 4])


def _fault_of_calls(text: str) -> str | None:
    for evaluated in evaluated_texts(text):
        if evaluated is None:
            return "eval is allowed of a plain text only, as what it would look at cannot be told otherwise"
        fault = bounds_fault(evaluated)
        if fault is not None:
            return f'in eval("{evaluated}"): {fault}'
        if "random" in calls(evaluated) or any(name in MULTIPLYING for name in calls(evaluated)):
            return f'eval("{evaluated}") hides what it calls'
    return patterns_fault(text) or _fault_of_multiplying(text)


def _fault_of_multiplying(text: str) -> str | None:
    """Return which function multiplies what another one has multiplied already."""
    around: list[str] = []  # for each open bracket the multiplying function that it stands in, "" = in none
    called = ""
    for token in tokens(text):
        if token.is_blank:
            continue
        if token.kind is Kind.OPEN:
            inside = around[-1] if around else ""
            multiplies = called if token.text == "(" and called in MULTIPLYING else ""
            if inside and multiplies:
                return f"{multiplies} inside {inside} could be more work than there is time for"
            around.append(inside or multiplies)
        elif token.kind is Kind.CLOSE and around:
            around.pop()
        called = token.name
    return None


def _only_text(argument: list[Token]) -> str | None:
    """Return the text of an argument that is one, and ends there; one with a backslash is none that is plain."""
    is_text = [token.kind for token in argument] == [Kind.STRING, Kind.CLOSE] and "\\" not in argument[0].text
    return argument[0].text[1:-1] if is_text else None
