"""A server over a database for tests of pools and trees, and bans as sample writes for tests of transactions."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence, Set
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar, Self, TypeVar

from sqlalchemy import Table, insert, select

from pilotage.errors import NotFoundError, PilotageError, WorldError
from pilotage.job_description import JobDescription, Value
from pilotage.resources.tree import QueueId
from pilotage_server.core.identity import Identity, Role
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.core.queueing.tree_plan import TreeEffect
from pilotage_server.core.resources.pools import Pool
from pilotage_server.core.rules import Rules
from pilotage_server.operations.attempts.transitions import apply_transition
from pilotage_server.operations.jobs.new_jobs import store_part
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.put_tree import put_tree, try_tree
from pilotage_server.operations.resources.pools import (
    clean_pools,
    load_mappings,
    plan_cleaning,
    plan_refresh,
    refresh_pools,
)
from pilotage_server.operations.resources.tree import NewTree, load_active_tree, parse_tree
from pilotage_server.operations.server_state import ServerState
from pilotage_server.operations.startup.loading import load_state
from pilotage_server.operations.startup.sync import sync_resources
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.database.transaction import Transaction, WriteConflictError
from pilotage_server.storage.jobs import load_job
from pilotage_server.storage.pools import load_pools

Result = TypeVar("Result")

OPERATOR = Identity("olga", "", (), frozenset({Role.OPERATOR}))
BIG = QueueId("CERN", "ce01", "big")
SMALL = QueueId("CERN", "ce01", "small")
FAR = QueueId("FNAL", "ce02", "far")
BANS: Table = metadata.tables["bans"]
WAIT_S = 30


def a_user(vo: str = "cms", owner: str = "alice") -> Identity:
    """Return a user of a VO."""
    return Identity(owner, vo, ("users",), frozenset({Role.USER}))


def a_new_tree(**top_level: object) -> NewTree:
    """Return the tree of this data as an operator submits it."""
    return parse_tree(json.dumps({"sites": {}, **top_level}), "json")


def three_queues(*, big: int = 8000, **top_level: object) -> NewTree:
    """Return a tree with BIG (by default 8000 MiB), SMALL (2000) and FAR (4000, for VO cms only)."""
    queues = {"big": {"Memory": big}, "small": {"Memory": 2000}}
    cern = {"ces": {"ce01": {"queues": queues}}}
    fnal = {"ces": {"ce02": {"queues": {"far": {"Memory": 4000, "VOs": ["cms"]}}}}}
    return a_new_tree(sites={"CERN": cern, "FNAL": fnal}, **top_level)


class PoolBench:
    """A server over `database`; another instance is another server of the same installation."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self.state: ServerState = database.read(lambda transaction: load_state(transaction, Rules()))

    def write(self, operation: Callable[[Transaction, ServerState], Result]) -> Result:
        """Run an operation in one transaction."""
        return self.database.write(lambda transaction: operation(transaction, self.state))

    def read(self, operation: Callable[[Transaction, ServerState], Result]) -> Result:
        """Run an operation that changes nothing."""
        return self.database.read(lambda transaction: operation(transaction, self.state))

    def put(self, new: NewTree) -> TreeEffect:
        """Make this tree the active one; returns its effect."""
        plan = self.read(lambda transaction, state: try_tree(transaction, state, new))
        return self.write(lambda transaction, state: put_tree(transaction, state, OPERATOR, new, plan))

    def attempt(self, new: NewTree) -> TreeEffect:
        """Return the effect that a tree would have."""
        return self.read(lambda transaction, state: try_tree(transaction, state, new).effect)

    def submit(self, user: Identity | None = None, count: int | None = None, **section: Value) -> JobRecord:
        """Submit a job with this Requirements section; returns it, or the first of an array."""
        description = JobDescription("run.sh", requirements=section or None, count=count)
        owner = user or a_user()
        submitted = self.write(
            lambda transaction, state: submit_jobs(transaction, state, owner, single_groups([description]))
        )
        while self.write(lambda transaction, state: store_part(transaction, state, submitted.job_ids[0])):
            pass
        return self.job(submitted.job_ids[0])

    def job(self, job_id: int) -> JobRecord:
        return self.database.read(lambda transaction: load_job(transaction.session, job_id))

    def remove(self, job: JobRecord) -> None:
        """Remove a job."""
        now = self.job(job.id)
        self.write(
            lambda transaction, state: apply_transition(
                transaction, state, now, JobCause.REMOVED, reason="enough", actor=job.owner
            )
        )

    def refresh(self, **older_than: float) -> tuple[str, ...]:
        """Refresh the mappings of this age, such as `refresh(minutes=15)`."""
        planned = self.read(lambda transaction, state: plan_refresh(transaction, state, timedelta(**older_than)))
        return self.write(lambda transaction, state: refresh_pools(transaction, state, planned))

    def clean(self, **grace: float) -> tuple[str, ...]:
        """Remove the pools that have been idle for this time, such as `clean(hours=1)`."""
        planned = self.database.read(lambda transaction: plan_cleaning(transaction, timedelta(**grace)))
        return self.write(lambda transaction, state: clean_pools(transaction, state, timedelta(**grace), planned))

    def stored(self) -> dict[str, Pool]:
        """Return the pools in the database by id."""
        return {pool.id: pool for pool in self.database.read(lambda transaction: load_pools(transaction.session))}

    def stored_queues(self, pool_id: str) -> Set[QueueId]:
        """Return the stored mapping of a pool."""
        return self.database.read(
            lambda transaction: load_mappings(transaction, load_active_tree(transaction)).queues(pool_id)
        )

    def check_consistency(self) -> None:
        """Check that memory and database agree on tree, mappings, waiting jobs and bans."""
        fresh = self.database.read(lambda transaction: load_state(transaction, Rules()))
        assert self.state.tree.version == fresh.tree.version
        assert set(self.state.mappings.all()) == set(fresh.mappings.all())
        in_memory, stored = self.state.waiting.waiting(), fresh.waiting.waiting()
        assert [(wait.task_queue, wait.count) for wait in in_memory] == [
            (wait.task_queue, wait.count) for wait in stored
        ]
        assert all(wait.head in {None, expected.head} for wait, expected in zip(in_memory, stored, strict=True))
        assert self.state.bans == fresh.bans

    def sync(self) -> None:
        """Apply the changes of other servers."""
        self.read(sync_resources)


