"""Reports the state of this process to the service manager that has started it, by the protocol of sd_notify(3)."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

READY, STOPPING = "READY=1", "STOPPING=1"


def notify(state: str) -> None:
    """Send a state; without a service manager that waits for it, nothing happens."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection, suppress(OSError):
        connection.sendto(state.encode(), address.replace("@", "\0", 1) if address[0] == "@" else address)
