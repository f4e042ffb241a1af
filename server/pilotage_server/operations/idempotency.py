"""Repeated requests: the same caller with the same request id gets the same answer, and there is one effect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Self, TypeVar

from pilotage.errors import InvalidInputError, PilotageError, Violation
from pilotage_server.core.identity import Identity
from pilotage_server.storage.engine import OvertakenError, Unit
from pilotage_server.storage.requests import (
    AnsweredRequest,
    RequestKey,
    find_answers,
    insert_answers,
    lock_request,
)

Done = TypeVar("Done")

_LONGEST_ID = 64


class Asked(NamedTuple):
    """A request that is to have one effect however often it comes; `digest` tells requests of one id apart."""

    identity: Identity
    method: str
    key: RequestKey
    digest: str

    @classmethod
    def of(cls, identity: Identity, method: str, request_id: str, digest: str) -> Self:
        """Return the request that a caller gives this id."""
        return cls(identity, method, RequestKey(caller_of(identity), request_id), digest)


def once(unit: Unit, asked: Asked, run: Callable[[], bytes]) -> bytes:
    """Return the answer of `run`, or the one that this request got before; effects and answer are stored together.

    Raises
    ------
    InvalidInputError
        The request id is empty or too long, or the caller used it for another request.
    """
    lock_request(unit.session, asked.key)
    (known,) = answered(unit, [asked])
    if isinstance(known, InvalidInputError):
        raise known
    if known is not None:
        return known
    response = run()
    keep_answers(unit, [(asked, response)])
    return response


def answered(unit: Unit, asked: Sequence[Asked]) -> list[bytes | InvalidInputError | None]:
    """Return what these requests were answered before (None = nothing), with errors in their places.

    It locks nothing: of two who answer the same request at once one is overtaken when he keeps the answer
    (`keep_answers`), and finds that of the other when he runs again.
    """
    faults = [_fault_of_id(each) for each in asked]
    # What is wrong with an id may be what no database takes.
    known = find_answers(unit.session, [each.key for each, fault in zip(asked, faults, strict=True) if fault is None])
    return [fault or _checked(each, known.get(each.key)) for each, fault in zip(asked, faults, strict=True)]


class Served(NamedTuple, Generic[Done]):
    """What came of a request, and the answer that is kept for its repetitions; None = it may be served again."""

    done: Done
    keep: bytes | None


def each_once(
    unit: Unit,
    asked: Sequence[Asked],
    serve: Callable[[Sequence[int]], Sequence[Served[Done] | PilotageError]],
    say_again: Callable[[int, bytes], Done],
) -> list[Done | PilotageError]:
    """Return what comes of requests, each served once however often it comes, also within one transaction.

    Hardly any comes again, so former answers are looked for only when the transaction runs again, as it does when one
    turns out to be there.

    Parameters
    ----------
    serve
        Serves the requests at these places, which are new.
    say_again
        Returns what comes of a repetition, by its place and what was kept.

    Raises
    ------
    OvertakenError
        A request was answered before, and nobody has looked for that.
    """
    known = answered(unit, asked) if unit.again else [_fault_of_id(each) for each in asked]
    first: dict[RequestKey, int] = {}
    for place, each in enumerate(asked):
        if known[place] is None:
            first.setdefault(each.key, place)
    served = dict(zip(first.values(), serve(tuple(first.values())), strict=True))
    _keep(unit, asked, served)

    def done(place: int) -> Done | PilotageError:
        kept = known[place]
        if kept is not None:
            return kept if isinstance(kept, PilotageError) else say_again(place, kept)
        before = first[asked[place].key]
        if asked[before].digest != asked[place].digest:
            return used_before(asked[place])
        result = served[before]
        return result if isinstance(result, PilotageError) else result.done

    return [done(place) for place in range(len(asked))]


def _keep(unit: Unit, asked: Sequence[Asked], served: Mapping[int, Served[Any] | PilotageError]) -> None:
    """Keep the answers of new requests; raises OvertakenError where one of these was answered before."""
    kept: list[tuple[Asked, bytes]] = []
    others: list[RequestKey] = []
    for place, result in served.items():
        if isinstance(result, PilotageError) or result.keep is None:
            others.append(asked[place].key)
        else:
            kept.append((asked[place], result.keep))
    keep_answers(unit, kept)
    if others and not unit.again and find_answers(unit.session, others):
        raise OvertakenError("a request was answered before")


def keep_answers(unit: Unit, responses: Iterable[tuple[Asked, bytes]]) -> None:
    """Keep answers for repetitions of the requests; raises OvertakenError where one of these was answered before."""
    answers = {asked.key: AnsweredRequest(asked.method, asked.digest, answer) for asked, answer in responses}
    insert_answers(unit.session, answers, unit.now)


def _fault_of_id(asked: Asked) -> InvalidInputError | None:
    if 1 <= len(asked.key.request_id) <= _LONGEST_ID and asked.key.request_id.isprintable():
        return None
    why = f"a request needs an id of 1 to {_LONGEST_ID} printable characters"
    return InvalidInputError(Violation("request_id", why))


def _checked(asked: Asked, known: AnsweredRequest | None) -> bytes | InvalidInputError | None:
    if known is None:
        return None
    is_same = (known.method, known.digest) == (asked.method, asked.digest)
    return known.response if is_same else used_before(asked)


def used_before(asked: Asked) -> InvalidInputError:
    """Return the error that the id of a request was used for another one."""
    why = f"{asked.key.request_id!r} was used for another request; every request needs its own id"
    return InvalidInputError(Violation("request_id", why))


def caller_of(identity: Identity) -> str:
    """Return a text that tells callers apart; one name in two VOs is two callers."""
    return f"pilot:{identity.pilot.stamp}" if identity.pilot else f"{identity.vo}/{identity.owner}"
