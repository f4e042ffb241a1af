"""A log file that never grows beyond a bound, and its last lines."""

from __future__ import annotations

from collections import deque
from io import FileIO
from pathlib import Path

_LAST_LINES = 12


class BoundedLog:
    """Takes lines; a file that has reached `max_bytes` becomes `name.1`, in place of the earlier one.

    What the disk refuses to take is lost to the file; `trouble` then says why. The last lines are kept in
    memory in any case.
    """

    def __init__(self, path: Path, *, max_bytes: int = 10 * 1024 * 1024) -> None:
        self.path = path
        self.trouble = ""
        self._max_bytes = max_bytes
        self._last: deque[str] = deque(maxlen=_LAST_LINES)
        self._file: FileIO | None = None
        self._size = 0

    @property
    def last_lines(self) -> tuple[str, ...]:
        """The last lines, oldest first."""
        return tuple(self._last)

    def write(self, line: bytes) -> None:
        """Take one line, with its end."""
        self._last.append(line.decode(errors="replace").rstrip("\n"))
        try:
            file = self._opened()
            self._size += file.write(line)
        except OSError as error:
            self.trouble = f"{self.path}: {error.strerror}"
            return
        self.trouble = ""

    def close(self) -> None:
        """Close the file; a later line opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _opened(self) -> FileIO:
        if self._file is not None and self._size >= self._max_bytes:
            self.close()
            self.path.replace(self.path.with_name(f"{self.path.name}.1"))
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = FileIO(self.path, "a")
            self._size = self._file.seek(0, 2)
        return self._file
