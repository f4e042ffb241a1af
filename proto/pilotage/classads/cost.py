r"""The cost of an evaluation, bounded before HTCondor's library does it: the library cannot be stopped.

Rules
-----
- Steps are look-ups of attributes, operands and calls; a step is about a tenth of a microsecond. The work on long texts
  and on patterns counts as steps too. The bounds hold for what the library does, so they overestimate.
- A name is found as the library finds it: in its own ad, else in the other one. Each mention counts the whole cost of
  the attribute, so that `A2 = A1 + A1` doubles it. An expression that refers to itself costs too much.
- The text that `eval` reads is computed first, at a bounded cost, and then followed like an attribute. It must be the
  same at each evaluation: random numbers are refused there, and clocks that are no attributes of the ads.
- Functions that evaluate an expression for each element of a list multiply its cost by the largest possible list.
  Functions that insert a text for every match or element multiply the lengths of texts.
- Names inside nested ads and whole ads (`MY`, `TARGET[Name]`) have no bound that can be found, and are refused.

Source: the functions of the ClassAd library and of HTCondor 25.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from pilotage.classads.library import AdValue, Expression
from pilotage.classads.limits import (
    LONGEST_SUBJECT,
    MULTIPLYING,
    REPEATED_WEIGHT,
    REPEATING,
    evaluated_arguments,
    pattern_calls,
)
from pilotage.classads.tokens import Token, TokenKind, calls, tokens
from pilotage.text import fold

Get: TypeAlias = "Callable[[str], AdValue | None]"
"""Returns the value of an attribute by folded name; None = missing."""

EvaluateIn: TypeAlias = "Callable[[str, int], object]"
"""Evaluates the argument of an eval in the ad with this index, and returns its value."""

MAX_STEPS = 10_000
"""Largest number of steps in one evaluation."""

MAX_CHARACTERS = 2**20
"""Largest length of a text that an evaluation could produce."""

MAX_STEPS_OF_EVAL = 1000
"""Largest number of steps to compute the text that an eval reads."""

LONGEST_CHAIN = 50
"""Largest depth to which attributes that mention each other are followed; those with a known cost do not count.

