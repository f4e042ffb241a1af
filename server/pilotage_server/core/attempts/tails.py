"""Tails: the end of the output of running attempts, kept for seconds while somebody follows it.

Rules
-----
- A tail is wanted until a time, which every follower extends. Its pilot is asked for it in the answers to its calls.
- Positions count from the start of the stream. A piece that repeats what is known adds nothing. A piece that comes
  after a gap begins the tail again: what lies between was skipped.
- A tail is bounded: the oldest bytes go first.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import NamedTuple

from pilotage.values.attempts import TailStream

MAX_TAIL_BYTES = 512 * 1024
MAX_PIECE_BYTES = 256 * 1024


class TailContent(NamedTuple):
    """The kept end of a stream; `start` = the position of its first byte."""

    start: int
    content: bytes

    @property
    def end(self) -> int:
        """The position after its last byte."""
        return self.start + len(self.content)

    def with_piece(self, offset: int, piece: bytes) -> TailContent:
        """Return the tail with a piece at this position."""
        if offset > self.end or not self.content:
            return TailContent(offset, piece[-MAX_TAIL_BYTES:])
        content = self.content + piece[self.end - offset :]
        return TailContent(self.start + max(0, len(content) - MAX_TAIL_BYTES), content[-MAX_TAIL_BYTES:])


class WantedTail(NamedTuple):
    """A stream that somebody follows, until when, and the pilot that has it."""

    stream: TailStream
    stamp: str
    until: datetime


class WantedTails:
    """The tails that are wanted, as far as a server knows; a snapshot that never changes."""

    def __init__(self, tails: Iterable[WantedTail] = ()) -> None:
        self._tails = {tail.stream: tail for tail in tails}

    def __bool__(self) -> bool:
        """Whether any tail may be wanted."""
        return bool(self._tails)

    def of_pilot(self, stamp: str, now: datetime) -> tuple[TailStream, ...]:
        """Return the streams that a pilot is to send."""
        return tuple(tail.stream for tail in self._tails.values() if tail.stamp == stamp and tail.until > now)

    def with_tail(self, new: WantedTail, now: datetime) -> WantedTails:
        """Return this snapshot with one more tail, without those that have expired."""
        return WantedTails([*(tail for tail in self._tails.values() if tail.until > now), new])


NO_TAILS = WantedTails()
