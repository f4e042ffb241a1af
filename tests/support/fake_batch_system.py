"""A batch system in memory, which passes the same conformance suite as the real ones and can be made to fail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

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

_ENDS_AT_ONCE = {"true": 0, "cat": 0, "false": 1}


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
        exit_code = _ENDS_AT_ONCE.get(request.command[0])
        state = GlideinState.RUNNING if exit_code is None else GlideinState.ENDED
        self.statuses[glidein_id] = GlideinStatus(state, "", exit_code)
        return Unanswered("the answer was lost") if self.loses_answers else Submitted(glidein_id)
