"""Queue statements: how many jobs, for which items, taken from where."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from glob import iglob
from pathlib import Path

from pilotage.classads import InvalidClassAdError, parse_value
from pilotage.resources import LARGEST_COUNT
from pilotage_client.bounded_files import content_of
from pilotage_client.readers.read_error import StatementFaultError
from pilotage_client.readers.submit_text import Statement

MOST_JOBS = 100_000
"""More jobs than this in one file are refused, unless they are all alike."""

_SOURCE = re.compile(r"(?:^|[\s,])(?P<source>in|from|matching)\b(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_HEAD = re.compile(r"(?P<count>[^A-Za-z_]*?)[\s,]*(?P<variables>[A-Za-z_][\w.]*(?:[\s,]+[A-Za-z_][\w.]*)*)?[\s,]*")
_SLICE = re.compile(r"\s*\[(?P<parts>[-+\d\s:]*)\]")
_KIND_OF_MATCH = re.compile(r"\s*(?P<kind>files|dirs|any)\b", re.IGNORECASE)

Expand = Callable[[str], str]
"""Returns a text with its macros replaced."""

SplitItems = Callable[[str, str, list[str]], list[dict[str, str]]]
"""Returns the items of (variables, "in" or "from", lines), taken apart by HTCondor's own rules."""


@dataclass(frozen=True, slots=True)
class Queued:
    """What a queue statement asks for: `count` jobs for each item; None = no items, `count` jobs in all."""

    count: int
    items: tuple[dict[str, str], ...] | None


def queued(statement: Statement, base_dir: Path, expand: Expand, split_items: SplitItems) -> Queued:
    """Return what a queue statement asks for; paths and patterns start at `base_dir`.

    Raises
    ------
    StatementFaultError
        When the count is none, a file of items cannot be read, or nothing matches.
    """
    found = _SOURCE.search(statement.text)
    if found is None:
        return Queued(_count(statement, expand(statement.text)), None)
    head = _HEAD.fullmatch(expand(statement.text[: found.start()]).strip())
    if head is None:
        raise StatementFaultError(statement.line, f"not a queue statement: {statement.text}")
    count = _count(statement, head["count"])
    source, rest = found["source"].lower(), found["rest"]
    wanted, rest = _sliced(statement, rest)
    if source == "matching":
        lines = list(_matches(statement, base_dir, expand(_without_brackets(statement, rest))))
        variables = (head["variables"] or "Item").split()[0]
        items = [{variables: line} for line in lines]
    else:
        lines = _lines(statement, base_dir, source, rest, expand)
        items = split_items(head["variables"] or "", source, lines) if lines else []
    items = items[wanted]
    if not items:
        raise StatementFaultError(statement.line, "the queue statement has no items")
    if len(items) > MOST_JOBS:
        raise StatementFaultError(statement.line, f"more than {MOST_JOBS} items")
    return Queued(count, tuple(items))


def _count(statement: Statement, text: str) -> int:
    if not text.strip():
        return 1
    try:
        count = parse_value(text)
    except InvalidClassAdError:
        count = text
    if isinstance(count, bool) or not isinstance(count, int):
        raise StatementFaultError(
            statement.line, f"queue {statement.text:.60}: {text.strip():.60} is not a number of jobs"
        )
    if not 0 <= count <= LARGEST_COUNT:
        raise StatementFaultError(statement.line, f"queue {statement.text:.60}: {count} jobs are out of range")
    return count


def _sliced(statement: Statement, rest: str) -> tuple[slice, str]:
    """Return which items are wanted, `[start:end:step]` as in Python, and the rest of the statement."""
    found = _SLICE.match(rest)
    if found is None:
        if rest.lstrip().startswith("["):
            raise StatementFaultError(statement.line, f"no slice of items: {rest.strip()}")
        return slice(None), rest
    try:
        start, end, *step = (int(part) if part.strip() else None for part in found["parts"].split(":"))
        wanted = slice(start, end, *step)
        wanted.indices(1)
    except (TypeError, ValueError) as error:
        raise StatementFaultError(statement.line, f"[{found['parts']}] is no slice of items") from error
    return wanted, rest[found.end() :]


def _lines(statement: Statement, base_dir: Path, source: str, rest: str, expand: Expand) -> list[str]:
    if "(" in rest or source == "in":
        text = _without_brackets(statement, rest)
        return _useful([text, *statement.listed] if not statement.listed else statement.listed)
    path = expand(rest).strip()
    if path.endswith("|"):
        raise StatementFaultError(statement.line, "items from a command are not read: write them to a file first")
    return _useful(_lines_of_file(statement, base_dir / path, path))


def _lines_of_file(statement: Statement, path: Path, name: str) -> list[str]:
    try:
        return content_of(path).decode(errors="replace").split("\n")
    except (OSError, ValueError) as error:
        why = (error.strerror or "cannot be read").lower() if isinstance(error, OSError) else "not a file name"
        raise StatementFaultError(statement.line, f"the items' file {name}: {why}") from error


def _useful(lines: Iterable[str]) -> list[str]:
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def _without_brackets(statement: Statement, rest: str) -> str:
    if statement.listed:
        return " ".join(_useful(statement.listed))
    text = rest.strip()
    if text.startswith("("):
        inside, closing, behind = text[1:].rpartition(")")
        if not closing or (behind.strip() and not behind.lstrip().startswith("#")):
            raise StatementFaultError(statement.line, f"not a list of items: {text}")
        return inside
    return text


def _matches(statement: Statement, base_dir: Path, text: str) -> Iterator[str]:
    """Yield the files that match, each once; a folder's name ends with a slash, as HTCondor gives it."""
    found = _KIND_OF_MATCH.match(text)
    kind = found["kind"].lower() if found is not None else "any"
    patterns = (text[found.end() :] if found is not None else text).strip().removeprefix("(").removesuffix(")")
    seen: set[str] = set()
    for pattern in patterns.replace(",", " ").split():
        for name in sorted(iglob(pattern, root_dir=base_dir)):
            is_folder = (base_dir / name).is_dir()
            if name in seen or (kind == "files" and is_folder) or (kind == "dirs" and not is_folder):
                continue
            seen.add(name)
            yield f"{name.rstrip('/')}/" if is_folder else name
    if not seen:
        raise StatementFaultError(statement.line, f"nothing matches {patterns.strip() or 'an empty pattern'}")
