"""A schedd in memory that answers with job ads as HTCondor's manual describes them; it cannot run anything.

`true`, `cat` and `false` end as soon as they are submitted, all else runs until it is removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import classad2

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import LOG_NAME, NotSubmitted, Unanswered
from pilotage_agents.batch_systems.htcondor import Ad

_ENDS_AT_ONCE = {"'true'": 0, "'cat'": 0, "'false'": 1}
RUNNING, REMOVED, COMPLETED = 2, 3, 4


@dataclass
class FakeSchedd:
    """Keeps ads by cluster; one that is not reachable gives no answer, one that loses answers does as it is told."""

    in_queue: dict[int, dict[str, Any]] = field(default_factory=dict)
    in_history: list[dict[str, Any]] = field(default_factory=list)
    descriptions: list[Mapping[str, str]] = field(default_factory=list)
    is_reachable: bool = True
    loses_answers: bool = False
    history_is_off: bool = False

    async def submit(self, descriptions: Sequence[Mapping[str, str]]) -> Sequence[int | NotSubmitted | Unanswered]:
        self._answers()
        clusters = [self._take(each) for each in descriptions]
        return [Unanswered("the answer was lost") for _ in clusters] if self.loses_answers else clusters

    async def queue(self, *, of_this_user: bool) -> Sequence[Ad]:
        self._answers()
        return [ad for ad in self.in_queue.values() if ad["Owner"] == "grid" or not of_this_user]

    async def history(self, constraint: str, most: int) -> Sequence[Ad]:
        self._answers()
        if self.history_is_off:
            return []
        return [ad for ad in reversed(self.in_history) if meets(ad, constraint)][:most]

    async def remove(self, constraint: str, reason: str) -> None:
        self._answers()
        for cluster, ad in list(self.in_queue.items()):
            if meets(ad, constraint):
                self.leaves(cluster, JobStatus=REMOVED, RemoveReason=f"{reason} (by user grid)")

    def leaves(self, cluster: int, **attributes: Any) -> None:
        """Move a job from the queue to the history, with these attributes."""
        self.in_history.append({**self.in_queue.pop(cluster), **attributes})

    def _answers(self) -> None:
        if not self.is_reachable:
            raise WorldError("Failed to fetch ads from schedd", transient=True)

    def _take(self, description: Mapping[str, str]) -> int:
        self.descriptions.append(description)
        cluster = len(self.descriptions)
        ad = {"ClusterId": cluster, "ProcId": 0, "Owner": "grid", "JobStatus": RUNNING, "NumJobStarts": 1}
        self.in_queue[cluster] = ad | {"PilotageStamp": description["+PilotageStamp"].strip('"')}
        words = description["arguments"].strip('"').split()
        for word, code in _ENDS_AT_ONCE.items():
            if word in words:
                self.leaves(cluster, JobStatus=COMPLETED, ExitBySignal=False, ExitCode=code)
        if "'cat'" in words:
            folder = Path(description["initialdir"])
            (folder / LOG_NAME).write_text((folder / words[-1].strip("'")).read_text())
        return cluster


def meets(ad: Mapping[str, Any], constraint: str) -> bool:
    """Return whether an ad meets a constraint, by HTCondor's own library."""
    whole = classad2.ClassAd(dict(ad))
    whole["Constraint"] = classad2.ExprTree(constraint)
    return whole.eval("Constraint") is True
