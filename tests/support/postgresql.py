"""A real PostgreSQL for tests, one for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.debian import found_or_installed
from support.postgresql_process import PostgresqlServer, installed_programs, running_postgresql


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    """Run one PostgreSQL for all tests; where there is none a test is skipped, but fails in CI."""
    with running_postgresql(found_or_installed(installed_programs, "postgresql")) as server:
        yield server
