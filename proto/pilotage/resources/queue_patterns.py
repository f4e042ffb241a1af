"""Patterns of queue names, as the settings and tokens of agents have them."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from pilotage.resources.tree import QueueId
from pilotage.text import fold

EVERY_QUEUE = ("*/*/*",)
"""Patterns that match every queue."""

_BRACKETS = re.compile(r"\[!?\]?[^\]]*\]")
"""One wildcard of several characters, as `fnmatch` reads it."""


def pattern_fault(text: str) -> str:
    """Return why a text is no pattern of queues; "" = it is one."""
    is_one = text.count("/") >= 2 and all(text.split("/", 2))
    return "" if is_one else f'"{text}" is not SITE/CE/QUEUE, with "*" for any of them'


def matches_any(queue: QueueId, patterns: Iterable[str]) -> bool:
    """Return whether one of the `patterns` of "SITE/CE/QUEUE" matches the queue; letter case does not count."""
    name = fold(str(queue))
    return any(fnmatchcase(name, fold(pattern)) for pattern in patterns)


def is_covered(pattern: str, by: Iterable[str]) -> bool:
    """Return whether every queue that `pattern` matches is surely matched by one pattern of `by`.

    A wildcard is covered by the same pattern, or by a "*" of a pattern without other wildcards.
    """
    name = fold(pattern)
    # The characters in brackets are alternatives: they must not pass for a name of the other pattern.
    wild = _BRACKETS.sub("?", name)
    return any(name == fold(other) or (not set("?[") & set(other) and fnmatchcase(wild, fold(other))) for other in by)


def unused_patterns(patterns: Iterable[str], queues: Iterable[QueueId]) -> tuple[str, ...]:
    """Return the `patterns` that match none of the queues."""
    known = tuple(queues)
    return tuple(pattern for pattern in patterns if not any(matches_any(queue, (pattern,)) for queue in known))


def unused_pattern_lines(patterns: Iterable[str]) -> tuple[str, ...]:
    """Return a line of a dry run for each pattern that matches nothing."""
    return tuple(f"{pattern}: no queue of the tree is called so" for pattern in patterns)
