"""What an error of a call means for the next try."""

from __future__ import annotations

import random

from pilotage.errors import (
    OverloadedError,
    PermissionDeniedError,
    PilotageError,
    StateConflictError,
    UnauthenticatedError,
    WorldError,
)
from pilotage_pilot.core import events as ev


def failure_of(error: PilotageError) -> ev.Failure:
    """Return what an error means for the next try."""
    jitter = random.random()  # noqa: S311 - spreads retries, guards nothing
    match error:
        case UnauthenticatedError() | PermissionDeniedError():
            return ev.Failure(ev.FailureKind.CREDENTIAL, str(error), jitter)
        case OverloadedError(retry_after_s=least_s):
            return ev.Failure(ev.FailureKind.TRANSIENT, str(error), jitter, least_s)
        case WorldError() | StateConflictError():
            return ev.Failure(ev.FailureKind.TRANSIENT, str(error), jitter)
        case _:
            return ev.Failure(ev.FailureKind.REFUSED, str(error), jitter)
