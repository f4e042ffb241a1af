"""Files that only their owner may read."""

from __future__ import annotations

from pathlib import Path

from pilotage_client.whole_files import whole_file


def write_private(path: Path, text: str) -> None:
    """Write a file of mode 600, whole or not at all; raises WorldError where it cannot be written."""
    with whole_file(path, mode=0o600) as output:
        output.write(text.encode())
