"""The racer: starts race copies of stragglers and urgent jobs on other sites. The first good result wins."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Protocol

import grpc.aio
import structlog

from pilotage.v1 import race_service_pb2, race_service_pb2_grpc
from pilotage.values.leadership import Leadership
from pilotage.values.races import NewRaceCopy, StartedRaceCopy
from pilotage.values.wire.accounts import account_from_wire
from pilotage.values.wire.leadership import leadership_to_wire
from pilotage.values.wire.races import new_race_copy_to_wire, started_from_wire
from pilotage_agents.racer.planning import RacedJobs, RaceLoad, RacePlan, RunningJob, plan_races
from pilotage_agents.racer.settings import RacerSettings

_MAX_CURSORS = 1000
"""The server returns at most this many sets in one answer."""


class ServerRaceLink:
    """Calls of a racer to a server over gRPC; only the leader may start copies."""

    def __init__(self, channel: grpc.aio.Channel, leadership: Leadership, *, free_slots_wanted: bool) -> None:
        self._free_slots_wanted = free_slots_wanted
        self._leadership = leadership_to_wire(leadership)
        self._races = race_service_pb2_grpc.RaceServiceStub(channel)

    async def stragglers(self, after_jobs: Mapping[int, int]) -> tuple[Sequence[RacedJobs], RaceLoad]:
        """Return the sets with jobs that may be raced, and the load of races; see RaceLink."""
        answer = await self._find(0, after_jobs)
        load = RaceLoad(
            {account_from_wire(each.account): each.copies for each in answer.load.owners},
            {account_from_wire(each.account): each.lost_core_s for each in answer.load.owners},
        )
        sets = [_set(each) for each in answer.sets]
        while answer.next_after_set:
            answer = await self._find(answer.next_after_set, after_jobs)
            sets += (_set(each) for each in answer.sets)
        return sets, load

    async def _find(self, after_set: int, after_jobs: Mapping[int, int]) -> race_service_pb2.FindStragglersResponse:
        next_marks = sorted(set_id for set_id in after_jobs if set_id > after_set)[:_MAX_CURSORS]
        request = race_service_pb2.FindStragglersRequest(
            after_set=after_set,
            free_slots_wanted=self._free_slots_wanted,
            after_jobs={set_id: after_jobs[set_id] for set_id in next_marks},
        )
        answer: race_service_pb2.FindStragglersResponse = await self._races.FindStragglers(request)
        return answer

    async def start_copies(self, copies: Sequence[NewRaceCopy]) -> Sequence[StartedRaceCopy]:
        """Start copies of at most 1,000 different jobs; returns one result each, in order."""
        request = race_service_pb2.StartCopiesRequest(
            request_id=uuid.uuid4().hex,
            turn=self._leadership,
            copies=map(new_race_copy_to_wire, copies),
        )
        answer = await self._races.StartCopies(request)
        return [started_from_wire(each) for each in answer.copies]


def _set(message: race_service_pb2.RaceSet) -> RacedJobs:
    return RacedJobs(
        message.id,
        message.jobs,
        message.urgent,
        message.sampled,
        message.done,
        message.p95_s,
        message.waiting,
        tuple(_runner(each) for each in message.stragglers),
        message.next_after_job,
    )


def _runner(message: race_service_pb2.Straggler) -> RunningJob:
    return RunningJob(
        message.job_id,
        account_from_wire(message.account),
        message.running_s,
        message.cpus,
        message.copies_made,
        message.copy_waits,
        {each.site: each.free_slots for each in message.sites},
    )


log = structlog.get_logger()

_MAX_COPIES_PER_CALL = 1000


class RaceLink(Protocol):
    """The calls of the racer; every method raises a PilotageError when its call fails."""

    async def stragglers(self, after_jobs: Mapping[int, int]) -> tuple[Sequence[RacedJobs], RaceLoad]:
        """Return the sets with jobs that may be raced, and the load of races.

        A set too large for one cycle is continued after its job in `after_jobs`, by set.
        """

    async def start_copies(self, copies: Sequence[NewRaceCopy]) -> Sequence[StartedRaceCopy]:
        """Start copies of at most 1,000 different jobs; returns one result each, in order."""


class Racer:
    """Starts race copies. The server decides which copy wins and ends the others, also when no racer runs."""

    name = "racer"

    def __init__(self, settings: RacerSettings, link: RaceLink) -> None:
        self._interval = timedelta(seconds=settings.interval_s)
        self._rules = settings.rules()
        self._link = link
        self._after_jobs: dict[int, int] = {}

    async def run_once(self) -> timedelta:
        """Start the copies that are wanted now; returns how long to wait until the next cycle."""
        sets, plan = await self._plan()
        for start in range(0, len(plan.copies), _MAX_COPIES_PER_CALL):
            copies = plan.copies[start : start + _MAX_COPIES_PER_CALL]
            started = await self._link.start_copies(copies)
            for asked, each in zip(copies, started, strict=True):
                if each.copy_id:
                    log.info("copy started", job=each.job_id, copy=each.copy_id, reason=asked.reason)
                else:
                    log.info("copy refused", job=each.job_id, reason=each.refusal)
        self._after_jobs = {job_set.id: job_set.next_after_job for job_set in sets if job_set.next_after_job}
        return self._interval

    async def dry_run(self) -> tuple[str, ...]:
        """Return which jobs would be raced and why, and why the others would not; changes nothing."""
        _, plan = await self._plan()
        return (
            *(f"job {each.job_id}: a copy: {each.reason}" for each in plan.copies),
            *(f"job {each.job_id}: no copy: {each.reason}" for each in plan.not_raced),
        )

    async def stop(self) -> None:
        """Return at once: the server settles races without it."""

    async def _plan(self) -> tuple[Sequence[RacedJobs], RacePlan]:
        sets, load = await self._link.stragglers(self._after_jobs)
        return sets, plan_races(sets, load, self._rules)
