"""Transactions in groups: who fails, who does not, and when answers are given, on every database."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import ClassVar, Self

import pytest
from sqlalchemy import Table, insert, select
from sqlalchemy.exc import IntegrityError
from structlog.testing import capture_logs

from pilotage.errors import NotFoundError, PilotageError, WorldError
from pilotage_server.storage import bulk
from pilotage_server.storage.engine import Database, Unit, closing
from pilotage_server.storage.tables import metadata
from pilotage_server.storage.unit import OvertakenError

BANS: Table = metadata.tables["bans"]
WAIT_S = 30


def ban(unit: Unit, site: str) -> str:
    row = {"site": site, "ce": "", "queue": "", "reason": "", "by": "op", "since": unit.now, "until": None}
    unit.session.execute(insert(BANS).values(**row))
    return site


def ban_by_statement(unit: Unit, site: str) -> str:
    statement = "INSERT INTO bans (site, ce, queue, reason, by, since) VALUES (?, '', '', '', 'op', ?)"
    bulk.once(unit.session, statement, site, bulk.moment(unit.session, unit.now))
    return site


def banned(unit: Unit) -> list[str]:
    return list(unit.session.execute(select(BANS.c.site).order_by(BANS.c.id)).scalars())


class Bans:
    """A batch that bans sites; `calls` are the items of each transaction that it was run in, kept or not."""

    most = 100

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.undone: list[str] = []

    def run(self, unit: Unit, items: Sequence[str]) -> list[str | PilotageError]:
        self.calls.append(list(items))
        unit.on_rollback(lambda: self.undone.extend(items))
        return [self._ban(unit, site) for site in items]

    def _ban(self, unit: Unit, site: str) -> str | PilotageError:
        match site:
            case "unknown":
                return NotFoundError("site", site)
            case "broken":
                raise LookupError(site)
            case "null":
                return ban(unit, None)  # type: ignore[arg-type]
            case "overtaken":
                raise OvertakenError(site)
            case _:
                return ban(unit, site)


@dataclass
class LastActs:
    """A tab that bans sites when all else is done."""

    rank: ClassVar[int] = 2

    sites: list[str] = field(default_factory=list)

    def take_over(self, part: Self) -> None:
        self.sites += part.sites

    def write(self, unit: Unit) -> None:
        for site in self.sites:
            if site == "broken":
                raise LookupError(site)
            if site == "unreachable":
                raise WorldError("the database does not serve", transient=True)
            ban(unit, site)


@dataclass
class FirstActs(LastActs):
    """The same, before."""

    rank: ClassVar[int] = 1


@contextmanager
def held(database: Database) -> Iterator[None]:
    """Keep all writers busy in the block, so that what is submitted there becomes one group when it ends."""
    release = threading.Event()
    started = [threading.Event() for _ in range(database.writers)]

    def hold(unit: Unit, mine: threading.Event) -> None:
        mine.set()
        assert release.wait(WAIT_S)

    for each in started:
        database.submit_write(lambda unit, mine=each: hold(unit, mine))  # type: ignore[misc]
        assert each.wait(WAIT_S)
    yield
    release.set()


def outcomes(futures: Sequence[Future[str]]) -> list[str]:
    """Return the results, or the names of the errors."""
    return [type(error).__name__ if (error := each.exception(WAIT_S)) else each.result() for each in futures]


def test_items_that_wait_for_one_batch_are_handled_in_one_transaction_in_order(database: Database) -> None:
    batch = Bans()
    with held(database):
        futures = [database.submit_batch(batch, site) for site in "ABC"]
    assert outcomes(futures) == ["A", "B", "C"]
    assert batch.calls == [["A", "B", "C"]]
    assert database.read(banned) == ["A", "B", "C"]


def test_no_transaction_takes_more_items_than_the_batch_bears(database: Database) -> None:
    batch = Bans()
    batch.most = 2
    with held(database):
        futures = [database.submit_batch(batch, site) for site in "ABCDE"]
    assert outcomes(futures) == ["A", "B", "C", "D", "E"]
    assert sorted(batch.calls) == [["A", "B"], ["C", "D"], ["E"]]


def test_an_item_with_an_error_for_a_result_fails_alone(database: Database) -> None:
    batch = Bans()
    with held(database):
        futures = [database.submit_batch(batch, site) for site in ("A", "unknown", "B")]
    assert outcomes(futures) == ["A", "NotFoundError", "B"]
    assert len(batch.calls) == 1


def test_when_a_batch_breaks_nothing_of_the_group_has_happened_and_every_item_runs_again_by_itself(
    database: Database,
) -> None:
    batch = Bans()
    with held(database):
        futures = [database.submit_batch(batch, site) for site in ("A", "broken", "B")]
    assert outcomes(futures) == ["A", "LookupError", "B"]
    assert batch.calls[0] == ["A", "broken", "B"]
    assert batch.undone == ["A", "broken", "B", "broken"]
    assert database.read(banned) == ["A", "B"]


def test_a_row_that_the_database_refuses_fails_its_own_item_only(database: Database) -> None:
    batch = Bans()
    with held(database):
        futures = [database.submit_batch(batch, site) for site in ("A", "null", "B")]
    assert outcomes(futures) == ["A", IntegrityError.__name__, "B"]
    assert database.read(banned) == ["A", "B"]


def test_an_item_that_others_are_always_quicker_than_fails_by_itself(database: Database) -> None:
    batch = Bans()
    with held(database):
        futures = [database.submit_batch(batch, site) for site in ("A", "overtaken", "B")]
    assert outcomes(futures) == ["A", "OvertakenError", "B"]
    assert database.read(banned) == ["A", "B"]


def test_an_operation_that_fails_takes_nothing_of_its_neighbours_with_it(database: Database) -> None:
    told: list[str] = []

    def operation(unit: Unit, site: str) -> str:
        unit.tab(LastActs, LastActs).sites.append(site)
        unit.after_commit(lambda: told.append(f"{site} kept"))
        unit.on_rollback(lambda: told.append(f"{site} undone"))
        if site == "B":
            raise NotFoundError("site", site)
        return site

    with held(database):
        futures = [database.submit_write(lambda unit, site=site: operation(unit, site)) for site in "ABC"]  # type: ignore[misc]
    assert outcomes(futures) == ["A", "NotFoundError", "C"]
    assert sorted(database.read(banned)) == ["A", "C"]
    assert sorted(told) == ["A kept", "B undone", "C kept"]


@pytest.mark.parametrize("ways", [(ban, ban), (ban_by_statement, ban_by_statement), (ban_by_statement, ban)])
def test_an_operation_that_fails_leaves_nothing_in_whatever_way_it_has_written(
    database: Database, ways: Sequence[Callable[[Unit, str], str]]
) -> None:
    def fail(unit: Unit) -> str:
        for way in ways:
            way(unit, "X")
        raise NotFoundError("site", "X")

    with held(database):
        futures = [database.submit_write(work) for work in (lambda unit: ban_by_statement(unit, "A"), fail)]
        futures.append(database.submit_write(lambda unit: ban_by_statement(unit, "B")))
    assert outcomes(futures) == ["A", "NotFoundError", "B"]
    assert sorted(database.read(banned)) == ["A", "B"]


def test_tabs_of_all_parts_are_written_once_in_their_order(database: Database) -> None:
    def operation(unit: Unit) -> list[list[str]]:
        unit.tab(LastActs, LastActs).sites.append("A")
        for site, fails in (("B", True), ("C", False)):
            with suppress(NotFoundError), unit.part() as part:
                part.tab(LastActs, LastActs).sites.append(site)
                part.tab(FirstActs, FirstActs).sites.append(site.lower())
                if fails:
                    raise NotFoundError("site", site)
        return [tab.sites for tab in unit.tabs(LastActs)]

    assert database.write(operation) == [["A", "C"]]
    assert database.read(banned) == ["c", "A", "C"]


def test_a_part_sees_what_the_whole_has_gathered_before(database: Database) -> None:
    def operation(unit: Unit) -> list[str]:
        unit.tab(LastActs, LastActs).sites.append("A")
        with unit.part() as part:
            part.tab(LastActs, LastActs).sites.append("B")
            return [site for tab in part.tabs(LastActs) for site in tab.sites]

    assert database.write(operation) == ["B", "A"]


def test_an_operation_that_breaks_unexpectedly_breaks_alone(database: Database) -> None:
    def broken(unit: Unit) -> str:
        ban(unit, "X")
        raise LookupError("in the middle")

    with held(database):
        futures = [database.submit_write(work) for work in (lambda unit: ban(unit, "A"), broken)]
        futures.append(database.submit_batch(Bans(), "B"))
    assert outcomes(futures) == ["A", "LookupError", "B"]
    assert sorted(database.read(banned)) == ["A", "B"]


def test_an_answer_is_given_when_it_can_be_read_by_others(database: Database) -> None:
    seen: list[int] = []
    all_seen = threading.Event()

    def look(_: Future[str]) -> None:
        seen.append(len(database.read(banned)))
        if len(seen) == 2:
            all_seen.set()

    batch = Bans()
    with held(database):
        for site in "AB":
            database.submit_batch(batch, site).add_done_callback(look)
    assert all_seen.wait(WAIT_S)
    assert seen == [2, 2]


def test_a_hook_that_fails_after_the_commit_keeps_neither_the_other_hooks_nor_the_answers_back(
    database: Database,
) -> None:
    told: list[str] = []

    def operation(unit: Unit) -> str:
        unit.after_commit(lambda: [].pop())
        unit.after_commit(lambda: told.append("A"))
        return ban(unit, "A")

    with capture_logs() as logged:
        assert outcomes([database.submit_write(operation)]) == ["A"]
    assert told == ["A"]
    assert [(line["event"], line["log_level"]) for line in logged] == [("memory does not follow a commit", "error")]
    assert database.read(banned) == ["A"]


def test_what_failed_in_memory_ahead_of_the_commit_is_undone_the_last_change_first(database: Database) -> None:
    undone: list[int] = []

    def operation(unit: Unit) -> None:
        for number in range(3):
            unit.on_rollback(lambda number=number: undone.append(number))  # type: ignore[misc]
        unit.tab(LastActs, LastActs).sites.append("broken")

    with pytest.raises(LookupError):
        database.write(operation)
    assert undone == [2, 1, 0]


def test_who_gave_up_before_his_turn_has_caused_nothing(database: Database) -> None:
    batch = Bans()
    with held(database):
        given_up, kept = (database.submit_batch(batch, site) for site in "AB")
        assert given_up.cancel()
    assert outcomes([kept]) == ["B"]
    with pytest.raises(CancelledError):
        given_up.result(WAIT_S)
    assert database.read(banned) == ["B"]


def test_what_waits_when_the_database_closes_is_done_and_nothing_is_taken_afterwards(database_url: str) -> None:
    batch = Bans()
    with closing(Database(database_url)) as database:
        metadata.create_all(database.engine)
        with held(database):
            futures = [database.submit_batch(batch, site) for site in "ABC"]
            closer = threading.Thread(target=database.close)
            closer.start()
        closer.join(WAIT_S)
        assert outcomes(futures) == ["A", "B", "C"]
        with pytest.raises(RuntimeError):
            database.submit_batch(batch, "D")


class BansWithoutADatabase(Bans):
    """A batch whose transactions cannot be committed."""

    def run(self, unit: Unit, items: Sequence[str]) -> list[str | PilotageError]:
        unit.tab(LastActs, LastActs).sites.append("unreachable")
        return super().run(unit, items)


def test_when_the_database_does_not_serve_all_are_told_so_after_one_more_try(database: Database) -> None:
    batch = BansWithoutADatabase()
    with held(database):
        futures = [database.submit_batch(batch, site) for site in "ABC"]
    assert outcomes(futures) == ["WorldError"] * 3
    assert batch.calls == [["A", "B", "C"], ["A"]]
    assert database.read(banned) == []


class BansInARush(Bans):
    """A batch for which more items come while it is at its first."""

    def __init__(self, database: Database) -> None:
        super().__init__()
        self._database = database
        self.later: list[Future[str]] = []

    def run(self, unit: Unit, items: Sequence[str]) -> list[str | PilotageError]:
        if not self.calls:
            self.later = [self._database.submit_batch(self, site) for site in "BCD"]
        return super().run(unit, items)


def test_what_comes_while_a_batch_is_at_work_is_its_next_group(database: Database) -> None:
    batch = BansInARush(database)
    assert outcomes([database.submit_batch(batch, "A")]) == ["A"]
    assert outcomes(batch.later) == ["B", "C", "D"]
    assert batch.calls == [["A"], ["B", "C", "D"]]


class Crossing:
    """A batch that holds one row and then wants another, which somebody else does the other way about."""

    most = 10

    def __init__(self, meeting: threading.Barrier) -> None:
        self._meeting = meeting
        self._has_met = False

    def run(self, unit: Unit, items: Sequence[tuple[str, str]]) -> list[str]:
        for first, second in items:
            self._take(unit, first)
            if not self._has_met:  # whoever is run again meets nobody any more
                self._has_met = True
                self._meeting.wait(WAIT_S)
            self._take(unit, second)
        return [first for first, _ in items]

    def _take(self, unit: Unit, site: str) -> None:
        unit.session.execute(BANS.update().where(BANS.c.site == site).values(reason=BANS.c.reason + "x"))


def test_of_two_groups_in_a_deadlock_one_runs_again(postgresql_database: Database) -> None:
    database = postgresql_database
    database.write(lambda unit: [ban(unit, site) for site in "AB"])
    meeting = threading.Barrier(2)
    futures = [database.submit_batch(Crossing(meeting), pair) for pair in (("A", "B"), ("B", "A"))]
    assert outcomes(futures) == ["A", "B"]
    reasons = database.read(lambda unit: list(unit.session.execute(select(BANS.c.reason)).scalars()))
    assert reasons == ["xx", "xx"]
