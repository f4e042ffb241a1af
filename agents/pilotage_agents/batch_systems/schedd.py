"""A schedd as a batch system needs it, and the real one, reached by HTCondor's own library in a child process.

The library blocks without end where a schedd does not answer, may end its process, and reads HTCondor's configuration,
which this process has turned off for its ClassAds: so every call has a process of its own, with a deadline.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import NotSubmitted, Unanswered
from pilotage_agents.batch_systems.commands import ask
from pilotage_agents.batch_systems.htcondor_text import ATTRIBUTES, OURS, Ad
from pilotage_agents.batch_systems.schedd_child import NO_LIBRARY

_CHILD = "pilotage_agents.batch_systems.schedd_child"


class Schedd(Protocol):
    """The queue and the history of a schedd; every method raises WorldError when it gives no answer."""

    async def submit(self, descriptions: Sequence[Mapping[str, str]]) -> Sequence[int | NotSubmitted | Unanswered]:
        """Submit one job each; returns the cluster of each, or why there is none."""

    async def queue(self, *, of_this_user: bool) -> Sequence[Ad]:
        """Return the ads of all glideins in the queue."""

    async def history(self, constraint: str, most: int) -> Sequence[Ad]:
        """Return the ads of jobs that have left the queue, the last first; no more than `most`."""

    async def remove(self, constraint: str, reason: str) -> None:
        """Ask jobs to end; none that meets the constraint is no error."""


class LibrarySchedd:
    """The schedd `name` of the pool of `collector`; empty = what this host's HTCondor configuration says."""

    def __init__(self, name: str, collector: str, *, timeout_s: float) -> None:
        self._where = {"schedd": name, "collector": collector}
        self._timeout_s = timeout_s

    async def submit(self, descriptions: Sequence[Mapping[str, str]]) -> Sequence[int | NotSubmitted | Unanswered]:
        """Submit jobs; after one that was not taken no other is tried. See Schedd."""
        answer = await self._call("submit", descriptions=[dict(each) for each in descriptions])
        clusters: list[int] = answer["clusters"]
        left = len(descriptions) - len(clusters)
        if not left:
            return clusters
        first = NotSubmitted(answer["error"]) if answer["refused"] else Unanswered(answer["error"])
        return [*clusters, first, *[NotSubmitted(f"as before: {answer['error']}", was_tried=False)] * (left - 1)]

    async def queue(self, *, of_this_user: bool) -> Sequence[Ad]:
        """Return the ads of all glideins in the queue; see Schedd."""
        answer = await self._call("queue", constraint=OURS, attributes=ATTRIBUTES, of_this_user=of_this_user)
        return _ads(answer)

    async def history(self, constraint: str, most: int) -> Sequence[Ad]:
        """Return the ads of jobs that have left the queue; see Schedd."""
        return _ads(await self._call("history", constraint=constraint, attributes=ATTRIBUTES, most=most))

    async def remove(self, constraint: str, reason: str) -> None:
        """Ask jobs to end; see Schedd."""
        await self._call("remove", constraint=constraint, reason=reason)

    async def _call(self, what: str, **request: object) -> dict[str, Any]:
        text = json.dumps({"do": what, **self._where, **request})
        answer = await ask((sys.executable, "-P", "-m", _CHILD), timeout_s=self._timeout_s, stdin=text.encode())
        if answer.exit_code != 0:
            raise WorldError(answer.complaint, transient=NO_LIBRARY not in answer.stderr)
        try:
            said = json.loads(answer.stdout.rstrip().rpartition("\n")[2])
        except ValueError as error:
            raise WorldError(f"its answer cannot be read: {error}", transient=True) from error
        assert isinstance(said, dict), "schedd_child answers with an object"
        return said


def _ads(answer: dict[str, Any]) -> list[Ad]:
    ads: list[Ad] = answer["ads"]
    return ads
