"""The racer's link to a real server."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import grpc.aio

from pilotage.v1 import matcher_service_pb2, race_service_pb2, race_service_pb2_grpc, values_pb2
from pilotage_agents.core.racing import JobSet, Load, NewRival, Owner, Runner
from pilotage_agents.link import Turn
from pilotage_agents.racer import StartedCopy

_MOST_MARKS = 1000
"""No answer is about more sets."""


class ServerRaceLink:
    """Calls of a racer to a server over gRPC; copies are started in its turn only."""

    def __init__(self, channel: grpc.aio.Channel, turn: Turn, *, free_slots_wanted: bool) -> None:
        self._free_slots_wanted = free_slots_wanted
        self._turn = values_pb2.Turn(agent=turn.agent, holder=turn.holder)
        self._races = race_service_pb2_grpc.RaceServiceStub(channel)

    async def stragglers(self, after_jobs: Mapping[int, int]) -> tuple[Sequence[JobSet], Load]:
        """Return the sets of which something may be raced, and what races hold and have cost; see RaceLink."""
        answer = await self._find(0, after_jobs)
        load = _load(answer.load)
        sets = [_set(each) for each in answer.sets]
        while answer.next_after_set:
            answer = await self._find(answer.next_after_set, after_jobs)
            sets += (_set(each) for each in answer.sets)
        return sets, load

    async def _find(self, after_set: int, after_jobs: Mapping[int, int]) -> race_service_pb2.FindStragglersResponse:
        next_marks = sorted(set_id for set_id in after_jobs if set_id > after_set)[:_MOST_MARKS]
        request = race_service_pb2.FindStragglersRequest(
            after_set=after_set,
            free_slots_wanted=self._free_slots_wanted,
            after_jobs={set_id: after_jobs[set_id] for set_id in next_marks},
        )
        answer: race_service_pb2.FindStragglersResponse = await self._races.FindStragglers(request)
        return answer

    async def start_copies(self, copies: Sequence[NewRival]) -> Sequence[StartedCopy]:
        """Have copies made of different jobs, at most 1,000; returns what came of each, in order."""
        request = race_service_pb2.StartCopiesRequest(
            request_id=uuid.uuid4().hex,
            turn=self._turn,
            copies=[race_service_pb2.NewRaceCopy(job_id=copy.job_id, reason=copy.reason) for copy in copies],
        )
        answer = await self._races.StartCopies(request)
        return [StartedCopy(each.job_id, each.copy_id, each.refusal) for each in answer.copies]


def _load(message: race_service_pb2.RaceLoad) -> Load:
    return Load(
        {_owner(each.account): each.copies for each in message.owners},
        {_owner(each.account): each.lost_core_s for each in message.owners},
    )


def _set(message: race_service_pb2.RaceSet) -> JobSet:
    return JobSet(
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


def _runner(message: race_service_pb2.Straggler) -> Runner:
    return Runner(
        message.job_id,
        _owner(message.account),
        message.running_s,
        message.cpus,
        message.copies_made,
        message.copy_waits,
        {each.site: each.free_slots for each in message.sites},
    )


def _owner(account: matcher_service_pb2.Account) -> Owner:
    return Owner(account.vo, account.group, account.owner)
