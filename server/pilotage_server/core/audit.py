"""The audit: who has changed what, with the difference.

Rules
-----
An entry is stored in the transaction of its change. It holds no secrets. A difference has lines that begin with "-" for
what was there before, and with "+" for what is there now; of a tree it is a unified diff. Long differences are cut.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from difflib import unified_diff
from enum import StrEnum


class AuditKind(StrEnum):
    """What was changed; the word that `pilotage audit --what` takes."""

    TREE = "tree"
    BAN = "ban"
    DOWNTIME = "downtime"
    HEALTH = "health"
    DRAIN = "drain"
    NODE = "node"
    SHARES = "shares"
    TOKEN = "token"  # noqa: S105 - a kind of change
    KEYS = "keys"
    PILOT_SECRET = "pilot-secret"  # noqa: S105
    REVOCATION = "revocation"
    ROUTES = "routes"
    JOBS = "jobs"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """A change: by which owner with which roles, and through which agent ("" = none). `id` 0 = not stored yet."""

    time: datetime
    who: str
    vo: str
    roles: tuple[str, ...]
    what: AuditKind
    subject: str
    difference: str = ""
    reason: str = ""
    agent: str = ""
    id: int = 0


LONGEST_DIFFERENCE = 64 * 1024
"""Characters of a difference that are stored."""

MOST_COMPARED_LINES = 50_000
"""Trees with more lines are not compared: it could take many seconds."""


def line_difference(before: Iterable[str], after: Iterable[str]) -> str:
    """Return the difference of what was and what is, one text for each line; equal lines are left out."""
    old, new = list(before), list(after)
    gone, come = set(old) - set(new), set(new) - set(old)
    lines = [f"- {line}" for line in old if line in gone] + [f"+ {line}" for line in new if line in come]
    return cut("\n".join(lines))


def text_difference(before: str, after: str, names: tuple[str, str]) -> str:
    """Return the unified diff of two texts with these names."""
    old, new = before.splitlines(), after.splitlines()
    if len(old) + len(new) > MOST_COMPARED_LINES:
        return f"- {names[0]}: {len(old)} lines\n+ {names[1]}: {len(new)} lines"
    return cut("\n".join(_diff_of_lines(old, new, names)))


def _diff_of_lines(old: Sequence[str], new: Sequence[str], names: tuple[str, str]) -> Iterable[str]:
    return unified_diff(old, new, *names, n=2, lineterm="")


def cut(text: str) -> str:
    """Return the text, cut to the limit with a note."""
    if len(text) <= LONGEST_DIFFERENCE:
        return text
    return f"{text[:LONGEST_DIFFERENCE]}\n[{len(text) - LONGEST_DIFFERENCE} more characters are not stored]"
