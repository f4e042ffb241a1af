"""What many integration tests share: a grid at the server that they have together, and calls that wait in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from support.server import RunningServer
from support.waiting_calls import Polls
from support.wire_grid import WireGrid


@pytest.fixture
def grid(shared_server: RunningServer) -> Iterator[WireGrid]:
    """Return a grid with its tree in force."""
    grid = WireGrid(shared_server)
    grid.put_tree()
    yield grid
    grid.close()


@pytest.fixture
async def polls(grid: WireGrid) -> AsyncIterator[Polls]:
    """Return what lets calls wait in the grid's server."""
    async with Polls(grid) as polls:
        yield polls
