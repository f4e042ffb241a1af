"""The agents' gRPC link to the server; converts messages to and from values."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

import grpc.aio

from pilotage.clock import now
from pilotage.resources.tree import QueueId
from pilotage.rpc.wire import queue_from_wire, queue_to_wire, section_from_wire, time_from_wire, time_to_wire
from pilotage.v1 import (
    agent_service_pb2,
    agent_service_pb2_grpc,
    matcher_service_pb2,
    matcher_service_pb2_grpc,
    node_service_pb2,
    node_service_pb2_grpc,
    pilot_service_pb2,
    pilot_service_pb2_grpc,
    pool_service_pb2,
    pool_service_pb2_grpc,
    resource_service_pb2,
    resource_service_pb2_grpc,
    values_pb2,
)
from pilotage.values.demand import DemandAnswer
from pilotage.values.leadership import (
    EVERY_SERVED_QUEUE,
    NO_STATUS,
    AgentStatus,
    Leadership,
    LeadershipAnswer,
    ServedQueues,
)
from pilotage.values.pilots import GlideinReport
from pilotage.values.wire.demand import demand_answer_from_wire
from pilotage.values.wire.leadership import (
    agent_status_to_wire,
    leadership_answer_from_wire,
    leadership_to_wire,
)
from pilotage.values.wire.pilots import glidein_report_to_wire
from pilotage_agents.drain_controller.planning import ONLY_MULTICORE, Farm, FarmDemand, FarmNode, NodeName, NodePart
from pilotage_agents.pool_cleanup import PoolOutline
from pilotage_agents.runtime.link import RegisteredPilot, TreeQueue
from pilotage_agents.site_director.ports import GlideinReportAnswer, PoolsOfQueues


class AgentServerLink:
    """Calls to a server over gRPC; implements the links of all agents.

    Calls that only the leader may make carry its leadership; the server rejects them from other replicas. `serves` are
    the queues that the agent acts on.
    """

    def __init__(
        self,
        channel: grpc.aio.Channel,
        leadership: Leadership | None = None,
        serves: ServedQueues = EVERY_SERVED_QUEUE,
    ) -> None:
        self._serves = serves
        self._leadership = None if leadership is None else leadership_to_wire(leadership)
        self._agents = agent_service_pb2_grpc.AgentServiceStub(channel)
        self._matcher = matcher_service_pb2_grpc.MatcherServiceStub(channel)
        self._nodes = node_service_pb2_grpc.NodeServiceStub(channel)
        self._pilots = pilot_service_pb2_grpc.PilotServiceStub(channel)
        self._pools = pool_service_pb2_grpc.PoolServiceStub(channel)
        self._resources = resource_service_pb2_grpc.ResourceServiceStub(channel)

    async def take_leadership(
        self, leadership: Leadership, for_s: float, host: str, status: AgentStatus = NO_STATUS
    ) -> LeadershipAnswer:
        """Request or renew the leadership for `for_s` seconds from now, and report the status of the replica."""
        request = agent_service_pb2.TakeTurnRequest(
            turn=leadership_to_wire(leadership),
            for_s=for_s,
            place=host,
            queues=self._serves.patterns,
            ce_types=self._serves.ce_types,
            status=agent_status_to_wire(status),
            sent=time_to_wire(now()),
        )
        answer = await self._agents.TakeTurn(request)
        return leadership_answer_from_wire(answer)

    async def release_leadership(self, leadership: Leadership) -> None:
        """Let another replica lead at once."""
        await self._agents.GiveBackTurn(agent_service_pb2.GiveBackTurnRequest(turn=leadership_to_wire(leadership)))

    async def queues(self) -> tuple[TreeQueue, ...]:
        """Return all queues of the tree, in its order."""
        answer = await self._resources.ListQueues(resource_service_pb2.ListQueuesRequest())
        return tuple(
            TreeQueue(queue_from_wire(each.queue), each.enabled, section_from_wire(each.parameters))
            for each in answer.queues
        )

    async def pools_of(self, queues: Sequence[QueueId]) -> PoolsOfQueues:
        """Return the pools that each queue can run, in one call."""
        request = matcher_service_pb2.GetSubmitPoolsForQueueRequest(queues=_to_wire(queues))
        answer = await self._matcher.GetSubmitPoolsForQueue(request)
        return PoolsOfQueues(
            answer.tree_version, tuple(tuple(each.pool_ids) if each.known else None for each in answer.queues)
        )

    async def demand(self, queues: Sequence[QueueId], queue_set: Sequence[str] = ()) -> DemandAnswer:
        """Return the work that waits for the queues and the supply that they have, and that of a set of queues."""
        request = pool_service_pb2.GetDemandRequest(queues=_to_wire(queues), queue_set=queue_set)
        return demand_answer_from_wire(await self._pools.GetDemand(request))

    async def register_pilots(
        self, queue: QueueId | None, count: int, vos: Sequence[str], lifetime_s: float, queue_set: Sequence[str] = ()
    ) -> tuple[RegisteredPilot, ...]:
        """Return stamps and tokens for new pilots of `queue`, None = of one of the queues of `queue_set`.

        `lifetime_s` 0 = the server's default.
        """
        request = pilot_service_pb2.RegisterPilotsRequest(
            request_id=_request_id(),
            queue=queue_to_wire(queue) if queue is not None else None,
            queue_set=queue_set,
            count=count,
            vos=vos,
            lifetime_s=lifetime_s,
            turn=self._leadership,
        )
        answer = await self._pilots.RegisterPilots(request)
        return tuple(RegisteredPilot(each.stamp, each.token) for each in answer.pilots)

    async def renew_credentials(self, stamps: Sequence[str], lifetime_s: float) -> tuple[RegisteredPilot, ...]:
        """Return new tokens for at most 1,000 pilots; ended and unknown pilots get none."""
        request = pilot_service_pb2.RenewCredentialsRequest(stamps=stamps, lifetime_s=lifetime_s)
        answer = await self._pilots.RenewCredentials(request)
        return tuple(RegisteredPilot(each.stamp, each.token) for each in answer.pilots)

    async def report_glideins(self, reports: Sequence[GlideinReport]) -> GlideinReportAnswer:
        """Report the states of glideins."""
        request = pilot_service_pb2.ReportGlideinsRequest(
            request_id=_request_id(), reports=map(glidein_report_to_wire, reports)
        )
        answer = await self._pilots.ReportGlideins(request)
        return GlideinReportAnswer(tuple(answer.unknown_stamps), tuple(answer.worked_stamps), tuple(answer.logs_wanted))

    async def put_pilot_logs(self, logs: Mapping[str, str]) -> None:
        """Store the ends of the outputs of at most 100 pilots, by stamp."""
        messages = [pilot_service_pb2.PilotLog(stamp=stamp, text=text) for stamp, text in logs.items()]
        await self._pilots.PutPilotLogs(pilot_service_pb2.PutPilotLogsRequest(logs=messages))

    async def farm(self, queues: Sequence[QueueId]) -> Farm:
        """Return the nodes of these queues (empty = of all) and the jobs that wait for them."""
        request = node_service_pb2.GetNodeUseRequest(queues=_to_wire(queues), attribute=ONLY_MULTICORE)
        answer = await self._nodes.GetNodeUse(request)
        waiting = (FarmDemand(each.cpus, each.jobs, frozenset(each.queue_indexes)) for each in answer.demands)
        own_agent = self._leadership.agent if self._leadership is not None else ""
        return Farm(tuple(_node(each, own_agent) for each in answer.nodes), tuple(waiting))

    async def set_only_multicore(self, nodes: Sequence[NodeName], value: bool) -> None:
        """Set OnlyMulticore on all these nodes, or on none if the call fails."""
        request = node_service_pb2.SetNodeAttributesRequest(
            request_id=_request_id(),
            nodes=[node_service_pb2.NodeId(site=node.site, node=node.node) for node in nodes],
            set={ONLY_MULTICORE: str(value)},
            turn=self._leadership,
        )
        await self._nodes.SetNodeAttributes(request)

    async def refresh_pools(self, older_than_s: float) -> tuple[str, ...]:
        """Refresh mappings that are older than `older_than_s`; returns the ids of their pools."""
        request = pool_service_pb2.RefreshPoolsRequest(request_id=_request_id(), older_than_s=older_than_s)
        return tuple((await self._pools.RefreshPools(request)).refreshed)

    async def clean_pools(self, grace_s: float) -> tuple[str, ...]:
        """Remove pools that had no live job for `grace_s`; returns their ids."""
        request = pool_service_pb2.CleanPoolsRequest(request_id=_request_id(), grace_s=grace_s)
        return tuple((await self._pools.CleanPools(request)).removed)

    async def pools(self) -> tuple[PoolOutline, ...]:
        """Return all pools."""
        answer = await self._pools.ListPools(pool_service_pb2.ListPoolsRequest())
        return tuple(
            PoolOutline(
                each.id,
                time_from_wire(each.mapped) if each.HasField("mapped") else None,
                each.waiting + each.running,
            )
            for each in answer.pools
        )


def _to_wire(queues: Sequence[QueueId]) -> list[values_pb2.QueueId]:
    return [queue_to_wire(queue) for queue in queues]


def _node(message: node_service_pb2.NodeUse, own_agent: str) -> FarmNode:
    return FarmNode(
        NodeName(message.node.site, message.node.node),
        tuple(map(_part, message.parts)),
        is_settable=message.settable,
        only_multicore=message.holds,
        set_by="" if message.told_by == own_agent else message.told_by,
    )


def _part(message: node_service_pb2.PartUse) -> NodePart:
    queue = message.queue_index if message.HasField("queue_index") else None
    return NodePart(message.free_cpus, {count.cpus: count.jobs for count in message.running}, queue)


def _request_id() -> str:
    return uuid.uuid4().hex
