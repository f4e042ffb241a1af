"""What payloads of the tests need in their namespaces: this Python, this repository, and folders for their marks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

SOFTWARE = Path(sys.base_prefix), Path(sys.prefix), Path(__file__).parents[2]
"""This Python and this repository, wherever they are installed."""


def payload_paths(*marks: Path) -> dict[str, list[str]]:
    """Return settings of a pilot with which payloads, which may be other users, can write to these folders."""
    for folder in marks:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
    return {"visible_paths": [*map(str, SOFTWARE)], "writable_paths": [*map(str, marks)]}


def payload_lines(*marks: Path) -> str:
    """Return the settings of `payload_paths` in TOML."""
    return "\n".join(f"{name} = {json.dumps(paths)}" for name, paths in payload_paths(*marks).items())
