"""`pilotage_server.main`, which records where the time of calls with `CALL_HEADER` goes, for `harness.stages`.

It records moments of these calls and periods of the server, all of the boot clock. At its end it writes them to the
file that `RECORDS` names. It needs SQLite, which has one writer.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pilotage.clock import boot_time_s
from pilotage_server.main import main
from pilotage_server.rpc.framework.calls import Call
from pilotage_server.storage.database import connections
from pilotage_server.storage.database.connections import PooledConnection
from pilotage_server.storage.database.engine import Database

CALL_HEADER = "bench-call"
"""Metadata of a call: its number."""
RECORDS = "PILOTAGE_BENCH_RECORDS"
"""The environment variable with the path of the file of records."""

PERIODS = ("groups", "checkpoints", "collections of garbage", "no interpreter")
"""What is recorded with begin and end.

A group ends on disk, before its answers. The last one is when a thread that was due could not run.
"""

_TICK_S = 0.002
_LATE_S = 0.002
"""A thread that wakes so late has waited for the interpreter or for the core."""


class _Group:
    """The group of calls that the writer works on; times are those of the boot clock."""

    began_s = commit_began_s = commit_ended_s = 0.0


class _Watch:
    """What is recorded: `calls` by number as moments of `harness.stages.CallMoments`, `periods` by name."""

    def __init__(self) -> None:
        self.calls: dict[int, tuple[float, ...]] = {}
        self.periods: dict[str, list[tuple[float, float]]] = {name: [] for name in PERIODS}
        self._group = _Group()
        self._collection_began_s = 0.0

    def add_period(self, name: str, began_s: float, ended_s: float | None = None) -> None:
        """Record a period; by default it ends now."""
        self.periods[name].append((began_s, boot_time_s() if ended_s is None else ended_s))

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function; each of its calls is recorded as a period."""

        def run(*arguments: Any) -> Any:
            began_s = boot_time_s()
            try:
                return function(*arguments)
            finally:
                self.add_period(name, began_s)

        return run

    def time_group(self, commit: Callable[..., Any]) -> Callable[..., Any]:
        def run(database: Database, operation: Any) -> Any:
            self._group = _Group()
            self._group.began_s = boot_time_s()
            done = commit(database, operation)
            self.add_period("groups", self._group.began_s)
            return done

        return run

    def time_commit(self, commit: Callable[..., None]) -> Callable[..., None]:
        def run(connection: PooledConnection) -> None:
            self._group.commit_began_s = boot_time_s()
            commit(connection)
            self._group.commit_ended_s = boot_time_s()

        return run

    def note_answer(self, answer: Callable[..., None]) -> Callable[..., None]:
        def run(call: Call[Any], response: Any) -> None:
            answer(call, response)
            number = call.wire.metadata().get(CALL_HEADER)
            if number is not None:
                group = self._group
                moments = (call.info.arrived_s, group.began_s, group.commit_began_s, group.commit_ended_s)
                self.calls[int(number)] = (*moments, boot_time_s())

        return run

    def note_collection(self, phase: str, _info: dict[str, int]) -> None:
        """Record collections of garbage; called by the collector."""
        if phase == "start":
            self._collection_began_s = boot_time_s()
        else:
            self.add_period("collections of garbage", self._collection_began_s)

    def tick(self) -> None:
        """Record the periods in which this thread could not run."""
        while True:
            due_s = boot_time_s() + _TICK_S
            time.sleep(_TICK_S)
            if (now_s := boot_time_s()) > due_s + _LATE_S:
                self.add_period("no interpreter", due_s, now_s)

    def write(self, path: Path) -> None:
        """Write all records as JSON."""
        path.write_text(json.dumps({"calls": self.calls, "periods": self.periods}))


def _watched(path: Path) -> int:
    watch = _Watch()
    for owner, name, wrap in (
        (Database, "_commit", watch.time_group),  # compiled classes call their own methods without a look-up
        (PooledConnection, "commit", watch.time_commit),
        (Call, "answer", watch.note_answer),
    ):
        setattr(owner, name, wrap(getattr(owner, name)))
    vars(connections)["checkpoint"] = watch.timed("checkpoints", connections.checkpoint)
    gc.callbacks.append(watch.note_collection)
    threading.Thread(target=watch.tick, daemon=True).start()
    code = main()
    watch.write(path)
    return code


if __name__ == "__main__":
    sys.exit(_watched(Path(os.environ[RECORDS])))
