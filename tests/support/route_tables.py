"""Route tables: short texts, and the real tables, each read once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage_agents.router.core.table import RouteTable
from pilotage_agents.router.table_file import read_route_file
from support.shared_data import shared_data_dir

Reading = Callable[..., RouteTable]


@pytest.fixture
def read(tmp_path: Path) -> Reading:
    """Return what reads a text as a file of routes."""

    def reading(text: str, constraint: str = "") -> RouteTable:
        path = tmp_path / "routes.conf"
        path.write_text(text)
        return read_route_file(path, constraint=constraint)

    return reading


def refusal(read: Reading, text: str) -> list[str]:
    """Return why a text is refused, each fault with its place in the file."""
    with pytest.raises(InvalidInputError) as refused:
        read(text)
    return [str(violation).partition("routes.conf")[2] for violation in refused.value.violations]


def a_route(*statements: str, name: str = "A") -> str:
    """Return a configuration of one route, in HTCondor's transform language."""
    body = "\n  ".join(statements)
    return f"JOB_ROUTER_ROUTE_NAMES = {name}\nJOB_ROUTER_ROUTE_{name} @=end\n  {body}\n@end\n"


ROUTERS = sorted((shared_data_dir() or Path("nowhere")).glob("data/job_router/*"))
"""The files of routes; some are no table of their own."""


@cache
def constrained(path: Path) -> RouteTable:
    """Return the table in a file which is part of a configuration that says elsewhere which jobs are routed."""
    return read_route_file(path, constraint="WantJobRouter")
