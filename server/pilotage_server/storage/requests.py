"""Answered requests in the database: what makes a repeated request have one effect."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import text
from sqlmodel import Session

from pilotage_server.storage import bulk
from pilotage_server.storage.unit import OvertakenError


class RequestKey(NamedTuple):
    """Whose request it is, and the id that he gave it."""

    caller: str
    request_id: str


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """What was asked (`digest` is that of the request's content) and the answer's bytes."""

    method: str
    digest: str
    response: bytes


def lock_request(session: Session, key: RequestKey) -> None:
    """Let nobody else answer the same request until this transaction has ended (SQLite has one writer)."""
    if not bulk.is_sqlite(session):
        digest = hashlib.sha256(f"{len(key.caller)}:{key.caller}{key.request_id}".encode()).digest()
        number = int.from_bytes(digest[:8], "big", signed=True)
        session.execute(text("SELECT pg_advisory_xact_lock(:number)"), {"number": number})


_ANSWERS = "SELECT caller, request_id, method, digest, response FROM requests"
_FIND_IN_JSON = f"""
    {_ANSWERS} JOIN json_each(?) AS wanted
    ON caller = json_extract(wanted.value, '$[0]') AND request_id = json_extract(wanted.value, '$[1]')
"""
_FIND_IN_ARRAYS = f"""
    {_ANSWERS} JOIN unnest(?::text[], ?::text[]) AS wanted (the_caller, the_id)
    ON caller = the_caller AND request_id = the_id
"""
_KEEP = """
    INSERT INTO requests (caller, request_id, method, digest, response, answered) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT DO NOTHING
"""


def find_answers(session: Session, keys: Sequence[RequestKey]) -> dict[RequestKey, AnsweredRequest]:
    """Return what was answered to these requests, as far as they have been answered."""
    if bulk.is_sqlite(session):
        rows = bulk.rows(session, _FIND_IN_JSON, json.dumps([(key.caller, key.request_id) for key in keys]))
    else:
        rows = bulk.rows(session, _FIND_IN_ARRAYS, [key.caller for key in keys], [key.request_id for key in keys])
    return {
        RequestKey(caller, request_id): AnsweredRequest(method, digest, bytes(response))
        for caller, request_id, method, digest, response in rows
    }


def insert_answers(session: Session, answers: Mapping[RequestKey, AnsweredRequest], now: datetime) -> None:
    """Keep answers beside the effects of their requests.

    Raises
    ------
    OvertakenError
        Somebody else has just answered one of them; nothing of its repetition is to happen.
    """
    time = bulk.moment(session, now)
    rows = [
        (key.caller, key.request_id, answer.method, answer.digest, answer.response, time)
        for key, answer in answers.items()
    ]
    if bulk.many(session, _KEEP, rows) < len(rows):
        raise OvertakenError("a request has been answered there")


_DELETE = """
    DELETE FROM requests WHERE (caller, request_id) IN (
        SELECT caller, request_id FROM requests WHERE answered < ? ORDER BY answered LIMIT ?
    )
"""


def delete_answers(session: Session, before: datetime, limit: int) -> int:
    """Remove at most `limit` answers that are older, oldest first; return how many."""
    return bulk.once(session, _DELETE, bulk.moment(session, before), limit)
