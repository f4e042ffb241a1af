"""Lines to the database: connections that stay open from one transaction to the next, each with its session.

A transaction is the driver's own, begun and ended here. The session joins it late, when somebody wants more of it than
the statements of `bulk`: to begin and to end a session's own transaction costs as much as a dozen of those.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, Engine
from sqlalchemy.exc import DBAPIError
from sqlmodel import Session

from pilotage_server.storage import bulk
from pilotage_server.storage.connections import begin


class Line:
    """A connection, and the session that speaks over it."""

    __slots__ = ("_connection", "_driver", "session")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._driver = bulk.Driver(connection)
        self.session = Session(connection, autoflush=False)
        bulk.give_driver(self.session, self._driver)

    def begin(self) -> None:
        """Begin a transaction."""
        with self._driver:
            begin(self._connection)

    def commit(self) -> None:
        """Put the transaction on disk."""
        with self._driver:
            self._driver.commit()
        self._leave()

    def roll_back(self) -> None:
        """Undo the transaction."""
        with self._driver:
            self._driver.roll_back()
        self._leave()

    def _leave(self) -> None:
        """Let the session know that the transaction has ended."""
        if self.session.in_transaction():
            self.session.rollback()

    def close(self) -> None:
        """Undo what is under way and give the connection back, or away if it is lost."""
        try:
            self.roll_back()
        except DBAPIError:
            self._connection.invalidate()
        self._connection.close()


class Lines:
    """The lines that are open over an engine: whoever begins a transaction takes an idle one, or opens one more.

    `options` are execution options of their connections.
    """

    def __init__(self, engine: Engine, options: Mapping[str, Any] = MappingProxyType({})) -> None:
        self._engine = engine
        self._options = options
        self._idle: list[Line] = []

    def take(self) -> Line:
        """Return a line that nobody else has."""
        try:
            return self._idle.pop()
        except IndexError:
            return Line(self._engine.connect().execution_options(**self._options))

    def give_back(self, line: Line) -> None:
        """Take back a line whose transaction has ended well; of another nobody knows how it is: it is closed."""
        self._idle.append(line)

    def close_idle(self) -> None:
        """Close the lines that nobody uses."""
        while self._idle:
            self._idle.pop().close()
