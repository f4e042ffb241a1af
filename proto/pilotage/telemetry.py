"""Logs of a process: structlog on standard error, with the cause that leads from a call to all that it triggers.

A cause is a short random id. A caller sends it with a call, and the server binds it while it handles the call: one id
finds the log lines of every process involved.
"""

from __future__ import annotations

import logging
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from typing import Any, TextIO, cast

import structlog
from structlog.typing import Processor

from pilotage.clock import BootClock, boot_time_s

CAUSE_HEADER = "pilotage-cause"
"""The metadata key under which a call carries its cause."""

_LONGEST_CAUSE = 64
_causes = random.Random()  # noqa: S311 - a cause is no secret, and asking the system for each takes long
_TRACEBACKS = structlog.processors.ExceptionRenderer(
    structlog.tracebacks.ExceptionDictTransformer(show_locals=False)  # locals may hold tokens
)


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
    last: Processor = structlog.processors.JSONRenderer(default=str, sort_keys=True)
    if not json:
        last = structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([_TRACEBACKS] if json else []),
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", _StandardError())),
        cache_logger_on_first_use=True,
    )


def new_cause() -> str:
    """Return a new cause."""
    return f"{_causes.getrandbits(48):012x}"


def current_cause() -> str:
    """Return the bound cause, or a new one if none is bound."""
    bound = structlog.contextvars.get_contextvars().get("cause")
    return bound if isinstance(bound, str) else new_cause()


def valid_cause(cause: str | None) -> str:
    """Return a cause from elsewhere; None or an invalid id is replaced by a new one."""
    return cause if cause and len(cause) <= _LONGEST_CAUSE and cause.isprintable() else new_cause()


@contextmanager
def cause_bound(cause: str | None) -> Iterator[str]:
    """Bind a cause to every log line of the block; None or an invalid id is replaced by a new one."""
    sane = valid_cause(cause)
    with structlog.contextvars.bound_contextvars(cause=sane):
        yield sane


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
        structlog.get_logger().warning(self._event, unlogged=self._unlogged, **fields)
        self._logged_s, self._unlogged = now_s, 0
