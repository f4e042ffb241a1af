"""Options as HTCondor's tools read them: one dash, names that may be shortened, qualifiers behind a colon.

Each command has a table of its options. One that is not done is refused with a reason, or ignored with a note on the
standard error if the answer is the same without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from pilotage.errors import InvalidInputError, Violation

ONE_QUEUE = "there is one queue, that of the server"
"""Why options that choose a daemon of HTCondor are ignored."""

REST = -1
"""As a number of values: all that follow, up to the next option."""


class OptionKind(Enum):
    """What becomes of an option."""

    DONE = "done"
    IGNORED = "ignored"
    SILENT = "ignored without a note"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class CondorOption:
    """An option by its whole name; `least` = the fewest letters that select it, `values` = how many values follow it.

    `why` is the reason for which it is ignored or refused.
    """

    name: str
    least: int
    values: int = 0
    kind: OptionKind = OptionKind.DONE
    why: str = ""

    def is_named(self, word: str) -> bool:
        """Whether a word, without dash and qualifiers, selects the option."""
        return len(word) >= self.least and self.name.startswith(word.lower())


@dataclass(frozen=True, slots=True)
class GivenOption:
    """An option as given: `qualifiers` = what follows its colon."""

    name: str
    qualifiers: str
    values: tuple[str, ...]


@dataclass(slots=True)
class CondorArguments:
    """The options and the other arguments of a command, each in their order."""

    options: list[GivenOption] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def has(self, name: str) -> bool:
        """Whether an option is given."""
        return any(each.name == name for each in self.options)

    def value(self, name: str, default: str = "") -> str:
        """Return the last value of an option that takes one."""
        return next((each.values[0] for each in reversed(self.options) if each.name == name), default)

    def values(self, name: str) -> list[str]:
        """Return the values of an option that may be repeated."""
        return [each.values[0] for each in self.options if each.name == name]

    def number(self, name: str, default: int) -> int:
        """Return the last value of an option as a whole number; raises InvalidInputError."""
        text = self.value(name)
        if not text:
            return default
        if not (text.isascii() and text.isdigit()):
            raise InvalidInputError(Violation(f"-{name}", f"{text} is not a number"))
        return int(text)


def done(names: str, values: int = 0) -> Iterator[CondorOption]:
    """Yield options that are done; `names` as `name:least`, without a number the whole name is needed."""
    return _options(names, values, OptionKind.DONE, "")


def ignored(names: str, why: str, values: int = 0) -> Iterator[CondorOption]:
    """Yield options that are ignored with a note."""
    return _options(names, values, OptionKind.IGNORED, why)


def silent(names: str, values: int = 0) -> Iterator[CondorOption]:
    """Yield options that are ignored without a note: they choose what is the case here anyway."""
    return _options(names, values, OptionKind.SILENT, "")


def refused(names: str, why: str, values: int = 0) -> Iterator[CondorOption]:
    """Yield options that are refused."""
    return _options(names, values, OptionKind.REFUSED, why)


def _options(names: str, values: int, kind: OptionKind, why: str) -> Iterator[CondorOption]:
    for each in names.split():
        name, _, least = each.partition(":")
        yield CondorOption(name, int(least or len(name)), values, kind, why)


def read_arguments(
    words: Sequence[str], options: Sequence[CondorOption], note: Callable[[str], None]
) -> CondorArguments:
    """Return the arguments of a command; `note` gets a line for each ignored option.

    Raises
    ------
    InvalidInputError
        An option is unknown or refused, or lacks a value.
    """
    found = CondorArguments()
    left = list(words)
    if any(word in ("-help", "--help") for word in words):
        names = " ".join(f"-{each.name}" for each in options if each.kind is OptionKind.DONE)
        raise InvalidInputError(Violation("options", names))
    while left:
        word = left.pop(0)
        if not word.startswith("-") or word == "-":
            found.others.append(word)
            continue
        name, _, qualifiers = word.lstrip("-").partition(":")
        option = next((each for each in options if each.is_named(name)), None)
        if option is None:
            raise InvalidInputError(Violation(word, "is an option that is not known here; see the documentation"))
        values = _take(left, option, word)
        if option.kind is OptionKind.REFUSED:
            raise InvalidInputError(Violation(f"-{option.name}", f"is not supported: {option.why}"))
        if option.kind is OptionKind.IGNORED:
            note(f"-{option.name} is ignored: {option.why}")
        elif option.kind is OptionKind.DONE:
            found.options.append(GivenOption(option.name, qualifiers, values))
    return found


def _take(left: list[str], option: CondorOption, word: str) -> tuple[str, ...]:
    """Remove the values of an option from the words that follow it."""
    count = option.values
    if count == REST:
        count = next((index for index, each in enumerate(left) if each.startswith("-")), len(left))
        if not count:
            raise InvalidInputError(Violation(word, "needs at least one attribute"))
    if len(left) < count:
        raise InvalidInputError(Violation(word, f"needs {count} value{'s' if count > 1 else ''}"))
    values = tuple(left[:count])
    del left[:count]
    return values
