"""The folder of a job router: how far it has followed the feed, which jobs wait, and what was left at targets."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import structlog

from pilotage.errors import WorldError

log = structlog.get_logger()

_FEED, _LEAVINGS = "feed.json", "over.json"

Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True)
class FeedMark:
    """A position of the feed, and the ids of the jobs that waited there, in the order in which they came."""

    position: int = 0
    waiting: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """What is left of a copy at its target; `reference` "" = nobody knows what finds it, `may_live`: it may run yet."""

    reference: str
    may_live: bool


class RouterFolder:
    """Keeps what a router that starts again can do without, but does better with."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def open(self) -> None:
        """Make the folder; raises WorldError when that cannot be."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _failed(self.root, error) from error

    def mark(self) -> FeedMark:
        """Return the mark that was kept; one that cannot be read is logged, and the feed read anew."""
        return (
            self._read(_FEED, lambda said: FeedMark(int(said["position"]), tuple(map(int, said["waiting"]))))
            or FeedMark()
        )

    def keep(self, mark: FeedMark) -> None:
        """Write the mark, in place of the earlier one; raises WorldError."""
        self._write(_FEED, {"position": mark.position, "waiting": mark.waiting})

    def leavings(self) -> Mapping[str, Mapping[str, Left]]:
        """Return what is left of copies that were over or about to be, by target and name."""
        return self._read(_LEAVINGS, lambda said: {target: _left(each) for target, each in said.items()}) or {}

    def keep_leavings(self, left: Mapping[str, Mapping[str, Left]]) -> None:
        """Write what is left of copies, in place of what was said before; raises WorldError."""
        said = {
            target: {name: (each.reference, each.may_live) for name, each in its.items()}
            for target, its in left.items()
        }
        self._write(_LEAVINGS, said)

    def _read(self, name: str, meaning: Callable[[Any], Kept]) -> Kept | None:
        path = self.root / name
        try:
            return meaning(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.warning("file of the job router cannot be read", path=str(path), reason=str(error))
            return None

    def _write(self, name: str, said: object) -> None:
        path = self.root / name
        try:
            with os.fdopen(os.open(f"{path}.new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
                json.dump(said, file)
            Path(f"{path}.new").replace(path)
        except OSError as error:
            raise _failed(path, error) from error


def _left(said: Mapping[str, tuple[str, bool]]) -> dict[str, Left]:
    return {name: Left(str(reference), bool(may_live)) for name, (reference, may_live) in said.items()}


def _failed(path: Path, error: OSError) -> WorldError:
    return WorldError(f"{path}: {error.strerror}", transient=True)
