"""Bans that are stored in groups, for tests of how transactions are grouped."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ClassVar, Self

from sqlalchemy import Table, insert, select

from pilotage.errors import NotFoundError, PilotageError, WorldError
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.database.transaction import Transaction, WriteConflictError

BANS: Table = metadata.tables["bans"]
WAIT_S = 30


def ban(transaction: Transaction, site: str) -> str:
    """Ban a site."""
    row = {"site": site, "ce": "", "queue": "", "reason": "", "by": "op", "since": transaction.now, "until": None}
    transaction.session.execute(insert(BANS).values(**row))
    return site


def ban_by_statement(transaction: Transaction, site: str) -> str:
    """Do the same by a statement of its own."""
    statement = "INSERT INTO bans (site, ce, queue, reason, by, since) VALUES (?, '', '', '', 'op', ?)"
    sql.execute(transaction.session, statement, site, sql.column_time(transaction.session, transaction.now))
    return site


def banned(transaction: Transaction) -> list[str]:
    """Return the sites that are banned, in the order in which they were."""
    return list(transaction.session.execute(select(BANS.c.site).order_by(BANS.c.id)).scalars())


class Bans:
    """A batch that bans sites; `calls` are the items of each transaction that it was run in, kept or not."""

    most = 100

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.undone: list[str] = []

    def run(self, transaction: Transaction, items: Sequence[str]) -> list[str | PilotageError]:
        self.calls.append(list(items))
        transaction.on_rollback(lambda: self.undone.extend(items))
        return [self._ban(transaction, site) for site in items]

    def _ban(self, transaction: Transaction, site: str) -> str | PilotageError:
        match site:
            case "unknown":
                return NotFoundError("site", site)
            case "broken":
                raise LookupError(site)
            case "null":
                return ban(transaction, None)  # type: ignore[arg-type]
            case "overtaken":
                raise WriteConflictError(site)
            case _:
                return ban(transaction, site)


@dataclass
class LastActs:
    """A tab that bans sites when all else is done."""

    rank: ClassVar[int] = 2

    sites: list[str] = field(default_factory=list)

    def merge(self, part: Self) -> None:
        self.sites += part.sites

    def write(self, transaction: Transaction) -> None:
        for site in self.sites:
            if site == "broken":
                raise LookupError(site)
            if site == "unreachable":
                raise WorldError("the database is not available", transient=True)
            ban(transaction, site)


@dataclass
class FirstActs(LastActs):
    """The same, before."""

    rank: ClassVar[int] = 1


@contextmanager
def held(database: Database) -> Iterator[None]:
    """Keep all writers busy in the block, so that what is submitted there becomes one group when it ends."""
    release = threading.Event()
    started = [threading.Event() for _ in range(database.writers)]

    def hold(transaction: Transaction, mine: threading.Event) -> None:
        mine.set()
        assert release.wait(WAIT_S)

    for each in started:
        database.submit_write(lambda transaction, mine=each: hold(transaction, mine))  # type: ignore[misc]
        assert each.wait(WAIT_S)
    yield
    release.set()


def outcomes(futures: Sequence[Future[str]]) -> list[str]:
    """Return the results, or the names of the errors."""
    return [type(error).__name__ if (error := each.exception(WAIT_S)) else each.result() for each in futures]
