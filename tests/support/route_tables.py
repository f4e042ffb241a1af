"""Route tables from short texts and from the real files, each read once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage_agents.router.core.table import RouteTable
from pilotage_agents.router.table_file import read_route_file
from support.shared_data import shared_data_dir

TableReader = Callable[..., RouteTable]


@pytest.fixture
def read(tmp_path: Path) -> TableReader:
    """Return a function that reads a text as a route file."""

    def read_text(text: str, constraint: str = "") -> RouteTable:
        path = tmp_path / "routes.conf"
        path.write_text(text)
        return read_route_file(path, constraint=constraint)

    return read_text


def refusal(read: TableReader, text: str) -> list[str]:
    """Return the violations of a malformed text, each with its position in the file."""
    with pytest.raises(InvalidInputError) as error:
        read(text)
    return [str(violation).partition("routes.conf")[2] for violation in error.value.violations]


def a_route(*statements: str, name: str = "A") -> str:
    """Return a configuration of one route, in HTCondor's transform language."""
    body = "\n  ".join(statements)
    return f"JOB_ROUTER_ROUTE_NAMES = {name}\nJOB_ROUTER_ROUTE_{name} @=end\n  {body}\n@end\n"


ROUTERS = sorted((shared_data_dir() or Path("nowhere")).glob("data/job_router/*"))
"""The real route files; some are only parts of a table."""


@cache
def constrained(path: Path) -> RouteTable:
    """Return the table of a file whose constraint is in another part of the configuration."""
    return read_route_file(path, constraint="WantJobRouter")
