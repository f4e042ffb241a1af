"""The errors of the readers: which file, which line, why."""

from __future__ import annotations

from pilotage.errors import InvalidInputError, Violation


class ReadError(InvalidInputError):
    """A file does not describe jobs.

    `line` is the first line of the statement at fault, counted from 1; None = the file as a whole.
    """

    def __init__(self, file: str, line: int | None, cause: str) -> None:
        where = file if line is None else f"{file}:{line}"
        super().__init__(Violation(where, cause))
        self.file = file
        self.line = line
        self.cause = cause


class StatementFaultError(Exception):
    """A statement that begins on `line` is at fault; inside the readers, where the file has no name yet."""

    def __init__(self, line: int, cause: str) -> None:
        super().__init__(cause)
        self.line = line
        self.cause = cause
