"""A server that the network cuts off from PostgreSQL keeps no locks, and notices it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import pytest
from sqlalchemy import URL, Connection, text
from sqlalchemy.exc import OperationalError

from pilotage_server.storage.database.connections import open_engines
from support.debian import find_or_install
from support.network import Host, Network
from support.postgresql import installed_programs, running_postgresql

pytestmark = [pytest.mark.process, pytest.mark.postgresql]


@pytest.fixture
def network() -> Iterator[Network]:
    with closing(Network()) as network:
        yield network


@pytest.fixture
def database_url(network: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[URL]:
    """Run PostgreSQL on a host of its own and return the URL of a database for other hosts."""
    programs = find_or_install(installed_programs, "postgresql")
    host = network.add_host("database")
    with network.inside(host), running_postgresql(programs, address=host.address) as server:
        yield server.new_database().set(host=host.address, port=5432, query={})


@contextmanager
def connected(network: Network, host: Host, database: URL) -> Iterator[Connection]:
    _, engine = open_engines(database.render_as_string(hide_password=False))
    with network.inside(host):
        connection = engine.connect()
    try:
        yield connection
    finally:
        connection.invalidate()
        engine.dispose()


def test_server_that_is_cut_off_loses_its_locks(network: Network, database_url: URL) -> None:
    first, second = network.add_host("server1"), network.add_host("server2")
    lock, limit = text("SELECT pg_advisory_xact_lock(1)"), text("SET lock_timeout = '90s'")
    with connected(network, first, database_url) as cut_off, connected(network, second, database_url) as other:
        cut_off.execute(lock)
        other.execute(limit)
        with ThreadPoolExecutor(1) as thread, network.isolated(first):
            answer = thread.submit(cut_off.execute, text("SELECT 1"))
            other.execute(lock)
            with pytest.raises(OperationalError):
                answer.result()
