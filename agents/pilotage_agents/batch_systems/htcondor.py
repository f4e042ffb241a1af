"""HTCondor as a batch system, by its own library; tested with recorded answers, and untried against a live pool.

The files of a glidein's folder travel with it by HTCondor's file transfer, and its output comes back so: nodes need see
no folder of the director's, but the schedd's host must.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import structlog

from pilotage.errors import InvalidInputError, WorldError
from pilotage_agents.batch_systems.base import (
    LOG_NAME,
    GlideinRequest,
    GlideinState,
    GlideinStatus,
    NotSubmitted,
    Submission,
    Submitted,
    Unanswered,
    living_by_stamp,
)
from pilotage_agents.batch_systems.htcondor_text import (
    HtcondorId,
    any_of,
    description,
    status_in_history,
    status_in_queue,
)
from pilotage_agents.batch_systems.schedd import Schedd
from pilotage_agents.settings import HtcondorBatchSystemSettings

log = structlog.get_logger()

_LOOK_AGAIN_S = 1.0
_MOST_IN_A_CONSTRAINT = 100

_Statuses = dict[HtcondorId, GlideinStatus]


class HtcondorBatchSystem:
    """Runs glideins as vanilla jobs of this user; `name` is what the settings call the schedd.

    A job that has left the queue has ended; the schedd's history says how.
    """

    def __init__(self, name: str, settings: HtcondorBatchSystemSettings, schedd: Schedd) -> None:
        self._name = name
        self._settings = settings
        self._schedd = schedd

    async def submit_many(self, requests: Sequence[GlideinRequest]) -> tuple[Submission, ...]:
        """Submit one job each; see BatchSystem."""
        told = [await asyncio.to_thread(self._told, request) for request in requests]
        answers = iter(await self._answers([each for each in told if not isinstance(each, NotSubmitted)]))
        return tuple(
            self._submission(request, each if isinstance(each, NotSubmitted) else next(answers))
            for request, each in zip(requests, told, strict=True)
        )

    async def find_again(self, stamps: Sequence[str]) -> Mapping[str, str]:
        """Return the ids of the jobs that have these stamps and have not ended; see BatchSystem."""
        return living_by_stamp(await self._queue(of_this_user=True), stamps) if stamps else {}

    async def poll_all(self, glidein_ids: Sequence[str]) -> Mapping[str, GlideinStatus]:
        """Return what the queue says of the jobs, and the history of others; see BatchSystem."""
        jobs = {job: each for each in glidein_ids if (job := HtcondorId.of(each))}
        statuses = dict.fromkeys(glidein_ids, GlideinStatus(GlideinState.UNKNOWN, "it is no job of HTCondor's"))
        return statuses | {jobs[job]: status for job, status in (await self._statuses(jobs)).items()}

    async def cancel_many(self, glidein_ids: Sequence[str]) -> None:
        """Have the jobs removed: their pilots are told to end, and killed by HTCondor when they do not."""
        wanted = [job for each in glidein_ids if (job := HtcondorId.of(each))]
        try:
            for start in range(0, len(wanted), _MOST_IN_A_CONSTRAINT):
                some = any_of(wanted[start : start + _MOST_IN_A_CONSTRAINT])
                await self._schedd.remove(some, "its site director has no more use for it")
            await self._gone(set(wanted))
        except WorldError as error:
            log.warning("glideins could not be cancelled", batch_system=self._name, reason=str(error))

    async def renew(self, folders: Sequence[Path], name: str) -> None:
        """Do nothing: what is in the folder goes with the pilot when it starts; see BatchSystem."""

    async def collect(self, folders: Sequence[Path]) -> None:
        """Do nothing: HTCondor brings the output into the folders; see BatchSystem."""

    def _told(self, request: GlideinRequest) -> dict[str, str] | NotSubmitted:
        """Return what is told of a glidein; all files of its folder go with it."""
        try:
            files = sorted(path.name for path in request.folder.iterdir() if path.is_file() and path.name != LOG_NAME)
            return description(request, files, self._settings.submit, self._settings.kill_after_s)
        except OSError as error:
            return NotSubmitted(f"{request.folder}: {error.strerror}")
        except InvalidInputError as error:
            return NotSubmitted(str(error))

    async def _answers(self, told: Sequence[Mapping[str, str]]) -> Sequence[int | NotSubmitted | Unanswered]:
        try:
            return await self._schedd.submit(told) if told else ()
        except WorldError as error:
            return [Unanswered(str(error)) if error.transient else NotSubmitted(str(error))] * len(told)

    def _submission(self, request: GlideinRequest, answer: int | NotSubmitted | Unanswered) -> Submission:
        match answer:
            case int(cluster):
                return Submitted(str(HtcondorId(cluster, request.stamp)))
            case NotSubmitted(reason, was_tried):
                return NotSubmitted(f"{self._name}: {reason}", was_tried)
            case Unanswered(reason):
                return Unanswered(f"{self._name}: {reason}")

    async def _statuses(self, jobs: Collection[HtcondorId]) -> _Statuses:
        if not jobs:
            return {}
        try:
            queue = await self._queue()
        except WorldError as error:
            return self._unknown(jobs, error)
        found = {job: queue[job] for job in jobs if job in queue}
        gone = [job for job in jobs if job not in queue]
        for start in range(0, len(gone), _MOST_IN_A_CONSTRAINT):
            some = gone[start : start + _MOST_IN_A_CONSTRAINT]
            try:
                found |= await self._statuses_of_gone(some)
            except WorldError as error:
                return self._unknown(gone[start:], error) | found
        return found

    async def _statuses_of_gone(self, jobs: Sequence[HtcondorId]) -> _Statuses:
        """Return how jobs ended that are not in the queue; nobody knows it of one that the history has forgotten."""
        ads = await self._schedd.history(any_of(jobs), len(jobs))
        forgotten = GlideinStatus(GlideinState.ENDED, f"{self._name} has it neither in its queue nor in its history")
        known = {job: status_in_history(ad) for ad in ads if (job := HtcondorId.of_ad(ad))}
        return {job: known.get(job, forgotten) for job in jobs}

    async def _queue(self, *, of_this_user: bool = False) -> _Statuses:
        ads = await self._schedd.queue(of_this_user=of_this_user)
        return {job: status_in_queue(ad) for ad in ads if (job := HtcondorId.of_ad(ad))}

    async def _gone(self, jobs: set[HtcondorId]) -> None:
        """Wait until the jobs have left the queue; no longer than they have for it."""
        try:
            async with asyncio.timeout(self._settings.kill_after_s):
                while jobs:
                    jobs &= (await self._queue()).keys()
                    await asyncio.sleep(_LOOK_AGAIN_S if jobs else 0)
        except TimeoutError:
            log.warning("glideins are late to end", batch_system=self._name)

    def _unknown(self, jobs: Collection[HtcondorId], error: WorldError) -> _Statuses:
        log.warning("batch system gives no answer", batch_system=self._name, reason=str(error), glideins=len(jobs))
        return dict.fromkeys(jobs, GlideinStatus(GlideinState.UNKNOWN, f"{self._name}: {error}"))
