"""How long agents under test have their turn: long, unless a copy that is killed is to be followed soon."""

from __future__ import annotations

from pathlib import Path

LONG = "turn_s = 30"
"""The line of a configuration: no stall of this machine costs an agent its turn."""


def followed_soon(config: Path) -> Path:
    """Let a copy of this configuration that is killed be followed by another within seconds; returns the file."""
    text = config.read_text()
    assert LONG in text
    config.write_text(text.replace(LONG, "turn_s = 5"))
    return config
