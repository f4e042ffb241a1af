"""Heartbeats as the database's writers take them: all that wait at once, each with one effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from pilotage.errors import PilotageError
from pilotage_server.operations.idempotency import Asked, Served, each_once
from pilotage_server.operations.report_state import Heartbeat, HeartbeatAnswer, report_states
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit

MOST_HEARTBEATS = 64
"""So many are recorded in one transaction; the others wait for the next, so that none waits for long."""


@dataclass(frozen=True, slots=True)
class HeartbeatCall:
    """A heartbeat, and by what it is known if it comes again."""

    asked: Asked
    heartbeat: Heartbeat


Write = Callable[[HeartbeatAnswer, datetime, bytes], bytes]
"""Makes the bytes of an answer that is given now; the last bytes are those of a former answer, whose results count."""


class HeartbeatBatch:
    """Records heartbeats."""

    most = MOST_HEARTBEATS

    def __init__(self, world: World, write: Write) -> None:
        self._world = world
        self._write = write

    def run(self, unit: Unit, items: Sequence[HeartbeatCall]) -> list[bytes | PilotageError]:
        """Record the heartbeats and return their answers; of one that comes again only the leases count."""
        return each_once(
            unit,
            [item.asked for item in items],
            lambda fresh: self._serve(unit, [items[place] for place in fresh]),
            lambda place, kept: self._say_again(unit, items[place], kept),
        )

    def _serve(self, unit: Unit, items: Sequence[HeartbeatCall]) -> list[Served[bytes]]:
        """Record heartbeats that are new; a mere renewal may be recorded twice, so its answer is not kept."""
        answers = report_states(unit, self._world, [(item.asked.identity, item.heartbeat) for item in items])
        responses = [self._write(answer, unit.now, b"") for answer in answers]
        return [
            Served(response, response if item.heartbeat.reports or item.heartbeat.ending else None)
            for item, response in zip(items, responses, strict=True)
        ]

    def _say_again(self, unit: Unit, item: HeartbeatCall, kept: bytes) -> bytes:
        if item.heartbeat.ending:
            return kept
        (answer,) = report_states(unit, self._world, [(item.asked.identity, item.heartbeat.said_again())])
        return self._write(answer, unit.now, kept)
