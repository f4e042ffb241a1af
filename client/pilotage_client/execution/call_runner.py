"""The payload of a batch of calls: runs Python functions one after another in a warm interpreter.

It is sent with each batch and runs on the node, where Pilotage is not installed: it needs the standard library only,
and the copy of cloudpickle beside it.

Rules
-----
The runner forks a worker, which imports and unpickles once and runs one call after another. If the worker dies, its
call has failed, and a new worker runs the rest. While one call runs for long, the calls behind it are handed back:
the executor sends them elsewhere. After `BATCH_S` the runner starts no more calls.

Standard output is a sequence of records that can be followed while the batch runs; it stays below `STREAM_BYTES`, the
most that a follower gets at first. A larger result goes to the file `RESULTS`. What functions print goes to the
standard error.
"""

from __future__ import annotations

import os
import pickle
import select
import struct
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

Call = tuple[int, bytes]
"""The index of its function, and its pickled arguments."""

CALLS, RESULTS, LIBRARY = "calls.pickle", "results", "cloudpickle.zip"

STARTED, RETURNED, RAISED, CRASHED, STORED, HANDED_BACK = range(6)
"""Kinds of records. STORED = the result is the next record of the file; HANDED_BACK = this call and all after it."""

HEADER = struct.Struct(">IBfI")
"""A record: index of the call in the batch, kind, seconds that the call took, and length of the content after it."""

STREAM_BYTES = 60 * 1024
BATCH_S = 10.0
HAND_BACK_S = 3.0


def main() -> int:
    """Run the calls of the batch in the present folder."""
    sys.path.insert(0, os.path.abspath(LIBRARY))
    with open(CALLS, "rb") as file:
        functions, calls = pickle.load(file)  # noqa: S301 - the owner's own functions
    CallRunner(functions, calls, os.dup(1)).run()
    return 0


class CallRunner:
    """The calls of one job, each `(index of its function, pickled arguments)`."""

    def __init__(self, functions: Sequence[bytes], calls: Sequence[Call], stream: int) -> None:
        self._functions, self._calls, self._stream = functions, calls, stream
        self._room = STREAM_BYTES - 2 * HEADER.size * (len(calls) + 1)
        self._results = open(RESULTS, "wb")  # noqa: SIM115 - open as long as the process
        self._worker: CallWorker | None = None

    def run(self) -> None:
        """Run the calls, and write a record for the start and the end of each."""
        ends_s = time.monotonic() + BATCH_S  # noqa: TID251 - the node has no pilotage.clock
        handed_back = False
        for index in range(len(self._calls)):
            if handed_back or time.monotonic() > ends_s:  # noqa: TID251
                if not handed_back:
                    self._write(self._stream, index, HANDED_BACK)
                break
            handed_back = self._run(index)
        if self._worker is not None:
            self._worker.end()
        self._results.close()

    def _run(self, index: int) -> bool:
        """Run one call; returns whether the calls after it were handed back meanwhile."""
        if self._worker is None:
            self._worker = CallWorker(self._functions, self._calls)
        self._write(self._stream, index, STARTED)
        start_s = time.monotonic()  # noqa: TID251
        self._worker.start(index)
        handed_back = False
        if index + 1 < len(self._calls) and not self._worker.answers_within(HAND_BACK_S):
            self._write(self._stream, index + 1, HANDED_BACK)
            handed_back = True
        answer = self._worker.answer()
        seconds = time.monotonic() - start_s  # noqa: TID251
        if answer is None:
            status = self._worker.end()
            self._worker = None
            kind, content = CRASHED, struct.pack(">i", status)
        else:
            kind, content = answer[0], answer[1:]
        if len(content) <= self._room:
            self._room -= len(content)
            self._write(self._stream, index, kind, seconds, content)
        else:
            self._write(self._results.fileno(), index, kind, seconds, content)
            self._write(self._stream, index, STORED)
        return handed_back

    def _write(self, file: int, index: int, kind: int, seconds: float = 0.0, content: bytes = b"") -> None:
        write_all(file, HEADER.pack(index, kind, seconds, len(content)) + content)


class CallWorker:
    """A forked process that runs calls one at a time."""

    def __init__(self, functions: Sequence[bytes], calls: Sequence[Call]) -> None:
        here, self._orders = os.pipe()
        self._answers, there = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            os.close(self._orders)
            os.close(self._answers)
            os.dup2(2, 1)  # what functions print is not a record
            status = 1
            try:
                work(functions, calls, here, there)
                status = 0
            finally:
                os._exit(status)
        os.close(here)
        os.close(there)

    def start(self, index: int) -> None:
        """Let the worker run a call."""
        with suppress(BrokenPipeError):  # it has died, and gives no answer
            write_all(self._orders, struct.pack(">I", index))

    def answers_within(self, timeout_s: float) -> bool:
        """Whether the call ends in this time."""
        return bool(select.select([self._answers], [], [], timeout_s)[0])

    def answer(self) -> bytes | None:
        """Return the kind (first byte) and the pickled result of the call; None = the worker has died."""
        header = read_all(self._answers, 8)
        return None if header is None else read_all(self._answers, struct.unpack(">Q", header)[0])

    def end(self) -> int:
        """Wait for the end of the worker and return its exit code, or the negative signal."""
        os.close(self._orders)
        os.close(self._answers)
        return os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])


def work(functions: Sequence[bytes], calls: Sequence[Call], orders: int, answers: int) -> None:
    """Run the ordered calls in this process, until there are no more orders."""
    loaded: dict[int, Any] = {}
    while (order := read_all(orders, 4)) is not None:
        (index,) = struct.unpack(">I", order)
        kind, content = result_of(functions, calls[index], loaded)
        answer = bytes([kind]) + content
        write_all(answers, struct.pack(">Q", len(answer)) + answer)


def result_of(functions: Sequence[bytes], call: Call, loaded: dict[int, Any]) -> tuple[int, bytes]:
    """Run one call; returns RETURNED or RAISED, and the pickled result."""
    import cloudpickle  # from the copy beside this file

    number, arguments = call
    try:
        if number not in loaded:
            loaded[number] = load(functions[number])
        positional, named = pickle.loads(arguments)  # noqa: S301
        returned = loaded[number](*positional, **named)
        try:
            return RETURNED, cloudpickle.dumps(returned)
        except Exception as error:
            raise TypeError(f"the result of type {type(returned).__name__} cannot be pickled: {error}") from error
    except BaseException as error:  # the executor raises it in the caller
        text = traceback.format_exc()
        try:
            pickle.loads(content := cloudpickle.dumps((error, text)))  # noqa: S301 - not each exception can be rebuilt
        except Exception:
            told = traceback.format_exception_only(error)[-1].strip()  # it may have no text either
            content = pickle.dumps((RuntimeError(told), text))
        return RAISED, content
    finally:
        sys.stdout.flush()


def load(function: bytes) -> Any:
    """Unpickle a function; if its module is missing here, the error says how to send it."""
    try:
        return pickle.loads(function)  # noqa: S301 - the owner's own functions
    except ModuleNotFoundError as error:
        error.add_note(f"it is not installed on this node; PilotageExecutor(modules=[{error.name}]) sends it")
        raise


def read_all(file: int, size: int) -> bytes | None:
    """Return `size` bytes of a pipe; None = it ended before."""
    pieces = []
    while size:
        piece = os.read(file, min(size, 1 << 20))
        if not piece:
            return None
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def write_all(file: int, content: bytes) -> None:
    """Write all bytes to a file or pipe."""
    view = memoryview(content)
    while view:
        view = view[os.write(file, view) :]


if __name__ == "__main__":
    sys.exit(main())
