"""Shared fixtures: the levels of isolation, and a scratch that payloads of every level can reach."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.values.isolation import Isolation


@pytest.fixture(params=[Isolation.NAMESPACE, Isolation.UID, Isolation.NONE])
def level(request: pytest.FixtureRequest) -> Isolation:
    """Return each level of isolation that a pilot's process can see."""
    level: Isolation = request.param
    return level


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Return a folder that other users may pass, unlike those of `tmp_path`."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)
