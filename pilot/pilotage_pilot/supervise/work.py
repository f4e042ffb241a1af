"""What a workshop has of one attempt, and how it handles all of them."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

from pilotage.job_output import Bounds, cut, size_of
from pilotage.output_search import Seen
from pilotage_pilot.core.instructions import PrepareJob
from pilotage_pilot.supervise.cgroups import Limits
from pilotage_pilot.supervise.folders import Folders
from pilotage_pilot.supervise.payload import Payload
from pilotage_pilot.supervise.spawn import output_path


@dataclass(frozen=True, slots=True)
class Handling:
    """How payloads are handled: `bounds` are those of output, `watch_s` is between two looks at them.

    `nice` is that of payloads where no policy says. `warn_signal` is sent to a payload whose time ends (None = only
    the file is written).
    """

    bounds: Bounds = field(default_factory=lambda: Bounds(256 << 20))
    cache_bytes: int = 2 << 30
    nice: int = 0
    cpus_hard: bool = False
    watch_s: float = 1.0
    warn_signal: signal.Signals | None = None


@dataclass(slots=True)
class Work:
    """One attempt: `streams` are its streams by name, `seen` what was in its folder at its start, if that counts.

    `cut` are the streams that have grown too long. `payload` None = it does not run (yet, or any more).
    """

    order: PrepareJob
    folders: Folders
    streams: tuple[str, ...]
    payload: Payload | None = None
    seen: Seen | None = None
    cut: set[str] = field(default_factory=set)

    def nice(self, handling: Handling) -> int:
        """Return how much nicer than the pilot its payload is."""
        return handling.nice if self.order.nice is None else self.order.nice

    def limits(self, handling: Handling) -> Limits:
        """Return what its payload may use."""
        return Limits(self.order.slot.amounts, self.nice(handling), cpus_hard=handling.cpus_hard)

    def cut_streams(self, bounds: Bounds) -> None:
        """Cut what its payload has written beyond the bounds."""
        for name in self.streams:
            path = output_path(self.folders.work, name)
            if path is not None and size_of(path) > bounds.file_bytes and cut(path, bounds.file_bytes):
                self.cut.add(name)
