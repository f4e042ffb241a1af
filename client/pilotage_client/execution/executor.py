"""`PilotageExecutor`: a `concurrent.futures` executor whose calls run in jobs.

Each job runs a batch of calls in one warm interpreter (`call_runner`). A call whose job is evicted, or whose node is
lost, runs again. One whose process dies has failed, and costs no other call.

Threads
-------
The sender makes batches of the calls that wait. The watcher follows the event feed and notices when batches start and
end. Each batch that has ended, or runs for long, has a reader for its results. All state is behind one lock, which is
not held during calls of the server.
"""

from __future__ import annotations

import atexit
import pickle
import sys
import threading
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import cloudpickle

from pilotage.clock import boot_time_s
from pilotage.errors import InvalidInputError, PilotageError, Violation
from pilotage.job_description import InputFile, JobDescription
from pilotage_client.api import Client
from pilotage_client.connection import new_request_id
from pilotage_client.execution import call_runner
from pilotage_client.execution.batch_size import CallTimes, batch_size
from pilotage_client.execution.records import CallEnded, CallsHandedBack, CallStarted, RecordReader, result_of
from pilotage_client.execution.tasks import keys_of
from pilotage_client.job_sets import progress_bar
from pilotage_client.models import FINAL_STATES, JobEvent
from pilotage_client.readers.files import resolve_local_files
from pilotage_client.readers.toml import SHORT_KEYS
from pilotage_client.readers.values import check_user_keys, job
from pilotage_client.retry import DEFAULT_RETRY_S, RetryBudget, event_pages_since

if TYPE_CHECKING:
    from rich.progress import Progress

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")

RECORDS, ERRORS = "records", "stderr"
_FOLLOWED_AFTER_S = 2.0
_MOST_FOLLOWED = 16
_TICK_S = 1.0
_LARGEST_BATCH_BYTES = 16 << 20
_LONGEST_ERROR_TEXT = 2000


class BatchFailedError(PilotageError):
    """The job of a call has ended without a result for it: its id, its state, and the end of its standard error."""

    def __init__(self, job_id: int, state: str, reason: str, error_text: str) -> None:
        super().__init__("\n".join(filter(None, (f"job {job_id} is {state}: {reason}", error_text))))
        self.job_id = job_id
        self.state = state


@dataclass(eq=False, slots=True)
class PendingCall:
    """One call: its future, and its function and arguments, pickled."""

    future: Future[Any]
    function: bytes
    arguments: bytes


@dataclass(eq=False, slots=True)
class CallQueue:
    """The calls that need the same: those that are not sent yet, and their batches."""

    description: JobDescription
    calls: deque[PendingCall] = field(default_factory=deque)
    batches: list[CallBatch] = field(default_factory=list)
    times: CallTimes = field(default_factory=CallTimes)

    def next_calls(self) -> list[PendingCall]:
        """Return the calls of the next batch, which leave the queue; [] = none is sent now."""
        running = sum(batch.runs_since_s is not None for batch in self.batches)
        size = batch_size(len(self.calls), running, len(self.batches) - running, self.times.mean_s)
        chosen: list[PendingCall] = []
        content = 0
        while self.calls and len(chosen) < size and content < _LARGEST_BATCH_BYTES:
            call = self.calls.popleft()
            if not _is_cancelled(call.future):
                chosen.append(call)
                content += len(call.arguments)
        return chosen


@dataclass(eq=False, slots=True)
class CallBatch:
    """The calls of one job. `open` has those without a result by their indices; `started` is the last one started."""

    queue: CallQueue
    job_id: int
    open: dict[int, PendingCall]
    started: int | None = None
    runs_since_s: float | None = None
    is_followed: bool = False
    is_removed: bool = False
    is_ending: bool = False


@dataclass(frozen=True, slots=True)
class _PickledFunction:
    """A function that many calls share, pickled once."""

    content: bytes
    keys: Mapping[str, Any]

    def __call__(self) -> None:
        """Do nothing: it is a callable for the signature of `submit` alone."""


