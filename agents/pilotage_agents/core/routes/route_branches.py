"""The conditions of a transform: if, elif, else, endif, and what may stand behind an if.

Rules
-----
A condition is a truth value, a number, `defined x`, or one of these after a "!"; there is nothing to join them by.
Source: HTCondor manual, configuration, conditionals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from pilotage.errors import Violation
from pilotage.folding import fold
from pilotage_agents.core.routes.route_table import InvalidRoutesError

BRANCHES = frozenset({"IF", "ELIF", "ELSE", "ENDIF"})
"""The statements that begin and end branches, in upper case."""

_TRUTHS = {"true": True, "yes": True, "false": False, "no": False}


@dataclass(frozen=True, slots=True)
class _Branch:
    """One that is open: whether it holds, whether one of its if has held, and whether it is the else."""

    holds: bool
    has_held: bool
    is_else: bool


class Branches:
    """The branches that a statement stands in, the outermost first."""

    def __init__(self) -> None:
        self._open: list[_Branch] = []

    @property
    def active(self) -> bool:
        """Whether all of them hold."""
        return all(branch.holds for branch in self._open)

    @property
    def depth(self) -> int:
        """How many they are."""
        return len(self._open)

    def enter(self, verb: str, is_so: Callable[[], bool]) -> None:
        """Take in one of `BRANCHES`; `is_so` says whether its condition holds, and is asked where that matters.

        Raises
        ------
        InvalidRoutesError
            When it has no if, or comes after an else.
        """
        if verb == "IF":
            has_held = False
        elif not self._open:
            raise _fault(f"{verb.lower()} has no if")
        else:
            before = self._open.pop()
            if before.is_else and verb != "ENDIF":
                raise _fault(f"{verb.lower()} comes after else")
            has_held = before.has_held
        if verb != "ENDIF":
            holds = self.active and not has_held and (verb == "ELSE" or is_so())
            self._open.append(_Branch(holds, has_held or holds, verb == "ELSE"))


def holds(condition: str, is_defined: Callable[[str], bool]) -> bool:
    """Return whether a condition without macros holds; an empty one, as a macro may leave it, does not.

    Raises
    ------
    InvalidRoutesError
        When it is neither true nor false.
    """
    text = condition.strip()
    if text.startswith("!"):
        return not holds(text[1:], is_defined)
    word, _, name = text.partition(" ")
    if fold(word) == "defined" and name.strip():
        return is_defined(name.strip())
    if not text or fold(text) in _TRUTHS:
        return _TRUTHS.get(fold(text), False)
    try:
        return float(text) != 0
    except ValueError:
        raise _fault(f"the condition {text} is neither true nor false") from None


def _fault(why: str) -> InvalidRoutesError:
    return InvalidRoutesError(Violation("", why))
