"""Answers of requests in the database, by caller and request id: a repeated request has one effect."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import text
from sqlmodel import Session

from pilotage_server.storage.database import sql
from pilotage_server.storage.database.transaction import WriteConflictError


class RequestKey(NamedTuple):
    """The idempotency key: the caller and the request id."""

    caller: str
    request_id: str


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """The stored answer, with the method and the digest of the request's content."""

    method: str
    digest: str
    response: bytes


def lock_request(session: Session, key: RequestKey) -> None:
    """Lock a request until the transaction ends, so that only one transaction answers it (SQLite has one writer)."""
    if not sql.is_sqlite(session):
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
    """Return the stored answers of these requests."""
    if sql.is_sqlite(session):
        rows = sql.rows(session, _FIND_IN_JSON, json.dumps([(key.caller, key.request_id) for key in keys]))
    else:
        rows = sql.rows(session, _FIND_IN_ARRAYS, [key.caller for key in keys], [key.request_id for key in keys])
    return {
        RequestKey(caller, request_id): AnsweredRequest(method, digest, bytes(response))
        for caller, request_id, method, digest, response in rows
    }


def insert_answers(session: Session, answers: Mapping[RequestKey, AnsweredRequest], now: datetime) -> None:
    """Store answers in the same transaction as the effects of their requests.

    Raises
    ------
    WriteConflictError
        A concurrent transaction has answered one of them; the repetition must have no effect.
    """
    time = sql.column_time(session, now)
    rows = [
        (key.caller, key.request_id, answer.method, answer.digest, answer.response, time)
        for key, answer in answers.items()
    ]
    if sql.execute_many(session, _KEEP, rows) < len(rows):
        raise WriteConflictError("a request was answered concurrently")


_DELETE = """
    DELETE FROM requests WHERE (caller, request_id) IN (
        SELECT caller, request_id FROM requests WHERE answered < ? ORDER BY answered LIMIT ?
    )
"""


def delete_answers(session: Session, before: datetime, limit: int) -> int:
    """Remove at most `limit` older answers, the oldest first; return how many."""
    return sql.execute(session, _DELETE, sql.column_time(session, before), limit)
