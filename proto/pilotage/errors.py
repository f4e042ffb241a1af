"""The errors of Pilotage, by whose turn it is: the caller's, the state's, the world's."""

from __future__ import annotations

from dataclasses import dataclass


class PilotageError(Exception):
    """Root of every error that Pilotage raises on purpose."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One fault of an input: where it is (a field or a path such as `sites.CERN.ces`) and what is wrong."""

    where: str
    why: str

    def __str__(self) -> str:
        """Return "where: why", or the reason alone where the whole input is at fault."""
        return f"{self.where}: {self.why}" if self.where else self.why


class InvalidInputError(PilotageError):
    """The caller's fault: the input cannot be taken; `violations`, never empty, names every fault found."""

    def __init__(self, *violations: Violation) -> None:
        assert violations, "an InvalidInputError names at least one violation"
        super().__init__("; ".join(str(violation) for violation in violations))
        self.violations = violations


class InvalidRequirementsError(InvalidInputError):
    """A requirement has no meaning, such as an empty list or a negative capacity."""


class InvalidTreeError(InvalidInputError):
    """A resource tree is refused whole; `violations` has every fault with its path."""


class InvalidJobError(InvalidInputError):
    """A job description cannot be run by anyone."""


class NotFoundError(PilotageError):
    """The caller named something that is not there, or that he may not see."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(f"there is no {kind} {name}")
        self.kind = kind
        self.name = name


class PermissionDeniedError(PilotageError):
    """The identity may not do this; the text says which role or ownership is missing."""


class UnauthenticatedError(PilotageError):
    """Nobody knows who calls: the token is missing, broken, expired, or of an issuer that is not trusted."""


class StateConflictError(PilotageError):
    """The caller's wish does not fit the present state; it may after the state has changed."""


class LeaseLostError(StateConflictError):
    """The attempt's lease is no longer held by who reports on it."""

    def __init__(self, job_id: int, attempt: int, why: str) -> None:
        super().__init__(f"attempt {attempt} of job {job_id} holds no lease: {why}")
        self.job_id = job_id
        self.attempt = attempt
        self.why = why


class TurnLostError(StateConflictError):
    """A copy of an agent does not have the turn that it acts in: another copy may be acting."""

    def __init__(self, agent: str) -> None:
        super().__init__(f"this copy has lost the turn of the {agent}")
        self.agent = agent


class WorldError(PilotageError):
    """Something outside failed: a disk, a network, a batch system; `transient` says that a retry may help."""

    def __init__(self, message: str, *, transient: bool) -> None:
        super().__init__(message)
        self.transient = transient


class ServerUnreachableError(WorldError):
    """No server answered in time; the call may be repeated with the same request id."""

    def __init__(self, message: str) -> None:
        super().__init__(message, transient=True)


class OverloadedError(WorldError):
    """The server has refused the call unread, having too many under way; after `retry_after_s` there may be room."""

    def __init__(self, message: str, retry_after_s: float) -> None:
        super().__init__(message, transient=True)
        self.retry_after_s = retry_after_s
