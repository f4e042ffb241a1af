"""What is kept of copies that have hooks, for whichever router brings them to their ends."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any

import structlog

from pilotage.errors import WorldError

log = structlog.get_logger()

_FORM = 1
"""The form of a record; one of another form is not read."""


@dataclass(frozen=True, slots=True)
class Hooked:
    """A copy that has hooks: its keyword, its ad as text, and what its update hook has said, as text too.

    `finalised` is why its finalise hook has failed, "" = it went well, None = it has not run.
    """

    keyword: str
    copy: str
    said: str = ""
    finalised: str | None = None


class HookRecords:
    """Keeps one file per copy in a folder, which is made when it is first wanted."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()

    def names(self) -> frozenset[str]:
        """Return the names of the copies of which something is kept; raises WorldError."""
        try:
            return frozenset(path.stem for path in self._folder.iterdir() if path.suffix == ".json")
        except FileNotFoundError:
            if self._folder.parent.parent.is_dir():
                return frozenset()
            raise WorldError(f"{self._folder.parent.parent}: is not there", transient=True) from None
        except OSError as error:
            raise WorldError(f"{self._folder}: {error.strerror}", transient=True) from error

    def read(self, name: str) -> Hooked | None:
        """Return what is kept of a copy, None = nothing that could be read, which is logged."""
        path = self._path(name)
        try:
            return _hooked(json.loads(path.read_text()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            log.error("record of a copy with hooks cannot be read", path=str(path), reason=str(error))
            return None

    def begin(self, name: str, hooked: Hooked) -> None:
        """Keep something of a copy for the first time; raises WorldError."""
        with self._lock:
            self._write(self._path(name), hooked)

    def change(self, name: str, hooked: Hooked) -> None:
        """Keep this in place of what was kept of a copy, unless it is over meanwhile; raises WorldError."""
        with self._lock:
            if (path := self._path(name)).exists():
                self._write(path, hooked)

    def _write(self, path: Path, hooked: Hooked) -> None:
        said = {
            "form": _FORM,
            "keyword": hooked.keyword,
            "copy": hooked.copy,
            "said": hooked.said,
            "finalised": hooked.finalised,
        }
        try:
            for folder in (self._folder.parent, self._folder):  # not what these lie in, which may be away
                folder.mkdir(mode=0o700, exist_ok=True)
            new = path.with_suffix(".new")
            new.touch(mode=0o600)
            new.write_text(json.dumps(said))
            new.replace(path)
        except OSError as error:
            raise WorldError(f"{path}: {error.strerror}", transient=True) from error

    def remove(self, name: str) -> None:
        """Keep nothing of a copy any more; a record that cannot be removed is logged."""
        path = self._path(name)
        try:
            with self._lock:
                path.unlink(missing_ok=True)
        except OSError as error:
            log.warning("record of a copy with hooks cannot be removed", path=str(path), reason=str(error))

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.json"


def _hooked(said: Any) -> Hooked:
    if said["form"] != _FORM:
        raise ValueError(f"its form is {said['form']}, and {_FORM} is known")
    finalised = said["finalised"]
    return Hooked(
        str(said["keyword"]), str(said["copy"]), str(said["said"]), None if finalised is None else str(finalised)
    )
