"""Proofs of possession of pilots' tokens; `pilotage.rpc.proof` has their rules.

A call of an enrolled pilot costs one lookup and one MAC here: the keys are derived once for each token.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

from pilotage.errors import ProofTimeError, UnauthenticatedError
from pilotage.rpc.proof import PROOF_HEADER, mac_of
from pilotage_server.core.identity import PilotCredential
from pilotage_server.rpc.framework.tokens import TokenIssuer, VerifiedToken

_REMEMBERED = 50_000
_LONGEST_PROOF = 100


class PilotProofs:
    """Derives the keys of enrolled pilots and checks their proofs; `window` = how far a proof's time may be off."""

    def __init__(self, issuer: TokenIssuer, window: timedelta) -> None:
        self._issuer = issuer
        self._window_ms = window.total_seconds() * 1000
        self._key = lru_cache(maxsize=_REMEMBERED)(self._derived)

    def key_of(self, token: VerifiedToken) -> bytes:
        """Return the key of an enrolled pilot's token; raises UnauthenticatedError if the token is not bound."""
        pilot = token.identity.pilot
        if pilot is None or not pilot.nonce_hash:
            raise UnauthenticatedError("the pilot's token is bound to no key: the pilot must enrol")
        return self._key(token.kid, pilot)

    def check(self, method: str, metadata: Mapping[str, Any], token: VerifiedToken, now: datetime) -> None:
        """Raise UnauthenticatedError unless the call carries a proof by the token's key."""
        proof = metadata.get(PROOF_HEADER, "")
        if not isinstance(proof, str) or not 0 < len(proof) <= _LONGEST_PROOF:
            raise UnauthenticatedError("the call of a pilot carries no proof by the key of its token")
        time_ms, _, mac = proof.partition(":")
        expected = mac_of(self.key_of(token), method, time_ms)
        if not hmac.compare_digest(expected.encode(), mac.encode()):
            raise UnauthenticatedError("the proof of the call is wrong: it is not by the key of the token")
        now_ms = now.timestamp() * 1000
        if not (time_ms.isascii() and time_ms.isdecimal()):
            raise UnauthenticatedError("the proof of the call has no time")
        if abs(int(time_ms) - now_ms) > self._window_ms:
            raise ProofTimeError(
                f"the proof of the call is of {time_ms} ms, the server has {now_ms:.0f} ms", int(now_ms)
            )

    def _derived(self, kid: str, pilot: PilotCredential) -> bytes:
        bound = f"{pilot.stamp}|{pilot.nonce_hash}".encode()
        return hmac.digest(self._issuer.proof_secret(kid), bound, "sha256")
