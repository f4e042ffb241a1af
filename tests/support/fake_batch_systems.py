"""Batch systems in memory: one that passes the conformance suite and fails on demand, and HTCondor schedds.

In all but the schedd that runs processes, `true`, `cat` and `false` end as soon as they are submitted; other programs
run until they are removed.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import classad2
import htcondor2

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
_EXIT_CODES_OF_JOBS = {"'true'": 0, "'cat'": 0, "'false'": 1}
RUNNING, REMOVED, COMPLETED = 2, 3, 4
"""Values of JobStatus."""


@dataclass
class FakeBatchSystem:
    """Keeps the status of each glidein by id.

    - `refuses`, if not empty, is the reason why every submission fails.
    - While `is_reachable` is False every call fails. While `loses_answers` submissions succeed without an answer.
    - While `fails_collect` or `fails_renew` only that call fails. The output of the folders named in
      `uncollectable` cannot be collected.
    - `collected` records the names of the folders whose output was collected, `renewed` the renewed contents.
    """

    requests: dict[str, GlideinRequest] = field(default_factory=dict)
    statuses: dict[str, GlideinStatus] = field(default_factory=dict)
    refuses: str = ""
    is_reachable: bool = True
    loses_answers: bool = False
    fails_collect: bool = False
    fails_renew: bool = False
    uncollectable: set[str] = field(default_factory=set)
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
        return {
            glidein_id: self.statuses.get(glidein_id, unknown) if self.is_reachable else unknown
            for glidein_id in glidein_ids
        }

    async def cancel_many(self, glidein_ids: Sequence[str]) -> None:
        for glidein_id in glidein_ids:
            if glidein_id in self.statuses and self.is_reachable:
                self.end(glidein_id, 0, "cancelled")

    async def renew(self, folders: Sequence[Path], name: str) -> None:
        if self.fails_renew or not self.is_reachable:
            raise WorldError("the batch system does not answer", transient=True)
        self.renewed += [(folder / name).read_text() for folder in folders]

    async def collect(self, folders: Sequence[Path]) -> None:
        if self.fails_collect or not self.is_reachable or any(folder.name in self.uncollectable for folder in folders):
            raise WorldError("the batch system does not answer", transient=True)
        self.collected += [folder.name for folder in folders]
        for request in self.requests.values():
            if request.folder in folders and request.command[0] == "cat":
                text = (request.folder / request.command[1]).read_text()
                (request.folder / LOG_NAME).write_text(text)

    def end(self, glidein_id: str, exit_code: int, reason: str = "") -> None:
        """End a glidein, unless it has ended."""
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


@dataclass
class FakeSchedd:
    """Keeps ads by cluster id. While `loses_answers`, submissions succeed without an answer."""

    in_queue: dict[int, dict[str, Any]] = field(default_factory=dict)
    in_history: list[dict[str, Any]] = field(default_factory=list)
    descriptions: list[Mapping[str, str]] = field(default_factory=list)
    is_reachable: bool = True
    loses_answers: bool = False
    history_is_off: bool = False

    async def submit(self, descriptions: Sequence[Mapping[str, str]]) -> Sequence[int | NotSubmitted | Unanswered]:
        self._check_reachable()
        clusters = [self._accept(description) for description in descriptions]
        return [Unanswered("the answer was lost") for _ in clusters] if self.loses_answers else clusters

    async def queue(self, *, of_this_user: bool) -> Sequence[Ad]:
        self._check_reachable()
        return [ad for ad in self.in_queue.values() if ad["Owner"] == "grid" or not of_this_user]

    async def history(self, constraint: str, most: int) -> Sequence[Ad]:
        self._check_reachable()
        if self.history_is_off:
            return []
        return [ad for ad in reversed(self.in_history) if meets(ad, constraint)][:most]

    async def remove(self, constraint: str, reason: str) -> None:
        self._check_reachable()
        for cluster, ad in list(self.in_queue.items()):
            if meets(ad, constraint):
                self.move_to_history(cluster, JobStatus=REMOVED, RemoveReason=f"{reason} (by user grid)")

    def move_to_history(self, cluster: int, **attributes: Any) -> None:
        """Move a job from the queue to the history and set these attributes."""
        self.in_history.append({**self.in_queue.pop(cluster), **attributes})

    def _check_reachable(self) -> None:
        if not self.is_reachable:
            raise WorldError("Failed to fetch ads from schedd", transient=True)

    def _accept(self, description: Mapping[str, str]) -> int:
        self.descriptions.append(description)
        cluster = len(self.descriptions)
        ad = {"ClusterId": cluster, "ProcId": 0, "Owner": "grid", "JobStatus": RUNNING, "NumJobStarts": 1}
        self.in_queue[cluster] = ad | {"PilotageStamp": description["+PilotageStamp"].strip('"')}
        arguments = description["arguments"].strip('"').split()
        for program, code in _EXIT_CODES_OF_JOBS.items():
            if program in arguments:
                self.move_to_history(cluster, JobStatus=COMPLETED, ExitBySignal=False, ExitCode=code)
        if "'cat'" in arguments:
            folder = Path(description["initialdir"])
            (folder / LOG_NAME).write_text((folder / arguments[-1].strip("'")).read_text())
        return cluster


@dataclass
class ProcessSchedd(FakeSchedd):
    """Runs jobs as processes in their folders, as nodes of the schedd's FileSystemDomain do."""

    processes: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)

    async def queue(self, *, of_this_user: bool) -> Sequence[Ad]:
        for cluster in list(self.in_queue):
            if (code := self.processes[cluster].poll()) is not None:
                end = {"ExitBySignal": code < 0, "ExitSignal" if code < 0 else "ExitCode": abs(code)}
                self.move_to_history(cluster, JobStatus=COMPLETED, **end)
        return await super().queue(of_this_user=of_this_user)

    async def remove(self, constraint: str, reason: str) -> None:
        for cluster, ad in self.in_queue.items():
            if meets(ad, constraint):
                self.processes[cluster].terminate()
                await asyncio.to_thread(self.processes[cluster].wait)
        await super().remove(constraint, reason)

    def _accept(self, description: Mapping[str, str]) -> int:
        assert description["should_transfer_files"] == "NO", "nothing is transferred here"
        cluster = super()._accept(description)
        folder = Path(description["initialdir"])
        command = [description["executable"], *arguments_of(description)]
        with (folder / description["output"]).open("ab") as log:
            self.processes[cluster] = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        return cluster

    def close(self) -> None:
        """End all processes."""
        for process in self.processes.values():
            process.kill()
            process.wait()


def arguments_of(description: Mapping[str, str]) -> list[str]:
    """Return the arguments of a job, expanded by HTCondor's library and split by the rules of its manual."""
    arguments = str(htcondor2.Submit(dict(description)).expand("arguments"))
    assert arguments[0] == arguments[-1] == '"'
    inner = arguments[1:-1].replace('""', '"')
    return [word.replace("''", "'") for word in re.findall(r"'((?:[^']|'')*)'(?: |$)", inner)]


def meets(ad: Mapping[str, Any], constraint: str) -> bool:
    """Return whether an ad meets a constraint, evaluated by HTCondor's library."""
    whole = classad2.ClassAd(dict(ad))
    whole["Constraint"] = classad2.ExprTree(constraint)
    return whole.eval("Constraint") is True
