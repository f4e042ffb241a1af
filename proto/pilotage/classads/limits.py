r"""Bounds on the expressions that users submit: size, nesting, and work that the library cannot be stopped in.

Rules
-----
- Only the outline of the text is read. HTCondor's library cannot be stopped once it evaluates.
- The library counts the steps of a pattern separately at each position of a text. A frame around the pattern makes it
  match from one position (`\G`), so that all steps count, in a text of bounded length. An excess is an error value.
- A pattern that closes brackets it did not open would leave its frame. Users may therefore write patterns only as
  plain texts, which can be compiled beforehand.
- Functions that multiply work or texts must not be nested, and eval takes plain texts only.

Source: the pattern language of PCRE2 (limits).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from pilotage.classads.tokens import Token, TokenKind, calls, nesting, tokens

LONGEST_SUBJECT = 1000
"""The largest text that a pattern is matched against, in bytes."""

MAX_STEPS = 20_000
"""Match steps of one pattern."""

MAX_STEPS_REPEATED = 2000
"""Match steps of a pattern that is matched repeatedly: in a list, or after each replacement."""

MAX_PATTERNS = 10
"""Patterns in a user's expression; a repeated one counts as `REPEATED_WEIGHT`."""

REPEATED_WEIGHT = 5

PATTERN_FUNCTIONS = {"regexp": 2, "regexps": 3, "replace": 3, "replaceall": 3}
"""Functions that match a pattern, their first argument, in one text; with the index of their options."""

LIST_FUNCTIONS = frozenset({"regexpmember", "stringlistregexpmember", "stringlist_regexpmember"})
"""Functions that match a pattern, their first argument, in each element of a list."""

_MAX_MEMORY_KIB = 20_000
# For a longer text this branch tries more ways than there are steps and fails: the result is an error.
_NOTHING_LONG = rf"(?:(?s:(?=.{{{LONGEST_SUBJECT + 1}}}).*.*.*)(*FAIL)|)"
_AT_ANY_PLACE, _AT_ANY_LINE = "(?s:.*?)", r"(?:|(?s:.*?\\n))"
_END = '")"'
_ABOUT_PATTERNS = re.compile("regexp|replace", re.IGNORECASE)
_SLOW_CHARACTER = re.compile(r"(?<!\\)(?:(?:\\{4})*\\\\[XpP]|(?:\\\\)*\\[0-7])")
_VERB = re.compile(r"(?<!\\)\((?:\*|\?[R0])")


def _frame(most_steps: int, place: str) -> str:
    """Return the ClassAd text that precedes a pattern."""
    return rf'"(*LIMIT_MATCH={most_steps})(*LIMIT_HEAP={_MAX_MEMORY_KIB})\\G{_NOTHING_LONG}{place}\\K(?:"'


_FRAME = _frame(MAX_STEPS, _AT_ANY_PLACE)
_FRAME_OF_LINES = _frame(MAX_STEPS, _AT_ANY_LINE)
_FRAME_REPEATED = _frame(MAX_STEPS_REPEATED, _AT_ANY_PLACE)
_FRAMES = (_FRAME, _FRAME_OF_LINES, _FRAME_REPEATED)


@dataclass(frozen=True, slots=True)
class PatternCall:
    """A call of a function that matches a pattern; `arguments` = the tokens of each, without blanks.

    `start` and `end` are the positions at which the pattern begins and ends.
    """

    name: str
    arguments: tuple[tuple[Token, ...], ...]
    start: int
    end: int

    @property
    def options(self) -> tuple[Token, ...]:
        """The tokens of the options; empty = none."""
        place = PATTERN_FUNCTIONS.get(self.name, len(self.arguments))
        return self.arguments[place] if place < len(self.arguments) else ()

    @property
    def frame(self) -> str:
        """The text that precedes the pattern."""
        if self.is_repeated:
            return _FRAME_REPEATED
        return _FRAME_OF_LINES if _starts_with_any(self.arguments[0]) else _FRAME

    @property
    def is_repeated(self) -> bool:
        """Whether the pattern may be matched more than once: in a list, or after each replacement."""
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
        insertions.append((call.end, f"\n, {_END})"))  # the line end closes a comment
    pieces: list[str] = []
    last = 0
    for position, inserted in sorted(insertions, key=lambda each: each[0]):
        pieces += text[last:position], inserted
        last = position
    return "".join((*pieces, text[last:]))


def unframed(text: str) -> str:
    """Return `text` without the frames of its patterns, for people and the wire."""
    if not any(frame in text for frame in _FRAMES):
        return text
    visible = [token for token in tokens(text) if not token.is_blank]
    left_out: set[int] = set()
    opened: list[bool] = []
    for place, token in enumerate(visible):
        if token.kind is TokenKind.OPEN:
            is_frame = any(each.text in _FRAMES for each in visible[place + 1 : place + 2])
            opened.append(is_frame)
            left_out.update(range(place - 1, place + 3) if is_frame else ())
        elif token.kind is TokenKind.CLOSE and opened and opened.pop():
            left_out.update(range(place - 2, place + 1))
    cut = {visible[place].start: visible[place].end for place in left_out}
    return "".join(token.text for token in tokens(text) if token.start not in cut)


def pattern_calls(text: str) -> Iterator[PatternCall]:
    """Yield each call of a function that matches a pattern."""
    visible = [token for token in tokens(text) if not token.is_blank]
    for place, token in enumerate(visible[1:], start=1):
        name = visible[place - 1].name
        if token.text == "(" and (name in PATTERN_FUNCTIONS or name in LIST_FUNCTIONS):
            arguments = _arguments(visible, place)
            if arguments and arguments[0]:
                yield PatternCall(name, arguments, arguments[0][0].start, arguments[0][-1].end)


