"""Tails: sends the end of the output of running payloads to the server while somebody follows it.

Rules
-----
The payload owns the files: they are opened without following links, and may shrink or vanish. A bounded piece is sent
at a time. Of a stream that grows faster, the newest part is sent and the rest skipped. The position never goes back.
Nothing is read or sent unless the server has asked for it; its answer to each piece says whether to go on.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import structlog

from pilotage.errors import WorldError
from pilotage.jobs.files import open_regular
from pilotage.values.attempts import TailStream
from pilotage_pilot.link.base import FileLink

log = structlog.get_logger()

FIRST_BYTES = 64 << 10
"""How much of what is there is sent first."""

PIECE_BYTES = 128 << 10
PERIOD_S = 0.5
"""A piece of at most `PIECE_BYTES` is sent every `PERIOD_S`: 256 KiB a second."""

MOST_STREAMS = 16
"""The most streams that are sent at a time; others begin when one of these has ended."""

_SILENT_PERIODS = 10
"""After so many periods without new output an empty piece asks whether to go on."""

_MAX_FAILURES = 60


class FileTail:
    """The end of one growing file; `position` is that of the next piece in the stream."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file_position: int | None = None
        self.position = 0

    def read(self) -> tuple[int, bytes]:
        """Return the next piece and its position in the stream; b"" = there is nothing new. It stays the next one."""
        if self._path is None:
            return self.position, b""
        try:
            with open_regular(self._path) as file:
                self._skip(os.fstat(file.fileno()).st_size)
                file.seek(self._file_position or 0)
                return self.position, file.read(PIECE_BYTES)
        except OSError:
            return self.position, b""

    def _skip(self, size: int) -> None:
        """Go on to what is to be sent next of a file of this size."""
        if self._file_position is None:
            self._file_position = self.position = max(0, size - FIRST_BYTES)
        elif size < self._file_position:  # the payload or the limit has cut it
            self._file_position = size
        elif size - self._file_position > PIECE_BYTES:
            self.position += size - PIECE_BYTES - self._file_position
            self._file_position = size - PIECE_BYTES

    def advance(self, sent: int) -> None:
        """Go on after so many bytes of the piece that was read."""
        self.position += sent
        self._file_position = (self._file_position or 0) + sent


class OutputTails:
    """Sends the tails that the server asks for. `path_of` returns the file of a stream; None = there is none.

    `is_running` = whether the payload of a stream still runs; `start` starts a task that ends with the pilot.
    """

    def __init__(
        self,
        link: FileLink,
        path_of: Callable[[TailStream], Path | None],
        is_running: Callable[[TailStream], bool],
        start: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]],
    ) -> None:
        self._link = link
        self._path_of = path_of
        self._is_running = is_running
        self._start = start
        self._sent: set[TailStream] = set()

    def follow(self, streams: Iterable[TailStream]) -> None:
        """Begin to send these streams, unless they are being sent or their payloads do not run."""
        for stream in streams:
            if stream not in self._sent and len(self._sent) < MOST_STREAMS and self._is_running(stream):
                self._sent.add(stream)
                self._start(self._send(stream)).add_done_callback(partial(self._end, stream))

    def _end(self, stream: TailStream, _task: asyncio.Task[None]) -> None:
        self._sent.discard(stream)

    async def _send(self, stream: TailStream) -> None:
        try:
            await self._send_pieces(stream)
        except Exception as error:  # the edge of a task: it must not end the pilot
            log.warning("output cannot be followed", job=str(stream.key), why=str(error))

    async def _send_pieces(self, stream: TailStream) -> None:
        tail, failures, silent_periods = FileTail(self._path_of(stream)), 0, _SILENT_PERIODS
        while self._is_running(stream) and failures < _MAX_FAILURES:
            offset, content = await asyncio.to_thread(tail.read)
            silent_periods += 1
            if content or silent_periods > _SILENT_PERIODS:
                try:
                    if not await self._link.post_tail(stream, offset, content):
                        return
                except WorldError:
                    failures += 1  # the same piece goes again
                else:
                    failures = silent_periods = 0
                    tail.advance(len(content))
            await asyncio.sleep(PERIOD_S)
