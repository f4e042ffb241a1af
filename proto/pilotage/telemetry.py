"""Logs of a process: structlog on standard error, with the id of the trace that a line belongs to.

A caller sends the context of its trace with each call, in the header of W3C Trace Context, and the server binds it
while it handles the call: one id finds the log lines of every process involved. `tracing` exports spans of the same
traces.
"""

from __future__ import annotations

import logging
import random
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from enum import StrEnum
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, cast

from pilotage.clock import BootClock, boot_time_s

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor, WrappedLogger

TRACEPARENT, TRACESTATE = "traceparent", "tracestate"
"""The metadata keys of W3C Trace Context."""

_UNDECIDED = "pilotage=undecided"
"""The trace state of a caller that exports no spans, so it has not decided whether the trace is sampled."""

_TRACEPARENT = re.compile("([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]([0-9a-f])(-.*)?")
_NO_TRACE, _NO_SPAN = "0" * 32, "0" * 16
_ids = random.Random()  # noqa: S311 - an id of a trace is no secret, and asking the system for each takes long


class LogLevel(StrEnum):
    """The lowest level of lines that are written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class _StandardError:
    """Standard error as it is at each line, as it may be replaced while loggers live on.

    A line that cannot be written (full disk, closed reader) is lost: logging never fails the work.
    """

    def write(self, text: str) -> int:
        with suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            sys.stderr.flush()


def set_up_logging(*, json: bool, level: LogLevel = LogLevel.INFO) -> None:
    """Send log lines to standard error: one JSON object per line, or text for people."""
    import structlog  # it takes long to load, and most commands of the client log nothing

    tracebacks = structlog.processors.ExceptionRenderer(
        structlog.tracebacks.ExceptionDictTransformer(show_locals=False)  # locals may hold tokens
    )
    last: Processor = structlog.processors.JSONRenderer(default=str, sort_keys=True)
    if not json:
        last = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[
            _add_trace_id,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([tracebacks] if json else []),
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _StandardError())),
        cache_logger_on_first_use=True,
    )
    library = logging.getLogger("opentelemetry")
    library.handlers, library.propagate = [LibraryWarnings("warning of OpenTelemetry")], False


class LibraryWarnings(logging.Handler):
    """Logs the warnings of a library, which come with each failure."""

    def __init__(self, event: str) -> None:
        super().__init__(logging.WARNING)
        self._warn = LimitedWarning(event)

    def emit(self, record: logging.LogRecord) -> None:
        """Log a warning."""
        self._warn(why=record.getMessage())


class TraceContext(NamedTuple):
    """A trace, and the span of it that is the parent of what follows; ids are lower-case hex digits.

    `span_id` "" = the trace has no span yet, and whether it is sampled is not decided. `sampled` = its spans are
    exported. Its text is the header `traceparent`.
    """

    trace_id: str
    span_id: str = ""
    sampled: bool = False

    def __str__(self) -> str:
        return f"00-{self.trace_id}-{self.span_id or new_span_id()}-0{self.sampled:d}"


def new_trace() -> TraceContext:
    """Return a new trace without a span."""
    return TraceContext(f"{_ids.getrandbits(128) or 1:032x}")


def new_span_id() -> str:
    """Return the id of a new span."""
    return f"{_ids.getrandbits(64) or 1:016x}"


def read_trace(traceparent: object, tracestate: object = "") -> TraceContext | None:
    """Return the context in these headers; None = there is none that is valid (W3C Trace Context, 3.2).

    The trace state of other systems is not passed on.
    """
    found = _TRACEPARENT.fullmatch(traceparent) if isinstance(traceparent, str) else None
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if trace_id == _NO_TRACE or span_id == _NO_SPAN or version == "ff" or (more and version == "00"):
        return None
    if tracestate == _UNDECIDED:
        return TraceContext(trace_id)
    return TraceContext(trace_id, span_id, flags in "13579bdf")


def is_sampled(text: str) -> bool:
    """Return whether this is the text of a sampled context; it is not parsed, because hot paths ask for each job."""
    return text.endswith("-01")


def trace_of_call(metadata: Mapping[str, Any]) -> TraceContext:
    """Return the context that a call carries, or a new trace."""
    return read_trace(metadata.get(TRACEPARENT), metadata.get(TRACESTATE)) or new_trace()


def trace_headers() -> list[tuple[str, str]]:
    """Return the metadata of a call that belongs to the bound trace, or to a new one if none is bound."""
    context = _bound.get() or new_trace()
    headers = [(TRACEPARENT, str(context))]
    return headers if context.span_id else [*headers, (TRACESTATE, _UNDECIDED)]


def current_trace() -> TraceContext | None:
    """Return the bound context; None = none is bound."""
    return _bound.get()


def trace_id() -> str:
    """Return the id of the bound trace; "" = none is bound."""
    context = _bound.get()
    return context.trace_id if context is not None else ""


_bound: ContextVar[TraceContext | None] = ContextVar("trace", default=None)


@contextmanager
def trace_bound(context: TraceContext) -> Iterator[None]:
    """Let the calls and the log lines of the block belong to this trace."""
    token = _bound.set(context)
    try:
        yield
    finally:
        _bound.reset(token)


def _add_trace_id(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    context = _bound.get()
    if context is not None:
        event.setdefault("trace_id", context.trace_id)
    return event


WARN_EVERY_S = 60.0


class LimitedWarning:
    """A warning about what others send, and so decide how many there are: it is logged at most once a minute.

    `unlogged` counts the warnings since the last line.
    """

    def __init__(self, event: str, boot_clock: BootClock = boot_time_s) -> None:
        self._event = event
        self._boot_clock = boot_clock
        self._logged_s = float("-inf")
        self._unlogged = 0

    def __call__(self, **fields: Any) -> None:
        """Log the warning with these fields, or count it."""
        now_s = self._boot_clock()
        if now_s < self._logged_s + WARN_EVERY_S:
            self._unlogged += 1
            return
        import structlog

        structlog.get_logger().warning(self._event, unlogged=self._unlogged, **fields)
        self._logged_s, self._unlogged = now_s, 0
