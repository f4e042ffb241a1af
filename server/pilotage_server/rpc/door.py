"""The door: before anything of a call is read, it is known who makes it, and whether he may."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pilotage.clock import Clock
from pilotage.errors import UnauthenticatedError
from pilotage_server.rpc.access import check_access
from pilotage_server.rpc.tokens import TokenVerifier, VerifiedToken

_BEARER = "bearer "


class Door:
    """Stands before every method of every service of ours."""

    def __init__(self, verifier: TokenVerifier, clock: Clock) -> None:
        self._verifier = verifier
        self._clock = clock

    def let_in(self, method: str, metadata: Mapping[str, Any]) -> VerifiedToken:
        """Return whom the call comes from; raises the PilotageError that it is refused with."""
        token = self._verifier.verify(_bearer_token(metadata), self._clock())
        check_access(method, token.identity)
        return token


def _bearer_token(metadata: Mapping[str, Any]) -> str:
    header = metadata.get("authorization")
    if header is None:
        raise UnauthenticatedError("the call carries no token")
    text = header.decode("ascii", "replace") if isinstance(header, bytes) else str(header)
    if text[: len(_BEARER)].lower() != _BEARER:
        raise UnauthenticatedError("the authorization header does not hold a bearer token")
    return text[len(_BEARER) :].strip()
