"""A job's arguments as one string, and back: POSIX quoting, quoted only where it must be."""

from __future__ import annotations

import shlex
from collections.abc import Iterable

_NEEDS_QUOTES = frozenset(" \t\n'\"\\")


def split_arguments(arguments: str) -> list[str]:
    """Return the arguments one by one; raises ValueError when a quotation is not closed."""
    return shlex.split(arguments)


def quoting_fault(arguments: str) -> str:
    """Return why `split_arguments` cannot take them apart; empty = it can, at a glance where nothing is quoted."""
    if "'" not in arguments and '"' not in arguments and "\\" not in arguments:
        return ""
    try:
        split_arguments(arguments)
    except ValueError as error:
        return str(error)
    return ""


def join_arguments(arguments: Iterable[str]) -> str:
    """Return one string that `split_arguments` takes apart again; plain words, also `$1`, stay as they are."""
    return " ".join(_quoted(argument) for argument in arguments)


def _quoted(argument: str) -> str:
    if argument and _NEEDS_QUOTES.isdisjoint(argument):
        return argument
    return "'" + argument.replace("'", "'\"'\"'") + "'"
