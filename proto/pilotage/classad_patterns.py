r"""Patterns in ClassAd expressions, framed so that looking for them ends soon, whoever wrote them.

Rules
-----
The library cannot be stopped while it looks for a pattern, and counts its steps anew at each place of a text. In its
frame a pattern is looked for from one place (`\G`), all steps of which count, in a text that is not too long; what is
more is an error value. A pattern that closes brackets it did not open would leave its frame: users bring patterns as
plain texts only, which can be tried. Read from the outline alone. Source: the pattern language of PCRE2 (limits).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from pilotage.classad_text import Kind, Token, tokens

LONGEST_SUBJECT = 1000
"""Bytes of a text in which a pattern is looked for."""

MOST_STEPS = 20_000
"""Steps of looking for a pattern once."""

MOST_STEPS_OF_MANY = 2000
"""Steps of looking for a pattern that is looked for again and again, in a list or after each replacement."""

MOST_PATTERNS = 10
"""Patterns in an expression of a user; one that is looked for again and again counts as `WEIGHT_OF_MANY`."""

WEIGHT_OF_MANY = 5

PATTERN_FUNCTIONS = {"regexp": 2, "regexps": 3, "replace": 3, "replaceall": 3}
"""Functions that look for a pattern, their first argument, in one text, with the place of their options."""

LIST_FUNCTIONS = frozenset({"regexpmember", "stringlistregexpmember", "stringlist_regexpmember"})
"""Functions that look for a pattern, their first argument, in each element of a list."""

_MOST_MEMORY_KIB = 20_000
# Where more follows than may, more ways than there are steps lead to nothing: the result is an error.
_NOTHING_LONG = rf"(?:(?s:(?=.{{{LONGEST_SUBJECT + 1}}}).*.*.*)(*FAIL)|)"
_AT_ANY_PLACE, _AT_ANY_LINE = "(?s:.*?)", r"(?:|(?s:.*?\\n))"
_END = '")"'
_ABOUT_PATTERNS = re.compile("regexp|replace", re.IGNORECASE)
_SLOW_CHARACTER = re.compile(r"(?<!\\)(?:(?:\\{4})*\\\\[XpP]|(?:\\\\)*\\[0-7])")
_VERB = re.compile(r"(?<!\\)\((?:\*|\?[R0])")


def _frame(most_steps: int, place: str) -> str:
    """Return the text, as ClassAds write it, that stands before a pattern."""
    return rf'"(*LIMIT_MATCH={most_steps})(*LIMIT_HEAP={_MOST_MEMORY_KIB})\\G{_NOTHING_LONG}{place}\\K(?:"'


_FRAME = _frame(MOST_STEPS, _AT_ANY_PLACE)
_FRAME_OF_LINES = _frame(MOST_STEPS, _AT_ANY_LINE)
_FRAME_OF_MANY = _frame(MOST_STEPS_OF_MANY, _AT_ANY_PLACE)
_FRAMES = (_FRAME, _FRAME_OF_LINES, _FRAME_OF_MANY)


@dataclass(frozen=True, slots=True)
class PatternCall:
    """A call of a function that looks for a pattern; `arguments` = the tokens of each, blank ones left out.

    `start` and `end` are the positions at which the pattern begins and ends.
    """

    name: str
    arguments: tuple[tuple[Token, ...], ...]
    start: int
    end: int

    @property
    def options(self) -> tuple[Token, ...]:
        """The tokens of its options; none = it has no options."""
        place = PATTERN_FUNCTIONS.get(self.name, len(self.arguments))
        return self.arguments[place] if place < len(self.arguments) else ()

    @property
    def frame(self) -> str:
        """The text that goes before the pattern."""
        if self.is_of_many:
            return _FRAME_OF_MANY
        return _FRAME_OF_LINES if _takes_any_beginning(self.arguments[0]) else _FRAME

    @property
    def is_of_many(self) -> bool:
        """Whether the pattern may be looked for more than once: in a list, or after each replacement."""
        if self.name == "regexp":
            return False
        options = self.options
        if self.name in ("regexps", "replace") and _is_plain(options):
            return "g" in options[0].text.lower()
        return self.name in LIST_FUNCTIONS or self.name == "replaceall" or bool(options)


def framed(text: str) -> str:
    """Return `text` with a frame around each pattern."""
    if not _ABOUT_PATTERNS.search(text):
        return text
    insertions: list[tuple[int, str]] = []
    for call in pattern_calls(text):
        insertions.append((call.start, f"strcat({call.frame}, "))
        insertions.append((call.end, f"\n, {_END})"))  # the line end: a comment may come before
    pieces: list[str] = []
    last = 0
    for position, inserted in sorted(insertions, key=lambda each: each[0]):
        pieces += text[last:position], inserted
        last = position
    return "".join((*pieces, text[last:]))


def unframed(text: str) -> str:
    """Return `text` as it was before its patterns were framed, for people and the wire."""
    if not any(frame in text for frame in _FRAMES):
        return text
    spoken = [token for token in tokens(text) if not token.is_blank]
    left_out: set[int] = set()
    opened: list[bool] = []
    for place, token in enumerate(spoken):
        if token.kind is Kind.OPEN:
            is_frame = any(each.text in _FRAMES for each in spoken[place + 1 : place + 2])
            opened.append(is_frame)
            left_out.update(range(place - 1, place + 3) if is_frame else ())
        elif token.kind is Kind.CLOSE and opened and opened.pop():
            left_out.update(range(place - 2, place + 1))
    cut = {spoken[place].start: spoken[place].end for place in left_out}
    return "".join(token.text for token in tokens(text) if token.start not in cut)


def pattern_calls(text: str) -> Iterator[PatternCall]:
    """Yield each call of a function that looks for a pattern and is given one."""
    spoken = [token for token in tokens(text) if not token.is_blank]
    for place, token in enumerate(spoken[1:], start=1):
        name = spoken[place - 1].name
        if token.text == "(" and (name in PATTERN_FUNCTIONS or name in LIST_FUNCTIONS):
            arguments = _arguments(spoken, place)
            if arguments and arguments[0]:
                yield PatternCall(name, arguments, arguments[0][0].start, arguments[0][-1].end)


def weight_of_patterns(text: str) -> int:
    """Return for how many patterns an expression looks, those that it looks for again and again so often."""
    return sum(WEIGHT_OF_MANY if call.is_of_many else 1 for call in pattern_calls(text))


def patterns_fault(text: str) -> str | None:
    """Return why users may not look for these patterns, None = they may as far as the outline shows."""
    weight = weight_of_patterns(text)
    if weight > MOST_PATTERNS:
        many = f"one that is looked for again and again counts as {WEIGHT_OF_MANY}"
        return f"it looks for {weight} patterns ({many}), at most {MOST_PATTERNS} are allowed"
    return next((fault for call in pattern_calls(text) if (fault := _fault_of(call))), None)


def _fault_of(call: PatternCall) -> str | None:
    pattern = call.arguments[0]
    if call.name in LIST_FUNCTIONS:
        return f"{call.name} looks for a pattern in lists of any length: use regexp, of each text by itself"
    if not _is_plain(pattern):
        return f"{call.name} is allowed of a plain text only: what another pattern would take cannot be told before"
    if call.options and not _is_plain(call.options):
        return f"the options of {call.name} are allowed as a plain text only"
    if _SLOW_CHARACTER.search(pattern[0].text):
        return f"the pattern {pattern[0].text} has a \\X, a \\p or a character by its number"
    if _VERB.search(pattern[0].text):
        return f"the pattern {pattern[0].text} commands how it is looked for, by (* or (?R)"
    return None


def _takes_any_beginning(pattern: tuple[Token, ...]) -> bool:
    """Whether a pattern that is not found in a line from its beginning is not found farther on in it either.

    So it is of those that begin with `.*`; to look at each place would take the square of the steps.
    """
    if not _is_plain(pattern) or not pattern[0].text.startswith('".*'):
        return False
    text = pattern[0].text
    if "|" not in text:
        return True
    return not any(character in text for character in r"[\#") and all(
        before.count("(") > before.count(")") for before in _before_each("|", text)
    )


def _before_each(character: str, text: str) -> Iterator[str]:
    return (text[:place] for place, each in enumerate(text) if each == character)


def _is_plain(argument: tuple[Token, ...]) -> bool:
    return [token.kind for token in argument] == [Kind.STRING]


def _arguments(spoken: list[Token], opening: int) -> tuple[tuple[Token, ...], ...]:
    """Return the arguments in the bracket that opens at the place `opening`; none = it is not closed."""
    found: list[list[Token]] = [[]]
    depth = 0
    for token in spoken[opening + 1 :]:
        if token.kind is Kind.CLOSE and depth == 0:
            return tuple(map(tuple, found))
        depth += (token.kind is Kind.OPEN) - (token.kind is Kind.CLOSE)
        if token.kind is Kind.COMMA and depth == 0:
            found.append([])
        else:
            found[-1].append(token)
    return ()