The library stops by itself at 400, with an error.
"""

STEPS_OF_PATTERN = 500
"""Cost of one regular expression match."""

STEPS_OF_SIMPLE_PATTERN = 100
"""Cost of a match of a short plain text without repetitions."""

STEPS_OF_USERS_PATTERN = 900
"""Cost of a match where a user wrote both pattern and text: users may try to keep the server busy."""

_CHARACTERS_OF_A_STEP = 100
_INSERTED_CHARACTERS_OF_A_STEP = 500
_NAME_IN_QUOTES = re.compile(r'"[A-Za-z_]\w*"', re.ASCII)
_SIMPLE_PATTERN = re.compile(r'"[^*+{]{0,100}"')
_LONGEST_NUMBER = 24
_ENOUGH = 10**12
"""Larger values are not distinguished."""

_GROWING = (MULTIPLYING - REPEATING) | {"replace", "join"}
_SPLITTING = frozenset({"split", "splitusername", "splitslotname", "argstolist", "stringlist"})
_LONGER = {"unparse": 2, "string": 2, "listtoargs": 2, "envv1tov2": 4, "mergeenvironment": 4, "formattime": 32}
"""Functions whose text is up to so many times as long as their arguments: they escape or format characters."""

_CHANGING = frozenset({"random", "time", "currenttime", "abstime", "daytime", "formattime"})
_REFUSED = {"userhome": "userHome asks the machine for its accounts"}
_MY, _TARGET = frozenset({"my", "self"}), frozenset({"target", "other"})
_WHOLE_ADS = _MY | _TARGET | {"parent", "toplevel", "root"}
_KEYWORDS = frozenset({"true", "false", "undefined", "error", "is", "isnt"})
_MAX_OUTLINES = 8192
_KNOWN_LENGTHS = 1024


class TooCostlyError(Exception):
    """The evaluation could exceed a bound."""


class Cost(NamedTuple):
    """Upper bounds: the steps of an evaluation, the characters and list elements of its value.

    `source` = the length of the expression's text, which unparse returns.
    """

    steps: int
    characters: int = _LONGEST_NUMBER
    elements: int = 0
    source: int = 0


_PLAIN = Cost(1)
"""The cost of a number, a boolean or a missing attribute."""


@dataclass(slots=True)
class _Sum:
    """The sum of the costs of what an expression mentions."""

    steps: int = 0
    characters: int = 0
    elements: int = 0
    source: int = 0

    def add(self, cost: Cost, times: int = 1) -> None:
        self.steps += times * cost.steps
        self.characters += times * cost.characters
        self.elements += times * cost.elements
        self.source += times * cost.source


def cost_fault(
    text: str, gets: Sequence[Get], evaluate_in: EvaluateIn | None = None, steps_of_pattern: int = STEPS_OF_PATTERN
) -> str | None:
    """Return why the expression costs too much in the first ad, with the second as TARGET; None = it does not.

    `evaluate_in` None = each eval has to read a plain text.
    """
    try:
        _CostOfEvaluation(gets, evaluate_in, steps_of_pattern).follow(text, _Place(0))
    except TooCostlyError as error:
        return str(error)
    return None


def expression_cost(text: str, gets: Sequence[Get], evaluate_in: EvaluateIn | None = None) -> Cost:
    """Return the cost of an expression; raises TooCostlyError."""
    return _CostOfEvaluation(gets, evaluate_in, STEPS_OF_PATTERN).follow(text, _Place(0))


class _Mention(NamedTuple):
    """An attribute that an expression mentions, folded; `scope` is my, target, free (my, else target) or both."""

    scope: str
    name: str


class _Outline(NamedTuple):
    """What an expression mentions and calls.

    `repeats` and `growth` are nesting depths of calls, `longer` is the largest product of the factors of nested calls.
    """

    mentions: tuple[tuple[_Mention, int], ...]
    evaluated: tuple[str, ...]
    operands: int
    called: tuple[str, ...]
    commas: int
    characters: int
    patterns: int
    simple_patterns: int
    repeats: int
    growth: int
    longer: int
    fault: str


@lru_cache(maxsize=_MAX_OUTLINES)
def _outline(text: str) -> _Outline:
    visible = _subscripts_as_scopes([token for token in tokens(text) if not token.is_blank])
    following = [*(token.text for token in visible[1:]), ""][: len(visible)]  # `eval()` evaluates an empty text
    called = tuple(token.name for token, after in zip(visible, following, strict=True) if after == "(" and token.name)
    words = [
        token
        for token, after in zip(visible, following, strict=True)
        if token.kind in (TokenKind.WORD, TokenKind.QUOTED_NAME) and after != "("
    ]
    strings = [token for token in visible if token.kind is TokenKind.STRING]
    shows_source = any(token.text == "{" for token in visible) or "string" in called
    has_loose_points = any(token.text.startswith(".") or token.text.endswith(".") for token in words)
    mentions = Counter(
        mention._replace(scope="both") if has_loose_points else mention
        for token in words
        for mention in _mentions(token)
    )
    repeats, growth, longer = _nested(visible)
    return _Outline(
        tuple(mentions.items()),
        tuple(evaluated_arguments(text)),
        1 + len(words) + len(strings) + len(called) + len(text) // 16,
        called,
        sum(token.kind is TokenKind.COMMA for token in visible),
        len(text) if shows_source else sum(len(token.text) for token in strings) + _LONGEST_NUMBER,
        *_patterns(text),
        repeats,
        growth,
        longer,
        _fault_of(visible, words, called),
    )


def _subscripts_as_scopes(visible: Sequence[Token]) -> list[Token]:
    """Return the tokens with `TARGET["name"]` as `TARGET.name`."""
    found: list[Token] = []
    index = 0
    while index < len(visible):
        token, (opening, name, closing) = visible[index], _three(visible, index + 1)
        is_whole_ad = token.kind is TokenKind.WORD and token.name in _MY | _TARGET and opening == "["
        if is_whole_ad and closing == "]" and _NAME_IN_QUOTES.fullmatch(name):
            found.append(replace(token, text=f"{token.text}.{name[1:-1]}"))
            index += 4
        else:
            found.append(token)
            index += 1
    return found


def _three(visible: Sequence[Token], start: int) -> tuple[str, str, str]:
    first, second, third, *_ = (*(token.text for token in visible[start : start + 3]), "", "", "")
    return first, second, third


def _patterns(text: str) -> tuple[int, int]:
    """Return the number of pattern matches, repeated ones by their weight: of any patterns, and of simple ones."""
    weights = [0, 0]
    for call in pattern_calls(text):
        is_simple = len(call.arguments[0]) == 1 and bool(_SIMPLE_PATTERN.fullmatch(call.arguments[0][0].text))
        weights[is_simple] += REPEATED_WEIGHT if call.is_repeated else 1
    return weights[0], weights[1]


def _mentions(token: Token) -> Iterable[_Mention]:
    """Yield the attributes that a name may stand for; a name after a point may be looked up in any ad."""
    if token.kind is TokenKind.QUOTED_NAME:
        yield _Mention("free", fold(token.text[1:-1]))
        return
    first, *rest = fold(token.text).split(".")
    if token.text[0].isdigit() or first in _KEYWORDS:
        return
    if rest and first in _MY | _TARGET:
        yield _Mention("my" if first in _MY else "target", rest.pop(0))
    elif first:
        yield _Mention("free", first)
    yield from (_Mention("both", name) for name in rest if name)


def _fault_of(visible: Sequence[Token], words: Sequence[Token], called: Sequence[str]) -> str:
    """Return why the cost of an expression has no bound that can be found; "" = it has one."""
    for token in words:
        first, _, rest = fold(token.text).partition(".")
        if token.kind is TokenKind.QUOTED_NAME and "\\" in token.text:
            return f"the quoted name {token.text} has a backslash"
        if first in _WHOLE_ADS and not ((rest or token.text.endswith(".")) and first in _MY | _TARGET):
            return f"{token.text} stands for a whole ad"
        if rest and first in _MY | _TARGET and rest.partition(".")[0] in _WHOLE_ADS:
            return f"{token.text} has more than one scope"
    refused = next((_REFUSED[name] for name in called if name in _REFUSED), "")
    return refused or _fault_of_nested_ads(visible)


def _fault_of_nested_ads(visible: Sequence[Token]) -> str:
    """Return a fault if an ad inside the expression has a value with a name; a subscript is no ad."""
    kinds: list[bool] = []  # for each open bracket whether it is within an ad
    previous: Token | None = None
    for index, token in enumerate(visible):
        if token.kind is TokenKind.OPEN:
            is_subscript = previous is not None and (
                previous.kind in (TokenKind.WORD, TokenKind.QUOTED_NAME, TokenKind.CLOSE, TokenKind.STRING)
                and previous.name not in _KEYWORDS
            )
            kinds.append(kinds[-1:] == [True] or (token.text == "[" and not is_subscript))
        elif token.kind is TokenKind.CLOSE and kinds:
            kinds.pop()
        elif kinds[-1:] == [True] and token.name and not token.name[0].isdigit() and token.name not in _KEYWORDS:
            after = "".join(each.text for each in visible[index + 1 : index + 3])
            if not after.startswith("=") or after in ("==", "=?", "=!"):
                return f"{token.text} stands inside a nested ad"
        previous = token
    return ""


def _nested(visible: Sequence[Token]) -> tuple[int, int, int]:
    """Return how deep repeating and growing calls nest, and the largest product of the factors of nested calls."""
    open_calls: list[tuple[int, int, int]] = [(0, 0, 1)]
    deepest = (0, 0, 1)
    previous = ""
    for token in visible:
        if token.kind is TokenKind.OPEN:
            name = previous if token.text == "(" else ""
            repeats, growth, longer = open_calls[-1]
            inner = (repeats + (name in REPEATING), growth + (name in _GROWING), longer * _LONGER.get(name, 1))
            open_calls.append(inner)
            deepest = (max(deepest[0], inner[0]), max(deepest[1], inner[1]), max(deepest[2], inner[2]))
        elif token.kind is TokenKind.CLOSE and len(open_calls) > 1:
            open_calls.pop()
        previous = token.name
    return deepest


class _Place(NamedTuple):
    """The position of an expression in an evaluation: the index of its ad, the length of the chain that leads to it.

    `in_list` = it is evaluated for elements of a list, `in_eval` = its value selects the text that an eval reads,
    `is_read` = eval has read it, so that it may read the machine's clock.
    """

    ad: int
    depth: int = 0
    in_list: bool = False
    in_eval: bool = False
    is_read: bool = False


class _CostOfEvaluation:
    """The costs of the expressions that one evaluation may reach, each computed once."""

    def __init__(self, gets: Sequence[Get], evaluate_in: EvaluateIn | None, steps_of_pattern: int) -> None:
        self._gets = gets
        self._evaluate_in = evaluate_in
        self._steps_of_pattern = steps_of_pattern
        self._costs: dict[tuple[str, _Place], Cost | None] = {}
        self._spent = 0

    def follow(self, text: str, place: _Place) -> Cost:
        """Return the cost of an expression; raises TooCostlyError."""
        key = (text, place._replace(depth=0))
        known = self._costs.get(key)
        if known is not None:
            return known
        if key in self._costs:
            raise TooCostlyError(f"{_shortened(text)} refers to itself")
        if place.depth > LONGEST_CHAIN:
            raise TooCostlyError(f"attributes refer to each other more than {LONGEST_CHAIN} deep")
        self._costs[key] = None
        cost = self._costs[key] = self._cost(text, _outline(text), place)
        return cost

    def _cost(self, text: str, outline: _Outline, place: _Place) -> Cost:
        if outline.fault:
            raise TooCostlyError(outline.fault)
        if place.in_eval and ("random" in outline.called or (place.is_read and _changes(text))):
            raise TooCostlyError("eval reads a text that random() or a clock changes")
        inner = place._replace(depth=place.depth + 1, in_list=place.in_list or outline.repeats > 0)
        found = _Sum()
        for mention, times in outline.mentions:
            for ad, value in self._values(mention, place.ad):
                cost = _cost_of_literal(value)  # most values are literals, whose places do not matter
                found.add(self._cost_of_value(value, inner._replace(ad=ad)) if cost is None else cost, times)
            self._check_steps(found.steps)
        for argument in outline.evaluated:
            found.add(self._cost_of_eval(argument, inner))
            self._check_steps(found.steps)
        return self._combined(text, outline, found)

    def _combined(self, text: str, outline: _Outline, found: _Sum) -> Cost:
        """Return the cost of an expression whose mentions cost `found`."""
        characters = outline.characters + found.characters
        if "unparse" in outline.called:
            characters += found.source
        elements = outline.commas + 1 + found.elements
        if not _SPLITTING.isdisjoint(outline.called):
            elements += characters
        characters = min(characters * outline.longer, _ENOUGH)
        of_patterns = outline.patterns * self._steps_of_pattern
        of_patterns += outline.simple_patterns * min(self._steps_of_pattern, STEPS_OF_SIMPLE_PATTERN)
        steps = outline.operands + found.steps + of_patterns
        steps += (1 + len(outline.called)) * characters // _CHARACTERS_OF_A_STEP
        if outline.growth:
            inserted = characters if "join" in outline.called else min(characters, LONGEST_SUBJECT + 1)
            characters = min(characters * inserted**outline.growth, _ENOUGH)
            steps += (1 + len(outline.called)) * characters // _INSERTED_CHARACTERS_OF_A_STEP
        if outline.repeats:
            characters = min(characters * steps, _ENOUGH)
            steps *= elements**outline.repeats
        self._check_steps(steps)
        if characters > MAX_CHARACTERS:
            raise TooCostlyError(f"{_shortened(text)} could make a text of more than {MAX_CHARACTERS} characters")
        return Cost(steps, characters, elements, len(text))

    def _check_steps(self, steps: int) -> None:
        if steps > MAX_STEPS:
            raise TooCostlyError(f"it could take more than {MAX_STEPS} steps, with all attributes that it refers to")

    def _values(self, mention: _Mention, ad: int) -> tuple[tuple[int, AdValue | None], ...]:
        """Return the values that a name in this ad may stand for, each with the index of its ad."""
        scope, name = mention
        other = 1 - ad
        has_other = other < len(self._gets)
        if scope == "target":
            return ((other, self._gets[other](name)),) if has_other else ()
        own = (ad, self._gets[ad](name))
        if scope == "my" or not has_other or (scope == "free" and own[1] is not None):
            return (own,)
        others = (other, self._gets[other](name))
        return (own, others) if scope == "both" else (others,)

    def _cost_of_value(self, value: AdValue | None, place: _Place) -> Cost:
        match value:
            case Expression(text):
                return self.follow(text, place._replace(is_read=False))
            case tuple():
                return self._cost_of_elements(value, place)
            case Mapping():
                _check_nested_ad(value)
                return self._cost_of_elements(tuple(value.values()), place)
            case _:
                return _cost_of_literal(value) or _PLAIN

    def _cost_of_elements(self, values: Sequence[AdValue], place: _Place) -> Cost:
        found = _Sum()
        for value in values:
            found.add(self._cost_of_value(value, place))
        return Cost(
            1 + found.steps,
            found.characters + 2 * len(values),
            len(values) + found.elements,
            found.source + len(values),
        )

    def _cost_of_eval(self, argument: str, place: _Place) -> Cost:
        """Return the cost of the text that `eval(argument)` reads, with that of the argument."""
        if place.in_list:
            raise TooCostlyError("eval is called for elements of a list")
        inner = place._replace(in_eval=True)
        cost = self.follow(argument, inner)
        self._spent += cost.steps
        if cost.steps > MAX_STEPS_OF_EVAL or self._spent > MAX_STEPS:
            raise TooCostlyError(f"to compute the texts of eval could take more than {MAX_STEPS_OF_EVAL} steps")
        value = self._argument_value(argument, place.ad)
        if not isinstance(value, str):
            return cost
        found = self.follow(value, place._replace(is_read=True))
        return Cost(cost.steps + found.steps + len(value) // 8, found.characters, found.elements, found.source)

    def _argument_value(self, argument: str, ad: int) -> object:
        if self._evaluate_in is not None:
            return self._evaluate_in(argument, ad)
        inside = [token for token in tokens(argument) if not token.is_blank]
        if [token.kind for token in inside] == [TokenKind.STRING] and "\\" not in inside[0].text:
            return inside[0].text[1:-1]
        raise TooCostlyError("eval takes a plain text only: the references of any other are unknown")


def _cost_of_literal(value: AdValue | None) -> Cost | None:
    """Return the cost of a text, number, boolean or missing attribute; None = it is none of these."""
    if isinstance(value, str):
        return _cost_of_text(len(value))
    return _PLAIN if value is None or isinstance(value, (int, float)) else None


@lru_cache(maxsize=_KNOWN_LENGTHS)
def _cost_of_text(length: int) -> Cost:
    return Cost(1 + length // _CHARACTERS_OF_A_STEP, length + 2, 0, length + 2)


def _check_nested_ad(attributes: Mapping[str, AdValue]) -> None:
    """Raise TooCostlyError for a nested ad that refers to attributes or calls functions."""
    for value in attributes.values():
        match value:
            case Mapping():
                _check_nested_ad(value)
            case tuple():
                _check_nested_ad({str(index): element for index, element in enumerate(value)})
            case Expression(text):
                outline = _outline(text)
                if outline.mentions or outline.called or outline.fault:
                    raise TooCostlyError(f"{_shortened(text)} stands inside a nested ad")
            case _:
                pass


def _changes(text: str) -> bool:
    """Whether the value of a text that eval reads could differ between two evaluations."""
    names = {part for token in tokens(text) for part in token.name.split(".")}
    return not _CHANGING.isdisjoint(names | set(calls(text)))


def _shortened(text: str, limit: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else line[:limit] + "…"
