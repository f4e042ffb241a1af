"""Conditions on jobs that are listed, counted or changed together: states, owner, place, times, name, and expressions.

A condition is checked again when a job is locked for a change, because it may have moved on meanwhile.

Rules
-----
A job that waits or is blocked is at no place, whatever its last attempt has left behind. The state of a job begins
with its last transition, and that of one that has ended with its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import NamedTuple

from pilotage.classads.clauses import clauses
from pilotage.classads.tokens import Token, TokenKind, tokens
from pilotage.errors import Violation
from pilotage.text import fold
from pilotage.values.jobs import JobCondition
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import FINAL, JobState, job_status

PLACELESS = frozenset({JobState.RECEIVED, JobState.WAITING, JobState.BLOCKED})
"""States in which a job is at no place."""


class ColumnBound(NamedTuple):
    """A condition on a column of jobs that follows from an expression: `operator` is one of = < <= > >=."""

    column: str
    operator: str
    value: int | str | datetime


@dataclass(frozen=True, slots=True)
class JobQuery:
    """The jobs that a caller may see and that meet a condition: empty texts and sets, and None, select all.

    `ranges` = only these ids, sorted and apart. `bounds` follow from `where`, which is evaluated by itself. `nothing` =
    no job at all, `copies` = with race copies, present and former ones.
    """

    states: frozenset[JobState] = frozenset()
    owner: str | None = None
    vo: str | None = None
    group: str = ""
    pool: str = ""
    site: str = ""
    ce: str = ""
    queue: str = ""
    node: str = ""
    name: str = ""
    since: datetime | None = None
    until: datetime | None = None
    ranges: tuple[range, ...] | None = None
    where: str = ""
    bounds: tuple[ColumnBound, ...] = ()
    newest_first: bool = False
    copies: bool = False
    nothing: bool = False

    @property
    def key(self) -> tuple[str, ...]:
        """What identifies the query in its page tokens."""
        values = (getattr(self, each.name) for each in fields(self))
        return tuple(repr(sorted(value) if isinstance(value, frozenset) else value) for value in values)

    @property
    def is_live(self) -> bool:
        """Whether it selects no jobs that have ended."""
        return bool(self.states) and FINAL.isdisjoint(self.states)


def condition_faults(condition: JobCondition) -> Iterator[Violation]:
    """Yield what is wrong with a condition."""
    if (condition.ce or condition.queue) and not (condition.site and condition.ce):
        yield Violation("queue", "is named together with its CE and its site")
    if condition.has_place and condition.states and condition.states <= PLACELESS:
        yield Violation("states", f"{', '.join(sorted(condition.states))}: such a job is at no place")
    if condition.since is not None and condition.until is not None and condition.until <= condition.since:
        yield Violation("until", "is not later than since")


def is_named(name: str, pattern: str) -> bool:
    """Return whether a job's name, macros filled in, matches a pattern; the empty one matches all."""
    return not pattern or fnmatchcase(name, pattern)


def meets(job: JobRecord, query: JobQuery) -> bool:
    """Return whether a job meets all of a query but `where`."""
    site, ce, queue = (job.queue.site, job.queue.ce, job.queue.queue) if job.queue else ("", "", "")
    began = job.ended or job.state_since or job.submitted
    return (
        not query.nothing
        and (not query.states or job.state in query.states)
        and query.owner in (None, job.owner)
        and query.vo in (None, job.vo)
        and query.group in ("", job.group)
        and query.pool in ("", job.pool_id)
        and query.site in ("", site)
        and query.ce in ("", ce)
        and query.queue in ("", queue)
        and (not query.node or fold(job.node) == fold(query.node))
        and is_named(job.name, query.name)
        and (query.since is None or began >= query.since)
        and (query.until is None or began < query.until)
        and (query.ranges is None or any(job.id in ids for ids in query.ranges))
        and (query.copies or not job.is_race_copy)
    )


class Narrowing(NamedTuple):
    """What follows from an expression: the states that a job may be in, and bounds of columns."""

    states: frozenset[JobState]
    bounds: tuple[ColumnBound, ...]


_ALL = frozenset(JobState)
_REPORTED = {JobState.COMPLETING: {2}, JobState.FAILED: {3, 4}}
"""Ads for people show some states in another way (`reported_ad`): by state, the values that JobStatus may have."""

_EQUAL = frozenset({"==", "=?=", "is"})
_TURNED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
_NUMBERS = {"pilotagejobid": "id", "clusterid": "cluster", "procid": "process"}
_TEXTS = {"owner": "owner", "vo": "vo", "x509userproxyvoname": "vo", "submitpool": "pool_id"}
_LARGEST = 2**53
_PARTS = 3
"""The fewest tokens of a comparison."""


def narrowing(where: str) -> Narrowing:
    """Return what the comparisons in an expression that stand alone or between && say of the stored columns.

    Every job for which the expression is true meets it. `where` "" = nothing follows.
    """
    states, bounds = _ALL, list[ColumnBound]()
    for clause in clauses(where) if where else ():
        comparison = _comparison(clause)
        if comparison is None:
            continue
        name, operator, value = comparison
        if name == "jobstatus" and operator in _EQUAL and isinstance(value, int):
            states &= {each for each in JobState if value in _REPORTED.get(each, {job_status(each)})}
        elif name in _NUMBERS and isinstance(value, int):
            bounds.append(ColumnBound(_NUMBERS[name], "=" if operator in _EQUAL else operator, value))
        elif name in _TEXTS and operator in _EQUAL and isinstance(value, str) and value.isascii():
            bounds.append(ColumnBound(f"lower({_TEXTS[name]})", "=", value.lower()))  # == ignores letter case
        elif name == "qdate" and isinstance(value, int) and value < _LARGEST_TIME:
            bounds += _of_seconds("submitted", operator, value)
    return Narrowing(states, tuple(bounds))


_LARGEST_TIME = 2**36
"""Seconds in years that databases can store."""


def _of_seconds(column: str, operator: str, value: int) -> Iterator[ColumnBound]:
    """Yield the bounds of a time of which an ad shows the whole seconds."""
    first, after = (datetime.fromtimestamp(second, UTC) for second in (value, value + 1))
    if operator in _EQUAL or operator == ">=":
        yield ColumnBound(column, ">=", first)
    if operator in _EQUAL or operator == "<=":
        yield ColumnBound(column, "<", after)
    if operator == "<":
        yield ColumnBound(column, "<", first)
    if operator == ">":
        yield ColumnBound(column, ">=", after)


def _comparison(clause: str) -> tuple[str, str, int | str] | None:
    """Return folded name, operator and value of a clause that compares an attribute with a literal; None = another."""
    parts = [token for token in tokens(clause) if not token.is_blank]
    if len(parts) < _PARTS:
        return None
    first, last = parts[0], parts[-1]
    operator = fold("".join(token.text for token in parts[1:-1]))
    if operator not in _EQUAL and operator not in _TURNED:
        return None
    for name, value, word in ((first, last, operator), (last, first, _TURNED.get(operator, operator))):
        literal = _literal(value)
        if name.kind is TokenKind.WORD and not name.text[0].isdigit() and literal is not None:
            return fold(name.text).removeprefix("my."), word, literal
    return None


def _literal(token: Token) -> int | str | None:
    if token.kind is TokenKind.STRING:
        return token.text[1:-1] if "\\" not in token.text else None
    is_number = token.kind is TokenKind.WORD and token.text.isascii() and token.text.isdigit()
    is_plain = is_number and (token.text == "0" or not token.text.startswith("0"))  # 010 is octal
    return int(token.text) if is_plain and int(token.text) < _LARGEST else None
