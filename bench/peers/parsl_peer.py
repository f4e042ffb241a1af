"""Parsl's high-throughput executor with two workers: no-op apps, or apps that run /bin/true.

Run by the Python of its own environment: parsl_peer.py WORK JOBS. Prints the seconds from the first submission to the
last result; the workers are started before.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, wait

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.providers import LocalProvider

WORKERS = 2
PREFETCH = 10
"""Tasks that a manager prefetches, as Parsl's guide recommends for short tasks."""


@parsl.python_app
def noop() -> None:
    """Do nothing."""


@parsl.python_app
def true() -> None:
    """Run a process."""
    import subprocess

    subprocess.run(["/bin/true"], check=True)


def config(folder: str) -> Config:
    """Return a configuration for this machine, without features that cost time."""
    executor = HighThroughputExecutor(
        max_workers_per_node=WORKERS,
        address="127.0.0.1",
        prefetch_capacity=PREFETCH,
        encrypted=False,
        provider=LocalProvider(init_blocks=1, max_blocks=1),
    )
    return Config([executor], strategy="none", run_dir=folder, initialize_logging=False, usage_tracking=0)


def measure(app: Callable[[], Future[None]], jobs: int) -> float:
    """Return the seconds for `jobs` calls."""
    wait([app() for _ in range(20)])
    began_s = time.perf_counter()
    for call in [app() for _ in range(jobs)]:
        call.result()
    return time.perf_counter() - began_s


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, parsl.load(config(folder)):
        print(measure({"noop": noop, "true": true}[sys.argv[1]], int(sys.argv[2])))
