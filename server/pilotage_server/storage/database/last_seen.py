"""The file beside the database with the highest numbers that this server has seen in it."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import structlog

from pilotage_server.core.incarnation import LastSeen

log = structlog.get_logger()

_NAME = "last-seen.json"


class LastSeenFile:
    """The file in a server's data folder. It helps to notice a restore; without it a server works all the same."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / _NAME
        self._saved: LastSeen | None = None

    def load(self) -> LastSeen | None:
        """Return what the file has; None = there is none, or a crash of the machine has damaged it."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            database_id, *numbers = (content[name] for name in LastSeen._fields)
            return LastSeen(str(database_id), *map(int, numbers))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("what was seen last cannot be read", file=str(self.path), why=str(error))
            return None

    def save(self, seen: LastSeen) -> None:
        """Save what is new; numbers of one incarnation only grow, also where old rows are removed."""
        before = self._saved or self.load()
        if before is not None and before[:2] == seen[:2]:
            seen = LastSeen(*seen[:2], max(before.job, seen.job), max(before.position, seen.position))
        if seen == before:
            return
        draft = self.path.with_name(f".{_NAME}.{os.getpid()}")
        try:
            draft.write_text(json.dumps(seen._asdict()) + "\n", encoding="utf-8")
            draft.replace(self.path)
        finally:
            with suppress(FileNotFoundError):
                draft.unlink()
        self._saved = seen
