"""The errors of Pilotage, by kind: the caller's fault, a state conflict, or a failure of the world outside.

`Faults` collects all faults of an input, so that its sender gets them at once. A fault has a path from the outermost
input inwards: `descriptions[2].request_cpus`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


class PilotageError(Exception):
    """Root of every error that Pilotage raises on purpose."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One fault of an input: where it is (a field or a path such as `sites.CERN.ces`), and why."""

    where: str
    why: str

    def __str__(self) -> str:
        """Return "where: why", or the reason alone if the whole input is at fault."""
        return f"{self.where}: {self.why}" if self.where else self.why


class InvalidInputError(PilotageError):
    """The caller's fault: the input is invalid; `violations`, never empty, has every fault found."""

    def __init__(self, *violations: Violation) -> None:
        assert violations, "an InvalidInputError names at least one violation"
        super().__init__("; ".join(str(violation) for violation in violations))
        self.violations = violations


class InvalidRequirementsError(InvalidInputError):
    """A requirement has no meaning, such as an empty list or a negative capacity."""


class InvalidTreeError(InvalidInputError):
    """A resource tree is invalid as a whole; `violations` has every fault with its path."""


class InvalidJobError(InvalidInputError):
    """No queue could run the job description."""


class NotFoundError(PilotageError):
    """The caller named something that does not exist, or that it may not see."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"there is no {kind} {name}")
        self.kind = kind
        self.name = name


class PermissionDeniedError(PilotageError):
    """The identity may not do this; the text names the missing role or ownership."""


class UnauthenticatedError(PilotageError):
    """The caller is not known: its token is missing, broken, expired, or of an issuer that is not trusted."""


class ProofTimeError(UnauthenticatedError):
    """The proof of a call is of another time than the server's, `server_time_ms`."""

    def __init__(self, text: str, server_time_ms: int) -> None:
        super().__init__(text)
        self.server_time_ms = server_time_ms


class QuotaExceededError(PilotageError):
    """The caller, or its VO, has as much as it may have; the text has the numbers and what to do."""


class StateConflictError(PilotageError):
    """The request does not fit the present state; it may succeed once the state has changed."""


class LeaseLostError(StateConflictError):
    """The sender of a report no longer holds the attempt's lease."""

    def __init__(self, job_id: int, attempt: int, why: str) -> None:
        super().__init__(f"attempt {attempt} of job {job_id} holds no lease: {why}")
        self.job_id = job_id
        self.attempt = attempt
        self.why = why


class FeedPositionLostError(StateConflictError):
    """The database has never given out this position of the feed, mostly because a backup was restored.

    `resume_after` = the last position that is both before it and in the database.
    """

    def __init__(self, position: int, resume_after: int, why: str) -> None:
        super().__init__(f"there is no position {position} in the feed: {why}; resume after {resume_after}")
        self.position = position
        self.resume_after = resume_after
        self.why = why


class LeadershipLostError(StateConflictError):
    """A replica of an agent acted without being the leader: another replica may be acting."""

    def __init__(self, agent: str) -> None:
        super().__init__(f"this replica no longer leads the {agent}")
        self.agent = agent


class WorldError(PilotageError):
    """Something outside failed: a disk, a network, a batch system; `transient` = a retry may help."""

    def __init__(self, message: str, *, transient: bool) -> None:
        super().__init__(message)
        self.transient = transient


class ServerUnreachableError(WorldError):
    """No server answered in time; the call may be repeated with the same request id."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True)


class OverloadedError(WorldError):
    """The overloaded server rejected the call unread; it may have capacity after `retry_after_s`."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, transient=True)
        self.retry_after_s = retry_after_s


def path(outer: str, inner: str) -> str:
    """Return the path of `inner` within `outer`; either may be empty."""
    if not outer or not inner:
        return outer or inner
    return outer + inner if inner.startswith("[") else f"{outer}.{inner}"


class _Within:
    """The context manager of `Faults.within`; a class, as large inputs enter it very often."""

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
        """Add a fault."""
        self._found.append(Violation(where, why))

    def unless(self, fine: bool, where: str, why: str) -> None:
        """Add a fault unless `fine`."""
        if not fine:
            self.add(where, why)

    def extend(self, where: str, violations: Iterable[Violation]) -> None:
        """Add the faults of an inner input at `where`."""
        self._found.extend(Violation(path(where, inner.where), inner.why) for inner in violations)

    def within(self, where: str) -> _Within:
        """Collect the faults that the block raises for the inner input at `where`; the first error ends the block."""
        return _Within(self, where)

    def raise_any(self, error: type[InvalidInputError] = InvalidInputError) -> None:
        """Raise `error` with every fault, if there is any."""
        if self._found:
            raise error(*self._found)
