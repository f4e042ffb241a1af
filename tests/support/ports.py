"""Ports for what a test starts, and starts again at the same place."""

from __future__ import annotations

import random
import socket
from itertools import islice

_FIRST, _LAST = 10_000, 32_000
"""Below those that the system gives to whoever connects: none of these is taken while a server is away."""

_given: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Return ports on which nobody listened a moment ago, others at each call."""
    # Not those of a seeded test: two test processes would choose alike.
    candidates = random.SystemRandom().sample(range(_FIRST, _LAST), k=_LAST - _FIRST)
    free = (port for port in candidates if port not in _given and _is_free(port))
    ports = list(islice(free, count))
    assert len(ports) == count, "there are ports enough"
    _given.update(ports)
    return ports


def free_port() -> int:
    """Return one such port."""
    return free_ports(1)[0]


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
