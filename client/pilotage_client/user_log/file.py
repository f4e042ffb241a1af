"""One user log on the disk: events are appended whole, under HTCondor's lock, and each only once.

A log needs no state beside it. Events that it contains already are counted by their headers; an event of the feed that
has its header there is not written again. A part of an event at the end is what a killed writer left, and is cut.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pilotage.errors import WorldError
from pilotage_client.user_log.events import TERMINATED, EventKey, UserLogEvent, event_key

_END = b"\n...\n"
_HEADER = re.compile(rb"^(\d{3}) \((\d+)\.(\d+)\.\d+\) (\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)", re.MULTILINE)
_BEGIN = re.compile(rb"\d{3} \(|\d{0,3}\Z|\d{3} \Z")
"""The begin of an event, or of a part of it."""
_CHUNK_BYTES = 16 * 1024 * 1024


class UserLogFile:
    """A user log that several processes may append to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read_to = 0
        self._present: Counter[EventKey] = Counter()

    def append(self, events: Iterable[UserLogEvent]) -> None:
        """Append the events that the log does not contain, in their order, and wait until they are on the disk.

        Raises
        ------
        WorldError
            The file cannot be written, or is no user log; nothing is appended then.
        """
        try:
            with self._locked() as file:
                self._read_new(file)
                missing = [event for event in events if not self._take(event.key)]
                if missing:
                    self._write(file, "".join(map(str, missing)).encode())
        except OSError as error:
            why = (error.strerror or str(error)).lower()
            raise WorldError(f"user log {self.path}: {why}", transient=False) from error

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Open the file, created if need be, with the lock that HTCondor's tools take."""
        file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _take(self, key: EventKey) -> bool:
        """Return whether the log contains the event; each of its events stands for one of the feed."""
        if not self._present[key]:
            return False
        self._present[key] -= 1
        return True

    def _read_new(self, file: int) -> None:
        """Count the events that others have appended, and cut a part of an event at the end."""
        size = os.fstat(file).st_size
        if size < self._read_to:  # somebody has begun the log again
            self._read_to, self._present = 0, Counter()
        rest = b""
        while self._read_to + len(rest) < size:
            text = rest + os.pread(file, _CHUNK_BYTES, self._read_to + len(rest))
            whole, end, rest = text.rpartition(_END)
            self._present.update(_key(header) for header in _HEADER.finditer(whole))
            self._read_to += len(whole) + len(end)
            if not _BEGIN.match(rest):
                why = "its text is not that of HTCondor's events; give another file"
                raise WorldError(f"{self.path} is no user log: {why}", transient=False)
        if rest:
            os.ftruncate(file, self._read_to)

    def _write(self, file: int, text: bytes) -> None:
        """Append the text as a whole; a failure leaves the file as it was."""
        try:
            left = memoryview(text)
            while left:
                left = left[os.write(file, left) :]
            os.fsync(file)
        except OSError:
            os.ftruncate(file, self._read_to)
            raise
        self._read_to += len(text)


def jobs_of_log(path: Path) -> dict[tuple[int, int], bool]:
    """Return the jobs of a log by cluster and process, and whether each has ended: terminated, or aborted.

    Raises
    ------
    WorldError
        The file cannot be read.
    """
    found: dict[tuple[int, int], bool] = {}
    try:
        text = path.read_bytes()
    except OSError as error:
        raise WorldError(f"user log {path}: {(error.strerror or str(error)).lower()}", transient=False) from error
    for header in _HEADER.finditer(text[: text.rfind(_END) + 1]):
        key = _key(header)
        found[key.cluster, key.process] = key.number == TERMINATED
    return found


def _key(header: re.Match[bytes]) -> EventKey:
    number, cluster, process, time = header.groups()
    return event_key(int(number), int(cluster), int(process), time.decode())
