"""Requests for jobs as the database's writers take them: all that wait at once, each with one effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from pilotage.errors import PilotageError
from pilotage_server.operations.idempotency import Asked, Served, each_once
from pilotage_server.operations.request_jobs import request_many
from pilotage_server.operations.work import WorkAnswer, WorkRequest
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit

MOST_REQUESTS = 64
"""So many are served in one transaction; the others wait for the next, so that none waits for long."""


@dataclass(frozen=True, slots=True)
class WorkCall:
    """A request for jobs, made `waited` ago."""

    asked: Asked
    request: WorkRequest
    waited: timedelta = timedelta(0)


@dataclass(frozen=True, slots=True)
class WorkDone:
    """What came of it: the answer as it is to be sent, and what it says.

    `answer` None = the request was answered before, and `response` is what was kept of that.
    """

    response: bytes
    answer: WorkAnswer | None


class WorkBatch:
    """Serves requests for jobs; `write` makes the bytes of an answer to a request that was made so long ago."""

    most = MOST_REQUESTS

    def __init__(self, world: World, write: Callable[[WorkAnswer, timedelta], bytes]) -> None:
        self._world = world
        self._write = write

    def run(self, unit: Unit, items: Sequence[WorkCall]) -> list[WorkDone | PilotageError]:
        """Serve the requests, those that came first first; one that comes twice is served once."""
        return each_once(
            unit,
            [item.asked for item in items],
            lambda fresh: self._serve(unit, [items[place] for place in fresh]),
            lambda _, kept: WorkDone(kept, None),
        )

    def _serve(self, unit: Unit, items: Sequence[WorkCall]) -> list[Served[WorkDone] | PilotageError]:
        """Serve requests that are new; only an answer that brings jobs is kept, for the rest may be asked again."""
        answers = request_many(unit, self._world, [(item.asked.identity, item.request) for item in items])
        return [
            answer if isinstance(answer, PilotageError) else self._served(answer, item.waited)
            for item, answer in zip(items, answers, strict=True)
        ]

    def _served(self, answer: WorkAnswer, waited: timedelta) -> Served[WorkDone]:
        response = self._write(answer, waited)
        return Served(WorkDone(response, answer), response if answer.matches else None)
