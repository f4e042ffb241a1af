"""Which processes of this machine run."""

from __future__ import annotations

from pathlib import Path


def is_running(pid: int | str) -> bool:
    """Return whether a process runs; one that has ended does not, though nobody may have asked how."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # also one that ends as it is looked at
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
