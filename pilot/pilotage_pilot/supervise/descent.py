"""What lets no payload get away: the pilot adopts what loses its parent, and a warden outlives the pilot."""

from __future__ import annotations

import ctypes
import os
import resource
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from pilotage.job_environment import MARKER
from pilotage_pilot.supervise.processes import children_of, children_of_first_thread

_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36


def hide_memory() -> None:
    """Let no other process of this user read this one's memory and environment, where its token is."""
    _prctl(_PR_SET_DUMPABLE, 0)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def adopt_orphans(*, on: bool) -> None:
    """Make this process the parent of all that its payloads leave without one, so that nothing escapes it; or not."""
    _prctl(_PR_SET_CHILD_SUBREAPER, int(on))


class Descent:
    """The children of this process that are payloads, and those that payloads have left to it."""

    def __init__(self) -> None:
        self._no_payloads = frozenset(children_of(os.getpid()))
        self._leaders: set[int] = set()
        self._pilots_peak_kib = 0
        adopt_orphans(on=True)

    def except_for(self, pid: int) -> None:
        """Take a child of this process for no payload."""
        self._no_payloads |= {pid}

    def begins(self, leader: int) -> None:
        """Take a child for the leader of a payload."""
        self._leaders.add(leader)

    def ends(self, leader: int) -> None:
        """Take a payload to be over."""
        self._leaders.discard(leader)

    def adopted(self) -> set[int]:
        """Return the children that were left to this process.

        The kernel leaves them to its first thread (find_new_reaper in kernel/exit.c), where it has any.
        """
        return set(children_of_first_thread(os.getpid())) - self._no_payloads - self._leaders

    def own_peak_mib(self, peak_kib: int) -> int:
        """Return a child's largest memory in MiB; 0 = not known: until its exec it had the pilot's, which counts."""
        if peak_kib > self._pilots_peak_kib:  # the pilot may have grown since; asking takes its time
            self._pilots_peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return -(-peak_kib // 1024) if peak_kib > self._pilots_peak_kib else 0

    def is_alone(self, leader: int) -> bool:
        """Whether there is no other payload, so that all that was left to this process is this one's."""
        return self._leaders <= {leader}


class Warden:
    """The process that kills the payloads when the pilot is killed.

    `marker` starts the marker of each of them; `groups` are control groups below which they are, if there are any.
    """

    def __init__(self, marker: str, groups: Iterable[Path] = ()) -> None:
        script = Path(__file__).with_name("warden.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), MARKER, f"{marker}/", *map(str, groups)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={},
        )
        self.pid = self._process.pid

    def end(self, patience_s: float) -> None:
        """Let it look once more for what may have got away, and end."""
        try:
            self._process.communicate(timeout=patience_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
