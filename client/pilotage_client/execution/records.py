"""The records that a batch of calls writes, read from pieces of its output."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from pilotage_client.execution.call_runner import CRASHED, HANDED_BACK, HEADER, RAISED, RETURNED, STARTED, STORED


@dataclass(frozen=True, slots=True)
class CallStarted:
    """The call with this index has been started."""

    index: int


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The call has ended after `seconds`; `content` is its pickled result, or how its process has ended."""

    index: int
    kind: int
    seconds: float
    content: bytes


@dataclass(frozen=True, slots=True)
class CallsHandedBack:
    """The batch will not run this call and those after it."""

    first: int


Record = CallStarted | CallEnded | CallsHandedBack


@dataclass(slots=True)
class RecordReader:
    """Reads records from the pieces of a stream; an incomplete one waits for the next piece."""

    _rest: bytes = b""

    def read(self, piece: bytes) -> Iterator[Record]:
        """Yield the records that are complete with this piece; a result in the file of results comes from there."""
        self._rest += piece
        start = 0
        while len(self._rest) - start >= HEADER.size:
            index, kind, seconds, length = HEADER.unpack_from(self._rest, start)
            end = start + HEADER.size + length
            if len(self._rest) < end:
                break
            content = self._rest[start + HEADER.size : end]
            start = end
            if kind == STARTED:
                yield CallStarted(index)
            elif kind == HANDED_BACK:
                yield CallsHandedBack(index)
            elif kind != STORED:
                yield CallEnded(index, kind, seconds, content)
        self._rest = self._rest[start:]


class WorkerDiedError(RuntimeError):
    """The process that ran a call has died, by a signal or by an exit."""


class RemoteTraceback(Exception):  # noqa: N818 - the cause of an error, as in concurrent.futures
    """The traceback of a call, as text from the node."""

    def __str__(self) -> str:
        """Return the traceback."""
        return f'\n"""\n{self.args[0]}"""'


def result_of(ended: CallEnded) -> tuple[Any, BaseException | None]:
    """Return what the call has returned, or the error that it raised, with the traceback of the node as its cause."""
    if ended.kind == CRASHED:
        code = int.from_bytes(ended.content, "big", signed=True)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        return None, WorkerDiedError(f"the process of the call died with {how}")
    try:
        result = pickle.loads(ended.content)  # noqa: S301 - the owner's own job has written it
    except Exception as error:  # whatever the class of the result does
        what = "result" if ended.kind == RETURNED else "exception"
        return None, TypeError(f"the {what} cannot be unpickled here: {error}").with_traceback(error.__traceback__)
    if ended.kind == RETURNED:
        return result, None
    assert ended.kind == RAISED
    raised, text = result
    raised.__cause__ = RemoteTraceback(text)
    return None, raised
