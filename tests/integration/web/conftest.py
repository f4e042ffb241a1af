"""A server with its web page, a browser, and their visitors, for the pages of each module."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import pytest_asyncio

from support.browser import a_browser
from support.server import RunningServer, running_server
from support.web_scene import WebScene
from support.wire_grid import WireGrid


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("web") / "data", http_listen="127.0.0.1:0") as server:
        yield server


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(server: RunningServer) -> AsyncIterator[WebScene]:
    """A grid with one site."""
    grid = WireGrid(server)
    grid.put_tree()
    async with a_browser() as browser:
        yield WebScene(grid, browser)
    grid.close()
