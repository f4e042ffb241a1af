"""Collects the faults of an input while it is read, so that its sender learns of all of them at once.

Rules
-----
A fault says where it is as a path from the outermost input inwards: `descriptions[2].request_cpus`.
"""

from __future__ import annotations

from collections.abc import Iterable

from pilotage.errors import InvalidInputError, Violation


def path(outer: str, inner: str) -> str:
    """Return the path of `inner` as seen from where `outer` stands; either may be empty."""
    if not outer or not inner:
        return outer or inner
    return outer + inner if inner.startswith("[") else f"{outer}.{inner}"


class _Within:
    """A block that reads an inner input; written out, as large inputs go through very many of them."""

    __slots__ = ("_faults", "_where")

    def __init__(self, faults: Faults, where: str) -> None:
        self._faults = faults
        self._where = where

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> bool:
        if not isinstance(error, InvalidInputError):
            return False
        self._faults.extend(self._where, error.violations)
        return True


class Faults:
    """The faults found so far."""

    def __init__(self) -> None:
        self._found: list[Violation] = []

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, where: str, why: str) -> None:
        """Note a fault."""
        self._found.append(Violation(where, why))

    def unless(self, fine: bool, where: str, why: str) -> None:
        """Note a fault unless all is `fine`."""
        if not fine:
            self.add(where, why)

    def extend(self, where: str, violations: Iterable[Violation]) -> None:
        """Note faults of an inner input that stands at `where`."""
        self._found.extend(Violation(path(where, inner.where), inner.why) for inner in violations)

    def within(self, where: str) -> _Within:
        """Note what the block finds wrong with the inner input at `where`; its first error ends it."""
        return _Within(self, where)

    def raise_any(self, error: type[InvalidInputError] = InvalidInputError) -> None:
        """Raise `error` with every fault, when there is any."""
        if self._found:
            raise error(*self._found)
