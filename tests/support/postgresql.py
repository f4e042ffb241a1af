"""A real PostgreSQL in a scratch folder behind a Unix socket, one for all tests of a process."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Connection, MetaData, create_engine, make_url, text
from sqlalchemy.engine import URL

from pilotage_server.storage.database.engine import SCHEMA_LOCK
from support.debian import find_or_install

ENVIRONMENT = "PILOTAGE_TEST_POSTGRESQL"
"""The URL of a database on a running server to use instead; its user may create databases."""


_READY = "database system is ready to accept connections"
_USER = "pilotage"
_TIMEOUT_S = 120

QUICK: Mapping[str, str] = {
    "fsync": "off",
    "synchronous_commit": "off",
    "full_page_writes": "off",
    "autovacuum": "off",
}
"""Settings of a server whose data need not survive the tests.

Without autovacuum, which also counts rows, query plans do not depend on earlier tests.
"""


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[PostgresqlServer]:
    """Run one PostgreSQL for all tests; without one, tests are skipped, and fail in CI."""
    elsewhere = os.environ.get(ENVIRONMENT)
    if elsewhere:
        server = PostgresqlServer(make_url(elsewhere))
        yield server
        server.forget()
        return
    with running_postgresql(find_or_install(installed_programs, "postgresql")) as server:
        yield server


_USED_TABLES = """
SELECT t.relname FROM pg_class t
WHERE t.relkind = 'r' AND t.relnamespace = 'public'::regnamespace AND (
    pg_relation_size(t.oid) > 0 OR t.reltuples >= 0 OR EXISTS (
        SELECT FROM pg_depend d JOIN pg_class s ON s.oid = d.objid WHERE d.refobjid = t.oid
        AND CASE s.relkind WHEN 'S' THEN pg_sequence_last_value(s.oid) IS NOT NULL ELSE false END
    )
)
"""
"""The tables that differ from new ones: rows were written or counted, or a sequence was used, even if rolled back."""


class PostgresqlServer:
    """A running server; `new_database` gives an empty database on it, `emptied_database` one with empty tables.

    `url` is that of a database on the server, which serves to create others. `process` None = it is not ours.
    """

    def __init__(self, url: URL, process: PostgresqlProcess | None = None) -> None:
        self._url = url
        self.process = process
        self._with_tables: URL | None = None

    def url(self, database: str) -> URL:
        """Return the URL of a database on this server."""
        return self._url.set(database=database)

    def new_database(self) -> URL:
        """Create an empty database and return its URL."""
        url = self.url(f"test_{uuid4().hex}")
        self._run(f"CREATE DATABASE {url.database}")
        return url

    def emptied_database(self, metadata: MetaData) -> URL:
        """Return the URL of a database with these tables, all empty: always the same one, which saves time.

        Connections that are still open, such as those of a failed test, are terminated.
        """
        if self._with_tables is None:
            self._with_tables = self.new_database()
            engine = create_engine(self._with_tables)
            metadata.create_all(engine)
            engine.dispose()
        disconnect = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()"
        with self._connected(self._with_tables) as connection:
            connection.execute(text(f"{disconnect} AND datname = '{self._with_tables.database}'"))
            used = connection.execute(text(_USED_TABLES)).scalars().all()
            if used:  # truncating all tables takes much longer
                tables = ", ".join(f'"{name}"' for name in used)
                connection.execute(text(f"TRUNCATE {tables} RESTART IDENTITY CASCADE"))
        return self._with_tables

    def forget(self) -> None:
        """Remove the database with empty tables, if there is one."""
        if self._with_tables is not None:
            self.drop(self._with_tables)
            self._with_tables = None

    def refuse_connections(self, url: URL) -> None:
        """Take a database away from its clients: their connections end, and new ones are refused."""
        self._run(f"ALTER DATABASE {url.database} WITH ALLOW_CONNECTIONS false")
        self._run(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{url.database}'")

    def accept_connections(self, url: URL) -> None:
        """Let clients connect to a database again."""
        self._run(f"ALTER DATABASE {url.database} WITH ALLOW_CONNECTIONS true")

    @contextmanager
    def schema_locked(self, url: URL) -> Iterator[Callable[[], int]]:
        """Keep servers from upgrading a database until the end of the block.

        The function that is returned ends the connections of those that wait, as a crash would, and says how many.
        """
        end_waiting = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            f" WHERE datname = '{url.database}' AND wait_event_type = 'Lock'"
        )
        with self._connected(url) as connection:
            connection.execute(text(f"SELECT pg_advisory_lock({SCHEMA_LOCK})"))
            yield lambda: int(connection.execute(text(end_waiting)).scalar_one())
            connection.execute(text(f"SELECT pg_advisory_unlock({SCHEMA_LOCK})"))

    def drop(self, url: URL) -> None:
        """Remove a database and end its connections."""
        self._run(f"DROP DATABASE {url.database} WITH (FORCE)")

    def replace_database(self, url: URL) -> None:
        """Replace a database by an empty one of the same name, as before a dump is put back."""
        self.drop(url)
        self._run(f"CREATE DATABASE {url.database}")

    def run_on(self, url: URL, statement: str) -> None:
        """Run a statement on a database, as another program would."""
        with self._connected(url) as connection:
            connection.execute(text(statement))

    def _run(self, statement: str) -> None:
        with self._connected(self._url) as connection:
            connection.execute(text(statement))

    @contextmanager
    def _connected(self, url: URL) -> Iterator[Connection]:
        engine = create_engine(url, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                yield connection
        finally:
            engine.dispose()


def installed_programs() -> Path | None:
    """Return the folder of the newest PostgreSQL of this machine; None = it has none."""
    on_path = shutil.which("initdb")
    versions = sorted(
        Path("/usr/lib/postgresql").glob("[0-9]*/bin"), key=lambda folder: int(folder.parent.name), reverse=True
    )
    folders = [*([Path(on_path).resolve().parent] if on_path else []), *versions]
    return next((folder for folder in folders if (folder / "postgres").exists()), None)


@contextmanager
def running_postgresql(
    programs: Path, settings: Mapping[str, str] = QUICK, environment: Mapping[str, str] = {}, *, address: str = ""
) -> Iterator[PostgresqlServer]:
    """Run a server with these settings, and these variables too, in a new folder.

    It is stopped, and the folder removed, at the end. It also listens at `address`, for all who reach that.
    """
    folder = Path(tempfile.mkdtemp(prefix="pilotage-postgresql-"))
    become = _unprivileged_prefix(folder) if os.geteuid() == 0 else []
    data = folder / "data"
    try:
        _make_cluster([*become, str(programs / "initdb")], data)
        with (data / "pg_hba.conf").open("a") as access:
            access.write("host all all all trust\n")
        settings = {**settings, "listen_addresses": address}
        process = PostgresqlProcess([*become, *_server_command(programs, folder, data, settings)], environment)
        process.start()
        try:
            url = URL.create("postgresql+psycopg", _USER, database="postgres", query={"host": str(folder)})
            yield PostgresqlServer(url, process)
        finally:
            process.stop()
    finally:
        shutil.rmtree(folder)


def _unprivileged_prefix(folder: Path) -> list[str]:
    """Return the command prefix that drops root privileges, as PostgreSQL requires."""
    names = {user.pw_name for user in pwd.getpwall()}
    user = pwd.getpwnam("postgres" if "postgres" in names else "nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]


def _make_cluster(initdb: list[str], data: Path) -> None:
    options = ["--username", _USER, "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C"]
    command = [*initdb, "-D", str(data), *options]
    done = subprocess.run(command, cwd="/", capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
    assert done.returncode == 0, f"initdb failed: {done.stderr}"


def _server_command(programs: Path, folder: Path, data: Path, settings: Mapping[str, str]) -> list[str]:
    all_settings = {
        "unix_socket_directories": str(folder),
        "max_connections": "200",
        "timezone": "Asia/Tokyo",  # a zone that differs from UTC all year
        **settings,
    }
    options = [option for name, value in all_settings.items() for option in ("-c", f"{name}={value}")]
    return [str(programs / "postgres"), "-D", str(data), *options]


class PostgresqlProcess:
    """The process of a server; `start` returns when it is ready."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._command = command
        self._environment = {**os.environ, **environment}
        self._output: deque[str] = deque(maxlen=50)
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        """Start the server."""
        process = subprocess.Popen(
            self._command, cwd="/", env=self._environment, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )
        ready = threading.Event()
        self._process, self._reader = process, threading.Thread(target=self._listen, args=(process, ready))
        self._reader.start()
        ready.wait(_TIMEOUT_S)
        assert process.poll() is None, f"PostgreSQL did not start: {''.join(self._output)}"

    def stop(self, number: signal.Signals = signal.SIGINT) -> None:
        """Stop the server: SIGINT ends it in order, SIGQUIT at once, as a crash would."""
        process, reader = self._process, self._reader
        if process is None or reader is None:
            return
        process.send_signal(number)
        process.wait(_TIMEOUT_S)
        reader.join()
        assert process.stderr is not None
        process.stderr.close()
        self._process = None

    def _listen(self, process: subprocess.Popen[str], ready: threading.Event) -> None:
        assert process.stderr is not None
        for line in process.stderr:
            self._output.append(line)
            if _READY in line:
                ready.set()
        ready.set()
