"""Configuration of all tests: markers, hypothesis profiles, the choice of the database, and the real input."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import HealthCheck, settings

from support.shared_data import ENVIRONMENT, shared_data_dir

pytest_plugins = [
    "support.postgresql",
    "support.mosquitto",
    "support.object_store",
    "support.spin",
    "support.database",
    "support.server",
    "support.slurm",
    "support.sshd",
    "support.packages",
    "support.podman",
    "support.tools",
]

settings.register_profile("dev", max_examples=100, deadline=None)
settings.register_profile("ci", max_examples=100, deadline=None, derandomize=True)
settings.register_profile("brief", max_examples=20, deadline=None, derandomize=True)
settings.register_profile("deep", max_examples=5000, deadline=None, suppress_health_check=[HealthCheck.too_slow])
_IN_CI = os.environ.get("CI") == "true"
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if _IN_CI else "dev"))


MARKS_OF_FIXTURES = {
    "shared_data": ["shared_data"],
    "postgresql": ["postgresql_server"],
    "process": [
        *("server", "shared_server", "served", "mosquitto", "secured_mosquitto", "slurm", "slurm_clusters", "sshd"),
        *("spin", "podman", "object_store"),
        *("pilot_bundle", "compiled_packages", "previous_release", "install_tool"),
    ],
    "slow": ["compiled_packages"],
}
"""The fixtures that give a test each marker."""


# A server keeps a quarter of its reserve as a file: hundreds of servers of tests would fill the disk.
os.environ.setdefault("PILOTAGE_SERVER_DISK_RESERVE_MIB", "16")

# A pilot tries podman at its start, which takes a second: tests of containers say that they want it.
os.environ.setdefault("PILOTAGE_PILOT_CONTAINER_RUNTIMES", "[]")

_GENERATIONS = (50_000, 20, 50)
"""Thresholds of the garbage collector: the defaults scan all tests and modules too often."""


def pytest_configure() -> None:
    """Make garbage collections rare, and let interrupts reach the processes of tests."""
    gc.set_threshold(*_GENERATIONS)
    # A shell ignores SIGINT in background jobs, and children inherit that; tests interrupt theirs.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Exclude objects that live as long as the process from garbage collections."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option that chooses the database."""
    parser.addoption("--sqlite", action="store_true", help="run tests of any database on SQLite alone")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests by their fixtures and folders, so that they can be chosen or left out."""
    for item in items:
        if "e2e" in item.path.parts:
            item.add_marker("process")
        parameters = getattr(getattr(item, "callspec", None), "params", {}).values()
        if "postgresql" in parameters:
            item.add_marker("postgresql")
        if "s3" in parameters:
            item.add_marker("process")
        fixtures = frozenset(getattr(item, "fixturenames", ()))
        for mark, names in MARKS_OF_FIXTURES.items():
            if not fixtures.isdisjoint(names):
                item.add_marker(mark)


@pytest.fixture(scope="session", autouse=True)
def _no_cached_loggers() -> Iterator[None]:
    """Keep log lines capturable: a cached logger would keep the output of an earlier command in this process."""
    configure = structlog.configure

    def configure_without_cache(**options: Any) -> None:
        configure(**{**options, "cache_logger_on_first_use": False})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(structlog, "configure", configure_without_cache)
        yield


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Return the folder of the real input; without it a test is skipped, but fails in CI."""
    folder = shared_data_dir()
    if folder is None:
        message = f"there is no real input: set {ENVIRONMENT} to its folder, or put it beside the checkout"
        if _IN_CI:
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    return folder
