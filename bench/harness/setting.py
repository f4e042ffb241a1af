"""The setting of a bench: size, folders, database, cores."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.figures import Figure, state
from harness.lhcb import VO, LhcbDay
from harness.processes import LOAD_CORE, SERVER_CORE, on_core
from support.postgresql import PostgresqlServer, installed_programs, running_postgresql
from support.server import RunningServer, running_server
from support.shared_data import ENVIRONMENT, shared_data_dir

DURABLE = {"fsync": "on", "synchronous_commit": "on", "shared_buffers": "1GB", "max_wal_size": "8GB"}
"""PostgreSQL's settings: acknowledged transactions are on disk."""

DATABASES = ("sqlite", "postgresql")

SHARING: Mapping[str, Any] = {
    "priority_factors": {f"{VO}/lhcb_user/mmulder": 2.0},
    "running_limits": [
        {"site": "LCG.CERN.cern", "attribute": "owner", "value": "sharmar", "at_most": 1},
        {"site": "LCG.CERN.cern", "attribute": "owner", "value": "lbprods", "at_most": 10**8},
    ],
}
"""Fair share, and two running limits: one is reached at once, one is only counted."""


@dataclass(frozen=True, slots=True)
class Setting:
    """The options of a bench; `scale` 1 is the size of the budgets."""

    scale: float
    database: str

    def size(self, full: int, least: int = 1) -> int:
        """Return a number at full scale reduced to this scale."""
        return max(least, round(full * self.scale))

    def seconds(self, full: float) -> float:
        """Return a duration at full scale reduced to this scale."""
        return max(0.3, full * min(1.0, 10 * self.scale))


def _read_setting(about: str | None) -> Setting:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--scale", type=float, default=1.0, help="the size as a part of the full one, such as 0.01")
    parser.add_argument("--database", choices=DATABASES, default="sqlite", help="on which database")
    options = parser.parse_args()
    return Setting(options.scale, options.database)


def bench(figures: Callable[[Setting], Iterable[Figure]], about: str | None) -> int:
    """Run a bench in the setting of the command line and print each figure; returns the exit code."""
    return state(figures(_read_setting(about)))


def shared_data() -> Path:
    """Return the folder of the real input; exits if there is none."""
    folder = shared_data_dir()
    if folder is None:
        bench_name = Path(sys.argv[0]).stem
        sys.exit(f"{bench_name}: there is no real input: set {ENVIRONMENT}, or put it beside the checkout")
    return folder


def the_day() -> LhcbDay:
    """Return the tables of the day."""
    return LhcbDay(shared_data())


@contextmanager
def durable_postgresql() -> Iterator[PostgresqlServer]:
    """Run a PostgreSQL with durable commits; exits if it is not installed."""
    programs = installed_programs()
    if programs is None:
        sys.exit("there is no PostgreSQL here: install it, as a package or from source, with initdb on PATH")
    with running_postgresql(programs, DURABLE) as postgresql:
        yield postgresql


@contextmanager
def database_url(database: str) -> Iterator[str | None]:
    """Yield the URL of an empty database of this kind; None = SQLite in the server's folder."""
    if database == "sqlite":
        yield None
        return
    with durable_postgresql() as postgresql:
        yield postgresql.new_database().render_as_string()


@contextmanager
def server_on_its_core(data: Path, url: str | None = None, **settings: Any) -> Iterator[RunningServer]:
    """Run a server on its core, and this thread on the load core, until the end of the block."""
    all_settings = {"log_level": "warning", **({} if url is None else {"database": url}), **settings}
    with (
        on_core(SERVER_CORE),
        running_server(data, **all_settings) as server,
        on_core(LOAD_CORE),
    ):
        yield server


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield a folder that is removed at the end of the block."""
    with tempfile.TemporaryDirectory(prefix="pilotage-bench-") as folder:
        yield Path(folder)
