"""The watchdog's program: it kills the payloads of a pilot that was killed.

Without it a payload could go on after its pilot and its lease, while the same job runs elsewhere. The pilot holds the
other end of this process's standard input. At its end the pilot is gone, and with it every child that had not become a
payload yet.

Python runs this file by its path, isolated and without site packages. It may import nothing but the standard library,
and little of that: it has to be small and to start at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
QUIET_ROUNDS = 3
ROUND_S = 0.01
MAX_ROUNDS = 1000
FREEZER_STATE = "freezer.state"
"""The file that freezes and thaws a group (version 1); no signal reaches a frozen process."""


def environment_of(pid: int) -> bytes | None:
    """Return the environment of a process; None = it is gone or not readable."""
    try:
        return (PROC / str(pid) / "environ").read_bytes()
    except OSError:
        return None


def is_in_exec(pid: int) -> bool:
    """Whether a process is in execve, so that its environment cannot be read for a moment.

    The kernel then shows neither arguments nor environment. Unlike a zombie the process has a program.
    """
    folder = PROC / str(pid)
    try:
        return not (folder / "environ").read_bytes() + (folder / "cmdline").read_bytes() and bool(
            os.readlink(folder / "exe")
        )
    except OSError:
        return False


def payload_pids(variable: str, value_start: str) -> set[int]:
    """Return the processes that have `variable` in their environment with a value that starts with `value_start`."""
    start = f"{variable}={value_start}".encode()
    return {pid for pid in _others() if _has_entry(environment_of(pid) or b"", start)}


def _has_entry(environment: bytes, start: bytes) -> bool:
    return environment.startswith(start) or b"\0" + start in environment


def _others() -> Iterable[int]:
    return (int(name) for name in os.listdir(PROC) if name.isdigit() and int(name) != os.getpid())


def kill_payloads(variable: str, value_start: str, groups: Iterable[Path] = ()) -> None:
    """Kill all `payload_pids` and all processes in `groups`, until several rounds in a row have found none."""
    folders = tuple(groups)
    quiet = 0
    for _ in range(MAX_ROUNDS):
        pids = payload_pids(variable, value_start) | _members(folders)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        _thaw(folders)
        # A process in execve may belong to a payload: wait until its environment is readable.
        quiet = 0 if pids or any(is_in_exec(pid) for pid in _others()) else quiet + 1
        if quiet == QUIET_ROUNDS:
            return
        time.sleep(ROUND_S)


def _members(groups: Iterable[Path]) -> set[int]:
    found: set[int] = set()
    for group in groups:
        for members in group.glob("*/cgroup.procs"):
            with contextlib.suppress(OSError):
                found.update(int(pid) for pid in members.read_text().split())
    return found


def _thaw(groups: Iterable[Path]) -> None:
    for group in groups:
        for state in group.glob(f"*/{FREEZER_STATE}"):
            with contextlib.suppress(OSError):
                state.write_text("THAWED")


def main() -> None:
    """Wait for the end of standard input, then kill.

    Arguments: the marker's name, the start of its value, then the control groups whose children are payloads.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGTSTP):
        signal.signal(number, signal.SIG_IGN)
    while os.read(0, 4096):
        continue
    variable, value_start, *groups = sys.argv[1:]
    folders = [Path(group) for group in groups]
    kill_payloads(variable, value_start, folders)
    for folder in folders:
        for path in [*folder.glob("*/"), folder]:
            with contextlib.suppress(OSError):
                path.rmdir()


if __name__ == "__main__":
    main()
