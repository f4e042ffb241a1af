"""Batch systems in memory: one that passes the conformance suite and fails on demand, and a schedd that runs nothing.

`true`, `cat` and `false` end as soon as they are submitted, all else runs until it is removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import classad2

from pilotage.errors import WorldError
from pilotage_agents.batch_systems.base import (
    LOG_NAME,
    GlideinRequest,
    GlideinState,
    GlideinStatus,
    NotSubmitted,
    Submission,
    Submitted,
    Unanswered,
)
from pilotage_agents.batch_systems.htcondor import Ad

_EXIT_CODES = {"true": 0, "cat": 0, "false": 1}


@dataclass
class FakeBatchSystem:
    """Keeps glideins in `statuses` by id; `true`, `cat` and `false` end at once, all else runs until it is cancelled.

    `refuses` is said to every submission while it is not empty. While `is_reachable` is False the batch system
    gives no answer; while `loses_answers` it takes submissions and does not say so; while it `keeps_output` it answers
    all else, and of the folders named in `stuck` it never gives the output. `collected` has the names of the folders
    whose output was given, `renewed` has what was brought anew.
    """

    requests: dict[str, GlideinRequest] = field(default_factory=dict)
    statuses: dict[str, GlideinStatus] = field(default_factory=dict)
    refuses: str = ""
    is_reachable: bool = True
    loses_answers: bool = False
    keeps_output: bool = False
    keeps_tokens: bool = False
    stuck: set[str] = field(default_factory=set)
    collected: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)

    async def submit_many(self, requests: Sequence[GlideinRequest]) -> tuple[Submission, ...]:
        return tuple(self._submit(request) for request in requests)

    async def find_by_stamp(self, stamps: Sequence[str]) -> Mapping[str, str]:
        if not self.is_reachable:
            raise WorldError("the batch system does not answer", transient=True)
        return {
            request.stamp: glidein_id
            for glidein_id, request in self.requests.items()
            if request.stamp in stamps and self.statuses[glidein_id].state is not GlideinState.ENDED
        }

    async def poll_all(self, glidein_ids: Sequence[str]) -> Mapping[str, GlideinStatus]:
        unknown = GlideinStatus(GlideinState.UNKNOWN)
        return {each: self.statuses.get(each, unknown) if self.is_reachable else unknown for each in glidein_ids}

    async def cancel_many(self, glidein_ids: Sequence[str]) -> None:
        for glidein_id in glidein_ids:
            if glidein_id in self.statuses and self.is_reachable:
                self.end(glidein_id, 0, "cancelled")

    async def renew(self, folders: Sequence[Path], name: str) -> None:
        if self.keeps_tokens or not self.is_reachable:
            raise WorldError("the batch system does not answer", transient=True)
        self.renewed += [(folder / name).read_text() for folder in folders]

    async def collect(self, folders: Sequence[Path]) -> None:
        if self.keeps_output or not self.is_reachable or any(folder.name in self.stuck for folder in folders):
            raise WorldError("the batch system does not answer", transient=True)
        self.collected += [folder.name for folder in folders]
        for request in self.requests.values():
            if request.folder in folders and request.command[0] == "cat":
                text = (request.folder / request.command[1]).read_text()
                (request.folder / LOG_NAME).write_text(text)

    def end(self, glidein_id: str, exit_code: int, reason: str = "") -> None:
        """Let a glidein end, unless it has."""
        if self.statuses[glidein_id].state is not GlideinState.ENDED:
            self.statuses[glidein_id] = GlideinStatus(GlideinState.ENDED, reason, exit_code)

    def _submit(self, request: GlideinRequest) -> Submission:
        if self.refuses or not self.is_reachable:
            return NotSubmitted(self.refuses or "the batch system does not answer")
        glidein_id = f"fake.{len(self.requests) + 1}"
        self.requests[glidein_id] = request
        exit_code = _EXIT_CODES.get(request.command[0])
        state = GlideinState.RUNNING if exit_code is None else GlideinState.ENDED
        self.statuses[glidein_id] = GlideinStatus(state, "", exit_code)
        return Unanswered("the answer was lost") if self.loses_answers else Submitted(glidein_id)


_EXIT_CODES_OF_JOBS = {"'true'": 0, "'cat'": 0, "'false'": 1}
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
        for word, code in _EXIT_CODES_OF_JOBS.items():
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
