"""Real route tables, each read once: most are read by HTCondor's parser in a process of its own."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from pilotage_agents.router.core.table import RouteTable
from pilotage_agents.router.table_file import read_route_file
from support.shared_data import shared_data_dir

ROUTERS = sorted((shared_data_dir() or Path("nowhere")).glob("data/job_router/*"))
"""The files of routes; some are no table of their own."""


@cache
def constrained(path: Path) -> RouteTable:
    """Return the table in a file which is part of a configuration that says elsewhere which jobs are routed."""
    return read_route_file(path, constraint="WantJobRouter")
