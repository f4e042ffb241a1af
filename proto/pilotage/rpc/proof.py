"""Proofs of possession: a pilot's token is valid only with a proof by a key that lives in the pilot's memory.

Rules
-----
- The server derives the key from its signing key, the pilot's stamp and a hash of random bytes that the pilot made. It
  gives the key once, at the enrolment, and derives it again from the token in each call. So it stores no keys.
- A proof is a MAC of the method and the time. It is valid for that method, near that time.
- The time is the server's: the pilot counts from the server's last answer on its boot clock, so its own clock may be
  wrong.
"""

from __future__ import annotations

import hashlib
import hmac
from datetime import UTC, datetime

from pilotage.clock import BootClock

PROOF_HEADER = "pilotage-proof"
"""The metadata of a call with "MILLISECONDS:MAC"."""

NONCE_BYTES = 32


def hash_of_nonce(nonce: bytes) -> str:
    """Return the hash by which tokens and the database know a pilot's random bytes."""
    return hashlib.sha256(nonce).hexdigest()


def mac_of(key: bytes, method: str, time_ms: str) -> str:
    """Return the MAC of a call of `method` ("/package.Service/Method") at a time, in hex digits."""
    return hmac.digest(key, f"{method}|{time_ms}".encode(), "sha256").hex()


class BoundToken:
    """A token with its key; it proves calls at the time of the server."""

    def __init__(self, token: str, key: bytes, server_time: datetime, boot_clock: BootClock) -> None:
        self.token = token
        self._key = key
        self._boot_clock = boot_clock
        self._offset_s = server_time.timestamp() - boot_clock()

    def now(self) -> datetime:
        """Return the time of the server."""
        return datetime.fromtimestamp(self._boot_clock() + self._offset_s, UTC)

    def set_time(self, server_time: datetime) -> None:
        """Use this as the present time of the server."""
        self._offset_s = server_time.timestamp() - self._boot_clock()

    def prove(self, method: str) -> str:
        """Return the proof of a call that is made now."""
        time_ms = str(round((self._boot_clock() + self._offset_s) * 1000))
        return f"{time_ms}:{mac_of(self._key, method, time_ms)}"
