"""Incarnations of the database: each restore of a backup begins a new one, with numbers of its own.

Rules
-----
- What a server has given out since the backup is in no database any more: ids of jobs, positions of the feed, numbers
  of attempts. So the numbers of a new incarnation begin far above those of the backup. Each incarnation has its own
  round range, as long as the incarnations before have stayed within theirs.
- A job of the backup may have an attempt of the lost time. It is not matched for one lease, and its attempts continue
  above the floor. New jobs count their attempts from 1.
- A feed position of the lost time is refused, never read as another one.
- One set belongs together: database, file store and signing keys. A server with another part does not join.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from pilotage.errors import FeedPositionLostError


class Counters(NamedTuple):
    """The highest numbers that a database has given out: ids of jobs, feed positions, attempts of one job."""

    job: int
    position: int
    attempt: int


STEPS = Counters(job=100_000_000, position=1_000_000_000_000, attempt=100_000)
"""The range of an incarnation. A backup is older than the database by less than half of it."""


class Incarnation(NamedTuple):
    """An incarnation that a restore has begun: the highest numbers of the backup; the new ones are above `base`."""

    number: int
    began: datetime
    backup: Counters
    base: Counters


def next_incarnation(number: int, backup: Counters, now: datetime) -> Incarnation:
    """Return the incarnation with this number after a restore of a backup with these highest numbers."""
    base = Counters._make(
        max((number - 1) * step, _round_above(last, step)) for last, step in zip(backup, STEPS, strict=True)
    )
    return Incarnation(number, now, backup, base)


def _round_above(last: int, step: int) -> int:
    """Return the first multiple of `step` that is at least half a step above `last`."""
    return (last + step // 2 + step - 1) // step * step


def check_position(position: int, newest: int, incarnations: Iterable[Incarnation]) -> None:
    """Raise FeedPositionLostError for a position that this database has never given out; `newest` = its newest one."""
    for each in incarnations:
        if each.backup.position < position < each.base.position:
            when = f"{each.began:%Y-%m-%d %H:%M} UTC"
            why = f"it is of the time that the restore of {when} has lost"
            raise FeedPositionLostError(position, each.backup.position, why)
    if position > newest:
        raise FeedPositionLostError(position, newest, f"the newest position is {newest}; this may be another database")


def page_end(position: int, incarnations: Iterable[Incarnation]) -> int:
    """Return the position up to which a page reads: `position`, or the last one before a gap that it falls into."""
    gaps = (each.backup.position for each in incarnations if each.backup.position < position <= each.base.position)
    return min(gaps, default=position)


class LastSeen(NamedTuple):
    """What a server has last seen of its database, kept beside it: a restored backup has lower numbers."""

    database_id: str
    incarnation: int
    job: int
    position: int


@dataclass(frozen=True, slots=True)
class Installation:
    """What belongs together. `place` = where the database was made or restored; `store` "" and no `keys` = none yet.

    `keys` are the ids of the signing keys, with the times from which they sign.
    """

    database_id: str
    schema: str
    incarnation: int
    place: str
    store: str
    keys: Mapping[str, datetime]


RESTORE = "stop all servers and run 'pilotage-server restore'"
"""What to do after a restore; it is always safe and costs one lease of waiting."""


def restore_fault(installation: Installation, place: str, counters: Counters, seen: LastSeen | None) -> str:
    """Return why the database may be a backup that was put back; "" = it is not, as far as can be seen."""
    if installation.place != place:
        what = installation.place or "another place"
        return f"the database is a {what}" if what.startswith("backup") else "the database was put back or has moved"
    if seen is None or seen.database_id != installation.database_id:
        return ""
    if seen.incarnation > installation.incarnation:
        return f"the database is of incarnation {installation.incarnation}, and this server has seen {seen.incarnation}"
    if seen.incarnation == installation.incarnation and (seen.job > counters.job or seen.position > counters.position):
        return (
            f"the database ends at job {counters.job} and event {counters.position}, "
            f"and this server has seen job {seen.job} and event {seen.position}"
        )
    return ""


def keys_fault(known: Mapping[str, datetime], own: Mapping[str, datetime], now: datetime) -> str:
    """Return why a server with these signing keys cannot join; "" = it can.

    Servers may differ in keys that do not sign yet, and in keys that are about to be retired.
    """
    if not known:
        return ""
    if known.keys().isdisjoint(own):
        return f"none of this server's signing keys ({_listed(own)}) is one of the database's ({_listed(known)})"
    due = [(signs_from, kid) for kid, signs_from in known.items() if signs_from <= now]
    signing = max(due)[1] if due else ""
    if signing and signing not in own:
        return f"signing key {signing}, which signs now, is missing here"
    return ""


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(sorted(keys))


def store_fault(known: str, own: str | None) -> str:
    """Return why a server with this file store cannot join; `own` None = the store has no id."""
    if not known or own == known:
        return ""
    what = f"has id {own}" if own else "is a new one, without an id"
    return f"its file store {what}, and that of the database has id {known}"
