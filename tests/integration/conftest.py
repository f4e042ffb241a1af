"""Shared fixtures: a grid at the shared server, and calls that wait in it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from support.long_polls import PendingPolls
from support.server import RunningServer
from support.wire_grid import WireGrid


@pytest.fixture
def grid(shared_server: RunningServer) -> Iterator[WireGrid]:
    """Return a grid with an active tree."""
    grid = WireGrid(shared_server)
    grid.put_tree()
    yield grid
    grid.close()


@pytest.fixture
async def polls(grid: WireGrid) -> AsyncIterator[PendingPolls]:
    """Return a maker of calls that wait in the grid's server."""
    async with PendingPolls(grid) as polls:
        yield polls
