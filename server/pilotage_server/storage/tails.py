"""Tails in the database: the end of the output of running attempts that somebody follows."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

from sqlalchemy import ColumnElement, delete, func, select, update
from sqlmodel import Session

from pilotage.values.attempts import TailStream
from pilotage_server.core.attempts.tails import TailContent, WantedTail
from pilotage_server.storage.database.sql import insert_if_absent
from pilotage_server.storage.database.tables import metadata

TAILS = metadata.tables["tails"]


class StoredTail(NamedTuple):
    """A tail without its content, which lies from `start` to `end`; `is_posted` = its pilot has sent it."""

    wanted: WantedTail
    is_posted: bool
    start: int
    end: int


def _is(stream: TailStream) -> ColumnElement[bool]:
    return (TAILS.c.job_id == stream.job_id) & (TAILS.c.is_error == stream.is_error)


def load_tail(session: Session, stream: TailStream, *, for_update: bool = False) -> StoredTail | None:
    """Return the tail of a stream; None = there is none of this attempt."""
    query = select(
        TAILS.c.pilot_stamp,
        TAILS.c.wanted_until,
        TAILS.c.posted,
        TAILS.c.start,
        func.length(TAILS.c.content),
    ).where(_is(stream), TAILS.c.attempt == stream.attempt)
    row = session.execute(query.with_for_update() if for_update else query).first()
    if row is None:
        return None
    stamp, until, is_posted, start, length = row
    return StoredTail(WantedTail(stream, stamp, until), is_posted, start, start + length)


def load_content(session: Session, stream: TailStream) -> TailContent:
    """Return the content of an existing tail."""
    row = session.execute(select(TAILS.c.start, TAILS.c.content).where(_is(stream))).one()
    return TailContent(row.start, row.content)


def begin_tail(session: Session, wanted: WantedTail) -> None:
    """Store an empty tail in place of any tail of the stream's job."""
    stream = wanted.stream
    values = {
        "attempt": stream.attempt,
        "pilot_stamp": wanted.stamp,
        "wanted_until": wanted.until,
        "posted": False,
        "start": 0,
        "content": b"",
    }
    if not insert_if_absent(session, TAILS, {"job_id": stream.job_id, "is_error": stream.is_error, **values}):
        session.execute(update(TAILS).where(_is(stream)).values(**values))


def extend_tail(session: Session, wanted: WantedTail) -> None:
    """Keep an existing tail for longer."""
    session.execute(update(TAILS).where(_is(wanted.stream)).values(wanted_until=wanted.until))


def store_content(session: Session, stream: TailStream, tail: TailContent) -> None:
    """Store the content of an existing tail."""
    session.execute(update(TAILS).where(_is(stream)).values(posted=True, start=tail.start, content=tail.content))


def load_wanted(session: Session, now: datetime) -> list[WantedTail]:
    """Return all tails that are wanted."""
    query = select(TAILS.c.job_id, TAILS.c.attempt, TAILS.c.is_error, TAILS.c.pilot_stamp, TAILS.c.wanted_until)
    rows = session.execute(query.where(TAILS.c.wanted_until > now))
    return [WantedTail(TailStream(*row[:3]), row.pilot_stamp, row.wanted_until) for row in rows]


def delete_unwanted(session: Session, before: datetime) -> int:
    """Remove the tails that have had no follower since `before`; return how many."""
    gone = delete(TAILS).where(TAILS.c.wanted_until < before).returning(TAILS.c.job_id)
    return len(session.execute(gone).all())