class PilotageExecutor(Executor):
    """Runs calls of Python functions in jobs; use it in a `with` block.

    `client` = the server to use, None = the one that the command line would use. `keys` are those of `job`, for the
    jobs of all calls: `memory="2 GB"`, `require={...}`, `image=...`; keys of a `task` come before them. `python` = the
    interpreter on the nodes, None = `pythonX.Y` on their PATH with the version of this process, which functions need.
    `modules` are sent with the functions that come from them; other modules must be installed on the nodes. `notify`
    gets a line for each outage of the server; after `timeout_s` of one, all calls fail with its error.

    Functions and values travel as cloudpickle writes them. `Future.cancel` works until a call starts. The jobs that
    have not ended are removed if KeyboardInterrupt leaves the `with` block, and at the end of the interpreter.
    """

    def __init__(
        self,
        client: Client | None = None,
        *,
        python: str | None = None,
        modules: Iterable[ModuleType] = (),
        group: str = "",
        timeout_s: float = DEFAULT_RETRY_S,
        notify: Callable[[str], None] = lambda line: None,
        **keys: Any,
    ) -> None:
        self._keys = keys
        self._group = group
        self._python = python or f"python{sys.version_info.major}.{sys.version_info.minor}"
        for module in modules:
            cloudpickle.register_pickle_by_value(module)
        self._queues: dict[str, CallQueue] = {}
        with ExitStack() as undo:
            self._scratch = undo.enter_context(TemporaryDirectory(prefix="pilotage-calls-"))
            self._library = _zipped_library(Path(self._scratch))
            self._queue({})  # a fault of the keys is raised here, not at the first call
            self._client = undo.enter_context(Client.located() if client is None else client.reconnected())
            self._close = undo.pop_all().close
        self._new_retry = partial(RetryBudget, timeout_s, notify)
        self._batches: dict[int, CallBatch] = {}
        self._is_sending = False
        self._shut_down = False
        self._changed = threading.Condition()
        self._threads: list[threading.Thread] = []
        atexit.register(self._abandon)

    def submit(
        self, fn: Callable[Parameters, Returned], /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Future[Returned]:
        """Run `fn(*args, **kwargs)` in a job.

        Raises
        ------
        RuntimeError
            The executor has been shut down.
        InvalidInputError
            The keys of a `task` are invalid.
        """
        future: Future[Returned] = Future()
        shared = fn if isinstance(fn, _PickledFunction) else _PickledFunction(cloudpickle.dumps(fn), keys_of(fn))
        call = PendingCall(future, shared.content, cloudpickle.dumps((args, kwargs)))
        with self._changed:
            if self._shut_down:
                raise RuntimeError("the executor has been shut down; make a new one")
            self._queue(shared.keys).calls.append(call)
            if not self._threads:
                self._start(self._send)
            self._changed.notify_all()
        return future

    def map(
        self,
        fn: Callable[..., Returned],
        *iterables: Iterable[Any],
        timeout: float | None = None,
        chunksize: int = 1,
        buffersize: int | None = None,
        progress: bool = False,
    ) -> Iterator[Returned]:
        """Run `fn` for each element of the iterables; yields the results in their order.

        The function is pickled once. The executor sizes its batches itself: `chunksize` has no effect. At most
        `buffersize` calls are there at a time, as in Python 3.14: others are read from the iterables as results are
        taken; None = all are read at once. `progress` shows a bar on a terminal or in a notebook while results are
        taken. If the iterator is closed, calls that have not started are cancelled.

        Raises
        ------
        TimeoutError
            By the iterator: a result has not come `timeout` seconds after the call of `map`.
        """
        if buffersize is not None and buffersize < 1:
            raise InvalidInputError(Violation("buffersize", f"{buffersize} is less than 1"))
        ends_s = None if timeout is None else boot_time_s() + timeout
        shared: Any = _PickledFunction(cloudpickle.dumps(fn), keys_of(fn))
        calls = (self.submit(shared, *arguments) for arguments in zip(*iterables, strict=False))
        window = deque(islice(calls, buffersize))
        return _results(calls, window, buffersize, ends_s, progress_bar() if progress else None)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls; `cancel_futures` cancels those that have not started, `wait` waits for the others."""
        with self._changed:
            self._shut_down = True
            if cancel_futures:
                for call in self._unfinished():
                    call.future.cancel()
            self._changed.notify_all()
            threads = list(self._threads)
        if not threads:
            atexit.unregister(self._abandon)
            self._close()
        elif wait:
            for thread in threads:
                thread.join()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for all calls; with an interrupt remove their jobs instead."""
        if error is not None and not isinstance(error, Exception):
            self._abandon()
        self.shutdown()

    def _queue(self, keys: Mapping[str, Any]) -> CallQueue:
        """Return the queue of the calls with these keys."""
        wanted = {"name": "calls", **self._keys, **keys}
        check_user_keys(wanted.keys())
        name = repr(sorted((key, repr(value)) for key, value in wanted.items()))
        if name not in self._queues:
            wanted = {SHORT_KEYS.get(key, key): value for key, value in wanted.items()}
            files = [*_as_list(wanted.pop("input_files", [])), call_runner.__file__, str(self._library)]
            outputs = [*_as_list(wanted.pop("output_files", [])), call_runner.RESULTS]
            description = job(
                "/usr/bin/env",
                self._python,
                Path(call_runner.__file__).name,
                **{**wanted, "input_files": files, "output_files": outputs, "stdout": RECORDS, "stderr": ERRORS},
            )
            self._queues[name] = CallQueue(description)
        return self._queues[name]

    def _unfinished(self) -> Iterator[PendingCall]:
        for queue in self._queues.values():
            yield from queue.calls
        for batch in self._batches.values():
            yield from batch.open.values()

    def _start(self, run: Callable[[], None]) -> None:
        thread = threading.Thread(target=run, name="pilotage-executor", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _fail(self, error: BaseException) -> None:
        _fail_calls(self._drop_all("their executor has failed"), error)

    def _abandon(self) -> None:
        """Cancel the calls that have not started, fail the others, and remove all jobs."""
        for call in self._drop_all("their executor has ended"):
            if not call.future.cancel():
                _fail_calls([call], RuntimeError("the executor has ended"))

    def _drop_all(self, why: str) -> list[PendingCall]:
        """Take no more calls, remove all jobs and forget all; returns the calls without a result."""
        with self._changed:
            self._shut_down = True
            self._changed.wait_for(lambda: not self._is_sending, _TICK_S)
            jobs = list(self._batches)
            calls = list(self._unfinished())  # before their jobs end, so that no reader fails them for that
            for queue in self._queues.values():
                queue.calls.clear()
            for batch in self._batches.values():
                batch.open = {}
        if jobs:
            with suppress(PilotageError, ValueError):  # ValueError: the connection has been closed
                self._client.remove(jobs, why)
        with self._changed:
            self._batches.clear()  # now the sender ends, and closes the connection
            self._changed.notify_all()
        return calls

    # The sender

    def _send(self) -> None:
        try:
            while (batch := self._next_batch()) is not None:
                self._send_batch(*batch)
        except Exception as error:  # the edge of the thread
            self._fail(error)
        finally:
            atexit.unregister(self._abandon)
            self._close()  # the connection, with which the watcher ends

    def _next_batch(self) -> tuple[CallQueue, list[PendingCall]] | None:
        """Wait for the calls of the next batch; None = the executor has been shut down, and all calls have ended."""
        while True:
            with self._changed:
                for queue in self._queues.values():
                    if calls := queue.next_calls():
                        self._is_sending = True
                        return queue, calls
                if self._shut_down and not self._batches and not any(queue.calls for queue in self._queues.values()):
                    return None
                needless = self._needless_jobs()
                self._follow_long_batches()
                if not needless:
                    self._changed.wait(_TICK_S if self._batches else None)
            if needless:
                self._new_retry()(partial(self._client.remove, needless, "all of its calls are cancelled"))

    def _needless_jobs(self) -> list[int]:
        """Return the jobs all of whose calls have been cancelled; each is returned once."""
        needless = []
        for batch in self._batches.values():
            if not batch.is_removed and batch.open and all(call.future.cancelled() for call in batch.open.values()):
                batch.is_removed = True
                needless.append(batch.job_id)
        return needless

    def _follow_long_batches(self) -> None:
        """Start a reader for each batch that runs for long; others are read at their end."""
        followed = sum(batch.is_followed for batch in self._batches.values())
        before_s = boot_time_s() - _FOLLOWED_AFTER_S
        for batch in self._batches.values():
            is_long = batch.runs_since_s is not None and batch.runs_since_s < before_s
            if is_long and not batch.is_followed and followed < _MOST_FOLLOWED:
                batch.is_followed = True
                followed += 1
                self._start_reader(partial(self._follow, batch))

    def _send_batch(self, queue: CallQueue, calls: list[PendingCall]) -> None:
        path = Path(self._scratch) / call_runner.CALLS
        try:
            description = _with_calls(queue.description, calls, path)
            submit = partial(self._client.submit, [description], group=self._group, request_id=new_request_id())
            (job_id,) = self._new_retry()(submit).job_ids
        except Exception as error:  # the calls have left their queue: nothing else would end their futures
            with self._changed:
                self._is_sending = False
                self._changed.notify_all()
            _fail_calls(calls, error)
            return
        with self._changed:
            batch = CallBatch(queue, job_id, dict(enumerate(calls)))
            queue.batches.append(batch)
            self._batches[job_id] = batch
            self._is_sending = False
            if len(self._threads) == 1:
                self._start(partial(self._watch, job_id))
            self._changed.notify_all()

    # The watcher

    def _watch(self, first_job: int) -> None:
        try:
            for page in event_pages_since(self._client, first_job, self._new_retry, is_over=self._is_over):
                for event in page:
                    self._note(event)
        except Exception as error:  # the edge of the thread
            self._fail(error)

    def _is_over(self) -> bool:
        with self._changed:
            return self._shut_down and not self._batches

    def _note(self, event: JobEvent) -> None:
        with self._changed:
            # The events of a job may come before the answer to its submission.
            while self._is_sending and event.job_id not in self._batches:
                self._changed.wait()
            batch = self._batches.get(event.job_id)
            if batch is None or batch.is_ending:
                return
            batch.is_ending = event.after in FINAL_STATES or event.after == "HELD"
            runs = event.after == "RUNNING"
            if runs != (batch.runs_since_s is not None):
                batch.runs_since_s = boot_time_s() if runs else None
                self._changed.notify_all()
        if batch.is_ending:
            self._start_reader(partial(self._finish, batch, event))

    # Readers

    def _start_reader(self, read: Callable[[], None]) -> None:
        threading.Thread(target=read, name="pilotage-results", daemon=True).start()

    def _follow(self, batch: CallBatch) -> None:
        """Deliver results of a batch while it runs."""
        reader, attempt, end = RecordReader(), 0, 0
        with suppress(PilotageError, ValueError):  # what is missed here is read at the end
            for part in self._client.follow_output(batch.job_id):
                if part.attempt != attempt:
                    reader, attempt, end = RecordReader(), part.attempt, 0
                if part.offset != end:
                    return
                end += len(part.content)
                self._deliver(batch, reader, part.content)
        with self._changed:
            batch.is_followed = False

    def _finish(self, batch: CallBatch, event: JobEvent) -> None:
        """Deliver the results of a batch whose job has ended; calls without one fail or are sent again.

        A held job, such as one that has exceeded its memory, would be held for ever: it is removed.
        """
        retry = self._new_retry()
        error_text = ""
        try:
            for file in retry(partial(self._client.output_files, batch.job_id)):
                if file.name in (RECORDS, call_runner.RESULTS):
                    content = retry(partial(self._client.read_output, batch.job_id, file))
                    self._deliver(batch, RecordReader(), content)
                elif file.name == ERRORS and event.after != "DONE" and file.size < _LONGEST_ERROR_TEXT * 100:
                    content = retry(partial(self._client.read_output, batch.job_id, file))
                    error_text = content.decode(errors="replace")[-_LONGEST_ERROR_TEXT:]
        except (PilotageError, ValueError) as error:
            error_text = str(error)
        if event.after == "HELD":
            with suppress(PilotageError, ValueError):
                retry(partial(self._client.remove, [batch.job_id], f"it was held: {event.reason}"))
        reason = event.reason or "it has ended without results"
        self._close_batch(batch, BatchFailedError(batch.job_id, event.after, reason, error_text))

    def _close_batch(self, batch: CallBatch, error: BatchFailedError) -> None:
        with self._changed:
            # The call that ran has failed. The others may run again, unless the batch never got so far.
            lost = [batch.open.pop(batch.started)] if batch.started in batch.open else []
            if batch.started is None:
                lost = [*batch.open.values()]
            else:
                batch.queue.calls.extendleft(reversed(batch.open.values()))
            batch.open = {}
            self._batches.pop(batch.job_id, None)
            batch.queue.batches.remove(batch)
            self._changed.notify_all()
        _fail_calls(lost, error)

    def _deliver(self, batch: CallBatch, reader: RecordReader, content: bytes) -> None:
        """Give the results among new records to their futures, and take calls back that will not run."""
        ended: list[tuple[PendingCall, CallEnded]] = []
        with self._changed:
            for record in reader.read(content):
                match record:
                    case CallStarted(index):
                        if index in batch.open:
                            batch.started = index
                            _set_running(batch.open[index].future)
                    case CallEnded(index, _, seconds):
                        if (call := batch.open.pop(index, None)) is not None:
                            batch.queue.times.add(seconds)
                            ended.append((call, record))
                    case CallsHandedBack(first):
                        back = [batch.open.pop(index) for index in sorted(batch.open) if index >= first]
                        batch.queue.calls.extendleft(reversed(back))
            self._changed.notify_all()
        for call, record in ended:
            if _set_running(call.future):
                result, error = result_of(record)
                if error is None:
                    call.future.set_result(result)
                else:
                    call.future.set_exception(error)


def _results(
    calls: Iterator[Future[Returned]],
    window: deque[Future[Returned]],
    size: int | None,
    ends_s: float | None,
    bar: Progress | None,
) -> Iterator[Returned]:
    """Yield the results of the window, which more calls fill up to `size` when half of it is empty."""
    with bar or nullcontext():
        shown = None if bar is None else bar.add_task("", total=len(window) if size is None else None)
        try:
            while window:
                future = window.popleft()
                result = future.result(None if ends_s is None else max(0.0, ends_s - boot_time_s()))
                del future  # it keeps the result
                if size is not None and len(window) <= size // 2:
                    window.extend(islice(calls, size - len(window)))
                if bar is not None and shown is not None:
                    bar.update(shown, advance=1)
                yield result
        finally:
            for future in window:
                future.cancel()


def _as_list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _zipped_library(folder: Path) -> Path:
    """Write the archive with cloudpickle, which the runner imports."""
    path = folder / call_runner.LIBRARY
    source = Path(cloudpickle.__file__).parent
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(source.glob("*.py")):
            # One date for all, so that the same archive is uploaded once.
            archive.writestr(zipfile.ZipInfo(f"{source.name}/{file.name}"), file.read_bytes())
    return path


def _with_calls(description: JobDescription, calls: Iterable[PendingCall], path: Path) -> JobDescription:
    """Write the file of the calls, and return the description of their batch."""
    functions: dict[bytes, int] = {}
    listed = [(functions.setdefault(call.function, len(functions)), call.arguments) for call in calls]
    path.write_bytes(pickle.dumps((list(functions), listed)))
    file = InputFile(path.name, source=str(path))
    return resolve_local_files(replace(description, input_files=(*description.input_files, file)), path.parent)


def _is_cancelled(future: Future[Any]) -> bool:
    """Whether the caller has cancelled the call; those that wait for it are notified."""
    return future.cancelled() and not _set_running(future)


def _set_running(future: Future[Any]) -> bool:
    """Mark a call as running, also if it is already; False = it has been cancelled, or has ended."""
    if future.running():
        return True
    try:
        return future.set_running_or_notify_cancel()
    except Exception:  # it raises its base class if the cancellation has been notified before
        return False


def _fail_calls(calls: Iterable[PendingCall], error: BaseException) -> None:
    for call in calls:
        if _set_running(call.future):
            call.future.set_exception(error)
