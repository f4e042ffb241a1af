"""SQLite's log copied into the database beside the writer, so that hardly any commit has to wait for that.

SQLite itself lets a commit do it that finds the log long: the calls in it would wait for tens of milliseconds.
"""

from __future__ import annotations

import sqlite3
import threading

import structlog
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

log = structlog.get_logger()

_PAUSE_S = 1.0
"""What changes again within it is copied once."""
_FEW_PAGES = 200
"""When commits have added no more than these meanwhile, they are left for the next time."""


class Checkpoints:
    """The thread that copies the log; `due` tells it that there is something to copy."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._due = threading.Event()
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="checkpoints", daemon=True)
        self._thread.start()

    def due(self) -> None:
        """Let the log be copied soon."""
        if not self._due.is_set():  # which is quicker than to set it once more
            self._due.set()

    def close(self) -> None:
        """End the thread; what the log still has is copied when the last connection is closed."""
        self._closing.set()
        self._due.set()
        self._thread.join()

    def _serve(self) -> None:
        while self._due.wait() and not self._closing.is_set():
            self._due.clear()
            try:
                copy_log(self._engine)
            except (sqlite3.Error, SQLAlchemyError) as error:  # a full disk: commits are refused, and then go on
                log.warning("log not copied into the database", why=str(error))
            self._closing.wait(_PAUSE_S)


def copy_log(engine: Engine) -> None:
    """Copy what the log has into the database; commits go on meanwhile, and so it begins again for theirs."""
    connection = engine.raw_connection()
    try:
        cursor = connection.cursor()
        before, copied = 0, _FEW_PAGES + 1
        while copied - before > _FEW_PAGES:
            before = copied
            _, _, copied = cursor.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    finally:
        connection.close()
