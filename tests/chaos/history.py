"""What clients and payloads have seen, as journals on disk: one JSON object a line, one folder a run.

Payloads write marks: the run (one start of one payload), what happens, and the seconds since the boot of the machine,
which all processes share. A line that a crash has cut is ignored.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar


class MarkKind(StrEnum):
    """What a payload does at a mark."""

    START = "start"
    ALIVE = "alive"
    END = "end"


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """The ids that a client got for a request; a repeated request has several."""

    request_id: str
    job_ids: tuple[int, ...]
    max_starts: int | None = None


@dataclass(frozen=True, slots=True)
class Transition:
    """One event that a follower got from the feed."""

    follower: str
    position: int
    job_id: int
    before: str
    after: str


@dataclass(frozen=True, slots=True)
class Reading:
    """The state of a job in an answer."""

    job_id: int
    state: str
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """An error that a client got although its call was valid, and that no repetition mends."""

    client: str
    why: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A line of a payload."""

    job_id: int
    run: str
    kind: MarkKind
    boot_s: float


@dataclass(frozen=True, slots=True)
class History:
    """All that was seen, each kind in the order in which it was seen."""

    acknowledgements: tuple[Acknowledgement, ...] = ()
    transitions: tuple[Transition, ...] = ()
    readings: tuple[Reading, ...] = ()
    refusals: tuple[Refusal, ...] = ()
    marks: tuple[Mark, ...] = ()


Entry = Acknowledgement | Transition | Reading | Refusal
_Value = TypeVar("_Value", bound=Entry)
_KINDS: dict[str, type[Entry]] = {kind.__name__: kind for kind in (Acknowledgement, Transition, Reading, Refusal)}


@dataclass
class Journal:
    """The journal of the clients of a run, written at once."""

    folder: Path
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.marks.mkdir(parents=True, exist_ok=True)

    @property
    def marks(self) -> Path:
        """The folder in which each job has a file of marks, named by its id."""
        return self.folder / "marks"

    @property
    def _file(self) -> Path:
        return self.folder / "clients.jsonl"

    def write(self, *entries: Entry) -> None:
        """Append entries; they are in the file when this returns."""
        lines = [json.dumps({"kind": type(entry).__name__, **asdict(entry)}) + "\n" for entry in entries]
        with self._lock, self._file.open("a") as file:
            file.writelines(lines)

    def read(self) -> History:
        """Return everything that is written so far."""
        entries = [_entry(line) for line in _whole_lines(self._file)]
        return History(
            _of(Acknowledgement, entries),
            _of(Transition, entries),
            _of(Reading, entries),
            _of(Refusal, entries),
            tuple(self._marks()),
        )

    def _marks(self) -> Iterator[Mark]:
        for file in sorted(self.marks.iterdir()):
            for line in _whole_lines(file):
                run, kind, boot_s = line.split()
                yield Mark(int(file.name), run, MarkKind(kind), float(boot_s))


def _whole_lines(file: Path) -> list[str]:
    return [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")] if file.exists() else []


def _entry(line: str) -> Entry:
    fields: dict[str, Any] = json.loads(line)
    kind = _KINDS[fields.pop("kind")]
    if kind is Acknowledgement:
        fields["job_ids"] = tuple(fields["job_ids"])
    return kind(**fields)


def _of(kind: type[_Value], entries: list[Entry]) -> tuple[_Value, ...]:
    return tuple(entry for entry in entries if isinstance(entry, kind))
