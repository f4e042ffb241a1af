"""The ends of the agents' tokens: the log warns before, as no call of an agent succeeds afterwards."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import structlog

from pilotage.clock import Clock
from pilotage.errors import WorldError

log = structlog.get_logger()

WARNED_BEFORE = timedelta(days=7)
"""How long before the end of a token the log warns; for short-lived tokens, a quarter of their lifetime."""

_CHECKED_EVERY = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class TokenTimes:
    """When a token ends, and from when on the log warns."""

    ends: datetime
    warned_from: datetime


def token_times(token: str) -> TokenTimes | None:
    """Return the times in a token, a JWT, without verifying it; None = they cannot be read."""
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        ends = datetime.fromtimestamp(claims["exp"], UTC)
        begins = datetime.fromtimestamp(claims.get("iat", claims["exp"] - 4 * WARNED_BEFORE.total_seconds()), UTC)
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, OSError):
        return None
    return TokenTimes(ends, ends - min(WARNED_BEFORE, (ends - begins) / 4))


class TokenWatch:
    """Warns of tokens that end soon; `tokens` are functions that read them, by where they are."""

    def __init__(self, tokens: Mapping[str, Callable[[], str]], clock: Clock) -> None:
        self._tokens = tokens
        self._clock = clock

    def check(self) -> None:
        """Warn of each token that ends soon or has ended; one that cannot be read fails the calls anyway."""
        for place, read in self._tokens.items():
            try:
                times = token_times(read())
            except WorldError:
                continue
            if times is not None and self._clock() >= times.warned_from:
                log.warning("token ends soon: put a new one in its place", token=place, ends=times.ends.isoformat())

    async def run(self) -> None:
        """Check once a day until cancelled."""
        while True:
            await asyncio.to_thread(self.check)
            await asyncio.sleep(_CHECKED_EVERY.total_seconds())
