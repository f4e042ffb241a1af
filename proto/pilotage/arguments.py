"""A job's arguments as one string, and back: POSIX quoting, quoted only where it must be."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

_NEEDS_QUOTES = frozenset(" \t\n'\"\\")


def split_arguments(arguments: str) -> list[str]:
    """Return the arguments one by one; raises ValueError when a quotation is not closed."""
    return shlex.split(arguments)


def join_arguments(arguments: Iterable[str]) -> str:
    """Return one string that `split_arguments` takes apart again; plain words, also `$1`, stay as they are."""
    return " ".join(_quoted(argument) for argument in arguments)


def _quoted(argument: str) -> str:
    if argument and _NEEDS_QUOTES.isdisjoint(argument):
        return argument
    return "'" + argument.replace("'", "'\"'\"'") + "'"