def pattern_weight(text: str) -> int:
    """Return the number of patterns in an expression, repeated ones by their weight."""
    return sum(REPEATED_WEIGHT if call.is_repeated else 1 for call in pattern_calls(text))


def patterns_fault(text: str) -> str | None:
    """Return why users may not use these patterns; None = the outline shows no reason."""
    weight = pattern_weight(text)
    if weight > MAX_PATTERNS:
        many = f"a repeated pattern counts as {REPEATED_WEIGHT}"
        return f"it has {weight} patterns ({many}), at most {MAX_PATTERNS} are allowed"
    return next((fault for call in pattern_calls(text) if (fault := _fault_of(call))), None)


def _fault_of(call: PatternCall) -> str | None:
    pattern = call.arguments[0]
    if call.name in LIST_FUNCTIONS:
        return f"{call.name} searches lists of any length: use regexp on each text instead"
    if not _is_plain(pattern):
        return f"{call.name} takes a plain text only: the cost of any other pattern is unknown"
    if call.options and not _is_plain(call.options):
        return f"the options of {call.name} must be a plain text"
    if _SLOW_CHARACTER.search(pattern[0].text):
        return f"the pattern {pattern[0].text} has a \\X, a \\p or a character number"
    if _VERB.search(pattern[0].text):
        return f"the pattern {pattern[0].text} has a verb (* or a recursion (?R)"
    return None


def _starts_with_any(pattern: tuple[Token, ...]) -> bool:
    """Return whether the pattern begins with `.*`, so that it needs to be tried at line starts only.

    Trying each position would take the square of the steps.
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
    return [token.kind for token in argument] == [TokenKind.STRING]


def _arguments(visible: list[Token], opening: int) -> tuple[tuple[Token, ...], ...]:
    """Return the arguments in the bracket that opens at index `opening`; empty = it is not closed."""
    found: list[list[Token]] = [[]]
    depth = 0
    for token in visible[opening + 1 :]:
        if token.kind is TokenKind.CLOSE and depth == 0:
            return tuple(map(tuple, found))
        depth += (token.kind is TokenKind.OPEN) - (token.kind is TokenKind.CLOSE)
        if token.kind is TokenKind.COMMA and depth == 0:
            found.append([])
        else:
            found[-1].append(token)
    return ()


LARGEST_EXPRESSION = 4096
"""The largest expression of a user, in bytes."""

DEEPEST_EXPRESSION = 50
"""The deepest nesting of its brackets."""

REPEATING = frozenset({"evalineachcontext", "countmatches"})
"""Functions that evaluate an expression for every element of a list."""

GROWING = frozenset({"replaceall", "regexps"})
"""Functions that insert a text for every match."""

MULTIPLYING = REPEATING | GROWING


def bounds_fault(text: str) -> str | None:
    """Return why users may not submit the expression `text`; None = its outline shows no reason."""
    size = len(text.encode())
    if size > LARGEST_EXPRESSION:
        return f"it is {size} bytes long, at most {LARGEST_EXPRESSION} are allowed"
    depth = nesting(text)
    if depth > DEEPEST_EXPRESSION:
        return f"its brackets nest {depth} deep, at most {DEEPEST_EXPRESSION} are allowed"
    if any(token.kind is TokenKind.QUOTED_NAME and "\\" in token.text for token in tokens(text)):
        return "a quoted name has a backslash"
    return _fault_of_calls(text)


def evaluated_texts(text: str) -> Iterator[str | None]:
    """Yield the text that each eval evaluates; None = it is computed at evaluation."""
    visible = [token for token in tokens(text) if not token.is_blank]
    for place, (token, following) in enumerate(pairwise(visible)):
        if token.name == "eval" and following.text == "(":
            yield _plain_text(visible[place + 2 : place + 4])


def evaluated_arguments(text: str) -> Iterator[str]:
    """Yield the argument of each call of eval that is not itself in the argument of one."""
    visible = [token for token in tokens(text) if not token.is_blank]
    end = 0
    for place, (token, following) in enumerate(pairwise(visible)):
        if token.start >= end and token.name == "eval" and following.text == "(":
            inside = [token for argument in _arguments(visible, place + 1) for token in argument]
            if inside:
                end = inside[-1].end
                yield text[inside[0].start : end]


def _fault_of_calls(text: str) -> str | None:
    for evaluated in evaluated_texts(text):
        if evaluated is None:
            return "eval takes a plain text only: the references of any other are unknown"
        fault = bounds_fault(evaluated)
        if fault is not None:
            return f'in eval("{evaluated}"): {fault}'
        if "random" in calls(evaluated) or any(name in MULTIPLYING for name in calls(evaluated)):
            return f'eval("{evaluated}") hides what it calls'
    return patterns_fault(text) or _fault_of_multiplying(text)


def _fault_of_multiplying(text: str) -> str | None:
    """Return a fault if multiplying functions are nested, else None."""
    around: list[str] = []  # for each open bracket the multiplying function around it, "" = none
    called = ""
    for token in tokens(text):
        if token.is_blank:
            continue
        if token.kind is TokenKind.OPEN:
            inside = around[-1] if around else ""
            multiplies = called if token.text == "(" and called in MULTIPLYING else ""
            if inside and multiplies:
                return f"{multiplies} inside {inside} could take too long"
            around.append(inside or multiplies)
        elif token.kind is TokenKind.CLOSE and around:
            around.pop()
        called = token.name
    return None


def _plain_text(argument: list[Token]) -> str | None:
    """Return the text of an argument that is a single string without backslashes, else None."""
    is_text = [token.kind for token in argument] == [TokenKind.STRING, TokenKind.CLOSE] and "\\" not in argument[0].text
    return argument[0].text[1:-1] if is_text else None
