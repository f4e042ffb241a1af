"""Names of files inside a job's folder: how deep they may lie, for all who make or read them."""

from __future__ import annotations

MOST_PARTS = 100
"""Folders are made and looked through level by level, and every level costs whoever does it."""


def is_too_deep(name: str) -> bool:
    """Whether more folders lie in one another in a file's name than may."""
    return name.count("/") >= MOST_PARTS
