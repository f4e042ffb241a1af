"""Whether this server's hot modules are compiled, or plain Python as they are written; the build decides."""

from __future__ import annotations

from importlib.machinery import EXTENSION_SUFFIXES

from pilotage_server.core import match_board


def is_compiled() -> bool:
    """Whether they are compiled: all of them, or none."""
    return match_board.__file__.endswith(tuple(EXTENSION_SUFFIXES))


def kind_of_build() -> str:
    """Return the same in words."""
    return "compiled" if is_compiled() else "plain Python"
