"""A real PostgreSQL for tests, one for all of them."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from sqlalchemy import make_url

from support.debian import found_or_installed
from support.postgresql_process import PostgresqlServer, installed_programs, running_postgresql

ENVIRONMENT = "PILOTAGE_TEST_POSTGRESQL"
"""The URL of a database on a running server that takes PostgreSQL's place; its user may make databases."""


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    """Run one PostgreSQL for all tests; where there is none a test is skipped, but fails in CI."""
    elsewhere = os.environ.get(ENVIRONMENT)
    if elsewhere:
        server = PostgresqlServer(make_url(elsewhere))
        yield server
        server.forget()
        return
    with running_postgresql(found_or_installed(installed_programs, "postgresql")) as server:
        yield server
