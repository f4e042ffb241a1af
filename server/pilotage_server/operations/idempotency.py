"""Repeated requests: the same caller with the same request id gets the same answer, and there is one effect."""

from __future__ import annotations

from collections.abc import Callable

from pilotage.errors import InvalidInputError, Violation
from pilotage_server.core.identity import Identity
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.requests import AnsweredRequest, RequestKey, find_answer, insert_answer, lock_request

_LONGEST_ID = 64


def once(unit: Unit, identity: Identity, method: str, request_id: str, digest: str, run: Callable[[], bytes]) -> bytes:
    """Return the answer of `run`, or the one that this request got before; effects and answer are stored together.

    Raises
    ------
    InvalidInputError
        The request id is empty or too long, or the caller used it for another request (`digest`).
    """
    known = answered(unit, identity, method, request_id, digest)
    if known is not None:
        return known
    response = run()
    keep_answer(unit, identity, method, request_id, digest, response)
    return response


def answered(unit: Unit, identity: Identity, method: str, request_id: str, digest: str) -> bytes | None:
    """Return what this request was answered before; None = it was not. Raises as `once`."""
    if not 1 <= len(request_id) <= _LONGEST_ID or not request_id.isprintable():
        why = f"a request needs an id of 1 to {_LONGEST_ID} printable characters"
        raise InvalidInputError(Violation("request_id", why))
    key = RequestKey(caller_of(identity), request_id)
    lock_request(unit.session, key)
    known = find_answer(unit.session, key)
    if known is None:
        return None
    if (known.method, known.digest) != (method, digest):
        why = f"{request_id!r} was used for another request; every request needs its own id"
        raise InvalidInputError(Violation("request_id", why))
    return known.response


def keep_answer(unit: Unit, identity: Identity, method: str, request_id: str, digest: str, response: bytes) -> None:
    """Keep the answer for a repetition of the request; `answered` comes first, in the same transaction."""
    answer = AnsweredRequest(method, digest, response)
    insert_answer(unit.session, RequestKey(caller_of(identity), request_id), answer, unit.now)


def caller_of(identity: Identity) -> str:
    """Return a text that tells callers apart; one name in two VOs is two callers."""
    return f"pilot:{identity.pilot.stamp}" if identity.pilot else f"{identity.vo}/{identity.owner}"
