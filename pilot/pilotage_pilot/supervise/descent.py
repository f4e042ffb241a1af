"""What lets no payload get away: the pilot adopts what loses its parent, and a warden outlives the pilot."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path

from pilotage_pilot.supervise.environment import MARKER

_PR_SET_CHILD_SUBREAPER = 36


def become_reaper() -> None:
    """Make this process the parent of all that its payloads leave without one, so that nothing escapes it."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


class Warden:
    """The process that kills the payloads when the pilot is killed; `marker` starts the marker of each of them."""

    def __init__(self, marker: str) -> None:
        script = Path(__file__).with_name("warden.py")
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(script), MARKER, f"{marker}/"],
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
