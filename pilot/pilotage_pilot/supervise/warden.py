"""The pilot's last will: a small process that kills its payloads when the pilot itself was killed.

Without it a payload could go on after its pilot, and after its lease, while the same job runs elsewhere. The pilot
holds the other end of this process's standard input; when that ends, the pilot is gone. Runs alone, by its path,
with nothing but the standard library: it has to be small and to start at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path

_ROUNDS = 100


def payload_pids(variable: str, value_start: str) -> set[int]:
    """Return the processes whose environment has `variable` with a value that starts so."""
    start = f"{variable}={value_start}".encode()
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):
                environment = (folder / "environ").read_bytes()
                if any(entry.startswith(start) for entry in environment.split(b"\0")):
                    found.add(int(folder.name))
    return found


def kill_payloads(variable: str, value_start: str) -> int:
    """Kill every such process, until no more are found; returns how many rounds that took."""
    for rounds in range(_ROUNDS):
        pids = payload_pids(variable, value_start)
        if not pids:
            return rounds
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
    return _ROUNDS


def main() -> None:
    """Wait for the end of standard input, then kill; arguments: the marker's name and the start of its value."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        continue
    kill_payloads(sys.argv[1], sys.argv[2])


if __name__ == "__main__":
    main()