def ban(transaction: Transaction, site: str) -> str:
    """Ban a site through the session."""
    row = {"site": site, "ce": "", "queue": "", "reason": "", "by": "op", "since": transaction.now, "until": None}
    transaction.session.execute(insert(BANS).values(**row))
    return site


def ban_by_statement(transaction: Transaction, site: str) -> str:
    """Ban a site by a statement of its own."""
    statement = "INSERT INTO bans (site, ce, queue, reason, by, since) VALUES (?, '', '', '', 'op', ?)"
    sql.execute(transaction.session, statement, site, sql.column_time(transaction.session, transaction.now))
    return site


def banned(transaction: Transaction) -> list[str]:
    """Return the banned sites in the order of their bans."""
    return list(transaction.session.execute(select(BANS.c.site).order_by(BANS.c.id)).scalars())


class Bans:
    """A batch that bans sites; `calls` are the items of each of its transactions, committed or not."""

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
class LateBans:
    """A deferred write that bans sites after the `EarlierBans`."""

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
class EarlyBans(LateBans):
    """A deferred write that bans sites before the `LateBans`."""

    rank: ClassVar[int] = 1


@contextmanager
def blocked_writers(database: Database) -> Iterator[None]:
    """Block all writers, so that the writes submitted in the block become one group commit at its end."""
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
    """Return the result of each future, or the name of its error."""
    return [type(error).__name__ if (error := each.exception(WAIT_S)) else each.result() for each in futures]
