"""Jobs that meet a query, in the order of ids: read along an index, or page by page with bounded work.

Three ways lead to the jobs
---------------------------
- Ids: only these are read.
- A small index: jobs that have not ended, on hold, with a lease, in a race, or that ended in a time. If it has few
  entries, all are read.
- A window: so many entries of the index of the owner's jobs, or of the table, beyond the position. It may have few
  wanted jobs or none; the next call continues behind it.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from sqlmodel import Session

from pilotage.job_description import render_text
from pilotage_server.core.jobs.conditions import JobQuery, is_named
from pilotage_server.core.jobs.states import FINAL, LEASED, LIVE, JobState
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.tables import ENDED_JOB, HELD_JOB, LEASED_JOB, LIVE_JOB, RACING_JOB, TIMED_JOB

WINDOW = 100_000
"""The entries of one window, and the ids that one call reads: they take about a tenth of a second."""

SMALL = 10_000
"""An index with at most so many entries is read as a whole, which takes about a tenth of a second."""


class FoundJob(NamedTuple):
    """What a selection tells of a job; `name` has its macros."""

    id: int
    cluster: int
    cluster_jobs: int
    process: int
    owner: str
    vo: str
    group: str
    name: str
    state: str
    submitted: datetime | str

    @property
    def cluster_ids(self) -> range:
        """The ids of the jobs that were submitted with its cluster."""
        return range(self.cluster, self.cluster + self.cluster_jobs)


class FoundPage(NamedTuple):
    """Found jobs in order, and the id that the next page continues behind; 0 = there are no more."""

    jobs: Sequence[FoundJob]
    position: int


_COLUMNS = 'id, cluster, cluster_jobs, process, owner, vo, "group", name, state, submitted'
_BEGAN = "coalesce(ended, state_since, submitted)"
_NAMES_AT_ONCE = 100
_RACING = frozenset({JobState.RACING})
_HELD = frozenset({JobState.HELD})
_Condition = tuple[str, tuple[Any, ...]]


class JobFinder:
    """Finds the jobs of one query in one transaction: one window of them, if no better way leads there.

    `window` and `small` are as WINDOW and SMALL.
    """

    def __init__(self, session: Session, query: JobQuery, window: int = WINDOW, small: int = SMALL) -> None:
        self._session = session
        self._query = query
        self._window = window
        self._small = small
        self._all: list[FoundJob] | None = None
        self._is_begun = False
        self._floor: int | None = None
        self._rest = list(_conditions(session, query))

    def next(self, after: int, limit: int) -> FoundPage:
        """Return at most `limit` jobs behind the one with id `after` in the order of the query; 0 = from the first."""
        if self._query.nothing:
            return FoundPage((), 0)
        if not self._is_begun:
            self._is_begun = True
            self._all = None if self._query.ranges is not None else self._of_small_indexes()
            self._floor = self._window_end(after) if self._all is None and self._query.ranges is None else None
        read = self._of_window if self._query.ranges is None else self._of_ids
        if self._all is not None:
            read = self._of_all
        if not self._query.name:
            return read(after, limit)
        while True:  # the database compares names without letter case
            page = read(after, max(limit, _NAMES_AT_ONCE))
            named = [job for job in page.jobs if self._is_named(job)]
            if len(named) >= limit:
                more = len(named) > limit or page.position
                return FoundPage(named[:limit], named[limit - 1].id if more else 0)
            if named or not page.jobs or not page.position:
                return FoundPage(named, page.position)
            after = page.position

    def _is_named(self, job: FoundJob) -> bool:
        return is_named(render_text(job.name, job.cluster, job.process), self._query.name)

    def _of_all(self, after: int, limit: int) -> FoundPage:
        assert self._all is not None
        if self._query.newest_first:
            first = bisect_left(self._all, -after, key=lambda job: -job.id) if after else 0
            first += first < len(self._all) and self._all[first].id == after
        else:
            first = bisect_right(self._all, after, key=lambda job: job.id)
        page = self._all[first : first + limit]
        return FoundPage(page, page[-1].id if first + limit < len(self._all) else 0)

    def _of_small_indexes(self) -> list[FoundJob] | None:
        """Return all jobs if indexes of few entries lead to them, None = there are none such."""
        sources = _small_sources(self._session, self._query)
        if sources is None:
            return None
        left = self._small
        for source in sources:
            text = f"SELECT count(*) FROM (SELECT 1 FROM jobs WHERE {source.probe} LIMIT ?) AS entries"  # noqa: S608
            ((entries,),) = sql.rows(self._session, text, *source.values, left + 1)
            left -= entries
            if left < 0:
                return None
        found: list[FoundJob] = []
        for source in sources:
            narrowed = [(source.condition, source.values), ("state = ANY(?)", (_values(source.states),)), *self._rest]
            found += self._rows(narrowed)
        return sorted(found, key=lambda job: job.id, reverse=self._query.newest_first)

    def _of_ids(self, after: int, limit: int) -> FoundPage:
        """Return the next jobs of the ids of the query; `after` is the last one that was looked at."""
        ranges = [_behind(ids, after, newest_first=self._query.newest_first) for ids in self._query.ranges or ()]
        ranges = [ids for ids in ranges if ids]
        found: list[FoundJob] = []
        left = self._window
        order = "id DESC" if self._query.newest_first else "id"
        while ranges and left > 0:
            ids = ranges.pop(-1 if self._query.newest_first else 0)
            part = ids[-left:] if self._query.newest_first else ids[:left]
            within = ("id >= ? AND id < ?", (part.start, part.stop))
            rows = self._rows([within, *self._rest], order, limit - len(found))
            found += rows
            if len(found) == limit:
                return FoundPage(found, found[-1].id)
            left -= len(part)
            after = part.start if self._query.newest_first else part.stop - 1
            if len(part) < len(ids):
                return FoundPage(found, after)
        return FoundPage(found, after if ranges else 0)

    def _of_window(self, after: int, limit: int) -> FoundPage:
        down = self._query.newest_first
        source, columns = _window_source(self._query)
        bounds: list[_Condition] = []
        if after:
            bounds.append(("id < ?" if down else "id > ?", (after,)))
        if self._floor is not None:
            bounds.append(("id >= ?" if down else "id <= ?", (self._floor,)))
        order = ", ".join(f"{column}{' DESC' if down else ''}" for column in columns)
        rows = self._rows([*source, *bounds, *self._rest], order, limit)
        if len(rows) == limit:
            return FoundPage(rows, rows[-1].id)
        return FoundPage(rows, self._floor or 0)

    def _window_end(self, after: int) -> int | None:
        """Return the id of the last entry of the window behind `after`; None = it reaches to the last entry."""
        down = self._query.newest_first
        source, columns = _window_source(self._query)
        if after:
            source = [*source, ("id < ?" if down else "id > ?", (after,))]
        where = " AND ".join(text for text, _ in source) or "true"
        values = [value for _, some in source for value in some]
        if columns == ("id",):  # ids are dense, so no entries need to be counted
            text = f"SELECT {'max' if down else 'min'}(id) FROM jobs WHERE {where}"  # noqa: S608 - names of ours
            ((first,),) = sql.rows(self._session, text, *values)
            if first is None:
                return None
            first = int(first)
            return max(1, first - self._window + 1) if down else first + self._window - 1
        if not _is_selective(self._query):
            return None
        order = ", ".join(f"{column}{' DESC' if down else ''}" for column in columns)
        text = f"SELECT id FROM jobs WHERE {where} ORDER BY {order} LIMIT 1 OFFSET ?"  # noqa: S608 - names of ours
        last = sql.rows(self._session, text, *values, self._window - 1)
        return int(last[0][0]) if last else None

    def _rows(self, conditions: Iterable[_Condition], order: str = "", limit: int | None = None) -> list[FoundJob]:
        texts, values = [], list[Any]()
        for text, some in conditions:
            texts.append(text)
            values += some
        statement = f"SELECT {_COLUMNS} FROM jobs WHERE {' AND '.join(texts) or 'true'}"  # noqa: S608 - names of ours
        if order:
            statement += f" ORDER BY {order}"
        if limit is not None:
            statement += " LIMIT ?"
            values.append(limit)
        return list(map(FoundJob._make, sql.rows(self._session, statement, *values)))


class _Source(NamedTuple):
    """The jobs in `states` by an index: its condition, and one that its entries alone answer, with equal values."""

    states: frozenset[JobState]
    condition: str
    probe: str
    values: tuple[Any, ...] = ()


def _small_sources(session: Session, query: JobQuery) -> list[_Source] | None:
    """Return sources that lead to all jobs of a query, and that may have few entries; None = there are none such."""
    states = query.states
    if not states:
        return None
    sources: list[_Source] = []
    if live := states & (LIVE - LEASED - _HELD - _RACING):
        if query.owner is not None:
            return None  # an index of the owner's live jobs is in the order of ids
        live = states & LIVE
        sources.append(_Source(live, LIVE_JOB, LIVE_JOB))
        states -= live
    if ended := states & FINAL:
        if query.since is None and query.until is None:
            return None
        given = {"ended >= ?": query.since, "ended < ?": query.until}
        times = {text: sql.column_time(session, time) for text, time in given.items() if time is not None}
        condition = " AND ".join((ENDED_JOB, *times))
        sources.append(_Source(ended, condition, condition, (*times.values(),)))
    if leased := states & LEASED:
        sources.append(_Source(leased, LEASED_JOB, TIMED_JOB))
    if held := states & _HELD:
        at_site = (f"{HELD_JOB} AND site = ?", (query.site,)) if query.site else (HELD_JOB, ())
        sources.append(_Source(held, at_site[0], at_site[0], at_site[1]))
    if racing := states & _RACING:
        sources.append(_Source(racing, RACING_JOB, RACING_JOB))
    return sources


def _window_source(query: JobQuery) -> tuple[list[_Condition], tuple[str, ...]]:
    """Return the condition of the index that windows are of, and its columns in order.

    The order names the columns of the condition too, so that planners use the index.
    """
    if query.owner is None:
        return [], ("id",)
    if query.is_live and query.vo is not None:
        return [(f"{LIVE_JOB} AND vo = ? AND owner = ?", (query.vo, query.owner))], ("vo", "owner", "id")
    return [("owner = ?", (query.owner,))], ("owner", "id")


def _is_selective(query: JobQuery) -> bool:
    """Whether a query has other conditions than those of its window, so that it may find nothing there."""
    plain = JobQuery(owner=query.owner, vo=query.vo, newest_first=query.newest_first, copies=query.copies)
    if query.states == LIVE:
        plain = JobQuery(LIVE, query.owner, query.vo, newest_first=query.newest_first, copies=query.copies)
    return query != plain


def _conditions(session: Session, query: JobQuery) -> Iterator[_Condition]:
    """Yield what each job must meet; a name with macros only as far as SQL can tell."""
    if not query.copies:
        yield "race IN (0, id)", ()
    if query.states and query.states != LIVE:
        yield "state = ANY(?)", (_values(query.states),)
    if query.is_live:
        yield LIVE_JOB, ()
    given: dict[str, Any] = {
        "owner = ?": query.owner,
        "vo = ?": query.vo,
        '"group" = ?': query.group or None,
        "pool_id = ?": query.pool or None,
        "site = ?": query.site or None,
        "ce = ?": query.ce or None,
        "queue = ?": query.queue or None,
        "lower(node) = ?": query.node.lower() or None,
        f"{_BEGAN} >= ?": query.since and sql.column_time(session, query.since),
        f"{_BEGAN} < ?": query.until and sql.column_time(session, query.until),
    }
    for text, value in given.items():
        if value is not None:
            yield text, (value,)
    if query.name:
        yield _NAMED, (_WITH_MACRO, _like(query.name), _WITH_MACRO, _WITH_MACRO)
    for column, operator, value in query.bounds:
        yield f"{column} {operator} ?", (sql.column_time(session, value) if isinstance(value, datetime) else value,)


_WITH_MACRO = "%$(%"


_MACROS = (("ClusterId", "cluster"), ("Cluster", "cluster"), ("ProcId", "process"), ("Process", "process"))


def _rendered() -> str:
    """Return the SQL of a name with its macros filled in, as `render_text` does but for their letter case."""
    text = "name"
    for macro, column in _MACROS:
        text = f"replace({text}, '$({macro})', CAST({column} AS TEXT))"
    return f"CASE WHEN name LIKE ? THEN {text} ELSE name END"


_NAMED = f"({_rendered()} LIKE ? ESCAPE '!' OR {_rendered()} LIKE ?)"
"""Whether a name, or one with macros that SQL cannot fill in, may match."""


def _like(pattern: str) -> str:
    """Return a LIKE pattern that matches whatever the name pattern matches; a set of characters matches any one."""
    found: list[str] = []
    index = 0
    while index < len(pattern):
        char = pattern[index]
        closing = pattern.find("]", index + 2) if char == "[" else -1
        if closing > 0:
            found.append("_")
            index = closing
        else:
            found.append({"*": "%", "?": "_"}.get(char, f"!{char}" if char in "%_!" else char))
        index += 1
    return "".join(found)


def _behind(ids: range, after: int, *, newest_first: bool) -> range:
    """Return the part of a range of ids that comes after an id in the order; 0 = all."""
    if not after:
        return ids
    return range(ids.start, min(ids.stop, after)) if newest_first else range(max(ids.start, after + 1), ids.stop)


def _values(states: Iterable[JobState]) -> list[str]:
    return sorted(state.value for state in states)
