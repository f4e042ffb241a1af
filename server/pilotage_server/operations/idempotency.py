"""Idempotency: a request that a caller repeats with the same id gets the same answer and has one effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar

from pilotage.errors import InvalidInputError, PilotageError, Violation
from pilotage_server.core.identity import Identity
from pilotage_server.storage.database.transaction import Transaction, WriteConflictError
from pilotage_server.storage.requests import AnsweredRequest, RequestKey, find_answers, insert_answers, lock_request

Done = TypeVar("Done")

_LONGEST_ID = 64


class IdempotentRequest(NamedTuple):
    """A request that has one effect however often it comes; `digest` reveals ids used for different requests."""

    identity: Identity
    method: str
    key: RequestKey
    digest: str

    @classmethod
    def of(cls, identity: Identity, method: str, request_id: str, digest: str) -> Self:
        """Return the request of a caller under this id."""
        return cls(identity, method, RequestKey(caller_key(identity), request_id), digest)


def run_once(transaction: Transaction, request: IdempotentRequest, run: Callable[[], bytes]) -> bytes:
    """Return the answer of `run`, or the stored answer of a repeated request; effects and answer are stored together.

    Raises
    ------
    InvalidInputError
        The request id is empty or too long, or the caller used it for another request.
    """
    lock_request(transaction.session, request.key)
    (known,) = stored_answers(transaction, [request])
    if isinstance(known, InvalidInputError):
        raise known
    if known is not None:
        return known
    response = run()
    store_answers(transaction, [(request, response)])
    return response


def stored_answers(
    transaction: Transaction, requests: Sequence[IdempotentRequest]
) -> list[bytes | InvalidInputError | None]:
    """Return the stored answers of these requests, in order: None = not answered yet, or an error for a bad id.

    It locks nothing. When two transactions answer the same request at once, one of them gets a WriteConflictError in
    `store_answers` and finds the other's answer when it runs again.
    """
    faults = [_fault_of_id(each) for each in requests]
    # An invalid id may contain characters that no database accepts, so it is not looked up.
    known = find_answers(
        transaction.session, [each.key for each, fault in zip(requests, faults, strict=True) if fault is None]
    )
    return [fault or _checked(each, known.get(each.key)) for each, fault in zip(requests, faults, strict=True)]


class ServedRequest(NamedTuple, Generic[Done]):
    """The result of a request, and the answer to store for its repetitions; None = it may run again."""

    done: Done
    keep: bytes | None


def run_each_once(
    transaction: Transaction,
    requests: Sequence[IdempotentRequest],
    serve: Callable[[Sequence[int]], Sequence[ServedRequest[Done] | PilotageError]],
    replay: Callable[[int, bytes], Done],
) -> list[Done | PilotageError]:
    """Return the results of requests; each one runs once however often it comes, also within one transaction.

    Repetitions are rare. So stored answers are looked up only in a retry of the transaction, which follows when storing
    an answer shows that there is one already.

    Parameters
    ----------
    serve
        Runs the new requests, given by their indexes.
    replay
        Returns the result of a repetition, given its index and the stored answer.

    Raises
    ------
    WriteConflictError
        A request was answered before, and the stored answers were not looked up.
    """
    known = stored_answers(transaction, requests) if transaction.is_retry else [_fault_of_id(each) for each in requests]
    first: dict[RequestKey, int] = {}
    for index, each in enumerate(requests):
        if known[index] is None:
            first.setdefault(each.key, index)
    served = dict(zip(first.values(), serve(tuple(first.values())), strict=True))
    _keep(transaction, requests, served)

    def done(index: int) -> Done | PilotageError:
        kept = known[index]
        if kept is not None:
            return kept if isinstance(kept, PilotageError) else replay(index, kept)
        before = first[requests[index].key]
        if requests[before].digest != requests[index].digest:
            return reused_id_error(requests[index])
        result = served[before]
        return result if isinstance(result, PilotageError) else result.done

    return [done(index) for index in range(len(requests))]


def _keep(
    transaction: Transaction,
    requests: Sequence[IdempotentRequest],
    served: Mapping[int, ServedRequest[Any] | PilotageError],
) -> None:
    """Store the answers of new requests; raises WriteConflictError when one was answered before."""
    kept: list[tuple[IdempotentRequest, bytes]] = []
    others: list[RequestKey] = []
    for index, result in served.items():
        if isinstance(result, PilotageError) or result.keep is None:
            others.append(requests[index].key)
        else:
            kept.append((requests[index], result.keep))
    store_answers(transaction, kept)
    if others and not transaction.is_retry and find_answers(transaction.session, others):
        raise WriteConflictError("a request was answered before")


def store_answers(transaction: Transaction, responses: Iterable[tuple[IdempotentRequest, bytes]]) -> None:
    """Store answers for repetitions of the requests; raises WriteConflictError when one was answered before."""
    answers = {request.key: AnsweredRequest(request.method, request.digest, answer) for request, answer in responses}
    insert_answers(transaction.session, answers, transaction.now)


def _fault_of_id(request: IdempotentRequest) -> InvalidInputError | None:
    if 1 <= len(request.key.request_id) <= _LONGEST_ID and request.key.request_id.isprintable():
        return None
    why = f"a request needs an id of 1 to {_LONGEST_ID} printable characters"
    return InvalidInputError(Violation("request_id", why))


def _checked(request: IdempotentRequest, known: AnsweredRequest | None) -> bytes | InvalidInputError | None:
    if known is None:
        return None
    is_same = (known.method, known.digest) == (request.method, request.digest)
    return known.response if is_same else reused_id_error(request)


def reused_id_error(request: IdempotentRequest) -> InvalidInputError:
    """Return the error for an id that was used for another request."""
    why = f"{request.key.request_id!r} was used for another request; every request needs its own id"
    return InvalidInputError(Violation("request_id", why))


def caller_key(identity: Identity) -> str:
    """Return a key of the caller; the same name in two VOs is two callers."""
    return f"pilot:{identity.pilot.stamp}" if identity.pilot else f"{identity.vo}/{identity.owner}"
