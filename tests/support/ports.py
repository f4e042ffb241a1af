"""Ports for what a test starts, and starts again at the same place."""

from __future__ import annotations

import random
import socket

_FIRST, _LAST = 10_000, 32_000
"""Below those that Linux gives to whoever connects, by default: none of these is taken while a server is away."""

# Not the numbers of a seeded test: two test processes would choose alike.
_chance = random.SystemRandom()
_given: set[int] = set()


def free_port() -> int:
    """Return a port on which nobody listened a moment ago, another one at each call."""
    port = _chance.randrange(_FIRST, _LAST)
    while port in _given or not _is_free(port):
        port = _chance.randrange(_FIRST, _LAST)
    _given.add(port)
    return port


def free_ports(count: int) -> list[int]:
    """Return so many free ports."""
    return [free_port() for _ in range(count)]


def free_address() -> str:
    """Return host and port where nobody listens."""
    return f"127.0.0.1:{free_port()}"


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
