"""The agents' link to a real server: the only place here that knows the wire."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from datetime import timedelta

import grpc.aio

from pilotage.resource_tree import QueueId
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
from pilotage.wire import queue_from_wire, queue_to_wire, section_from_wire, time_from_wire
from pilotage_agents.core.draining import ONLY_MULTICORE, Farm, Node, NodeName, Part, Waiting
from pilotage_agents.core.empty_pilots import EmptyReturns
from pilotage_agents.core.pilot_shape import Shape
from pilotage_agents.core.provisioning import Demand, IdleSlots, Supply
from pilotage_agents.core.serving import QueueSupply
from pilotage_agents.link import (
    DemandAnswer,
    GlideinReport,
    GlideinsHeard,
    NewPilot,
    PoolOutline,
    PoolsOfQueues,
    TreeQueue,
    Turn,
    TurnAnswer,
)


class ServerLink:
    """Calls to a server over gRPC; fulfils the links of all agents.

    What only the copy of an agent may change that acts names its `turn`, and is refused out of turn.
    """

    def __init__(self, channel: grpc.aio.Channel, turn: Turn | None = None) -> None:
        self._turn = None if turn is None else _turn_to_wire(turn)
        self._agents = agent_service_pb2_grpc.AgentServiceStub(channel)
        self._matcher = matcher_service_pb2_grpc.MatcherServiceStub(channel)
        self._nodes = node_service_pb2_grpc.NodeServiceStub(channel)
        self._pilots = pilot_service_pb2_grpc.PilotServiceStub(channel)
        self._pools = pool_service_pb2_grpc.PoolServiceStub(channel)
        self._resources = resource_service_pb2_grpc.ResourceServiceStub(channel)

    async def take_turn(self, turn: Turn, for_s: float, place: str) -> TurnAnswer:
        """Ask for the turn for so long from now, or to keep it; `place` is where the copy runs, for people."""
        request = agent_service_pb2.TakeTurnRequest(turn=_turn_to_wire(turn), for_s=for_s, place=place)
        answer = await self._agents.TakeTurn(request)
        return TurnAnswer(answer.taken, answer.place)

    async def give_back_turn(self, turn: Turn) -> None:
        """Let another copy have the turn at once."""
        await self._agents.GiveBackTurn(agent_service_pb2.GiveBackTurnRequest(turn=_turn_to_wire(turn)))

    async def queues(self) -> tuple[TreeQueue, ...]:
        """Return all queues of the tree, in its order."""
        answer = await self._resources.ListQueues(resource_service_pb2.ListQueuesRequest())
        return tuple(
            TreeQueue(queue_from_wire(each.queue), each.enabled, section_from_wire(each.parameters))
            for each in answer.queues
        )

    async def pools_of(self, queues: Sequence[QueueId]) -> PoolsOfQueues:
        """Return the pools that each queue can run, asked in one call."""
        request = matcher_service_pb2.GetSubmitPoolsForQueueRequest(queues=_to_wire(queues))
        answer = await self._matcher.GetSubmitPoolsForQueue(request)
        return PoolsOfQueues(
            answer.tree_version, tuple(tuple(each.pool_ids) if each.known else None for each in answer.queues)
        )

    async def demand(self, queues: Sequence[QueueId]) -> DemandAnswer:
        """Return the work that waits for the queues and what is there to take it."""
        answer = await self._pools.GetDemand(pool_service_pb2.GetDemandRequest(queues=_to_wire(queues)))
        return DemandAnswer(
            tuple(_demand(each) for each in answer.demands), tuple(_supply(each) for each in answer.supplies)
        )

    async def register_pilots(
        self, queue: QueueId, count: int, vos: Sequence[str], lifetime_s: float
    ) -> tuple[NewPilot, ...]:
        """Return stamps and tokens for new pilots of `queue`; `lifetime_s` 0 = the server's default."""
        request = pilot_service_pb2.RegisterPilotsRequest(
            request_id=_request_id(),
            queue=queue_to_wire(queue),
            count=count,
            vos=vos,
            lifetime_s=lifetime_s,
            turn=self._turn,
        )
        answer = await self._pilots.RegisterPilots(request)
        return tuple(NewPilot(each.stamp, each.token) for each in answer.pilots)

    async def renew_credentials(self, stamps: Sequence[str], lifetime_s: float) -> tuple[NewPilot, ...]:
        """Return new tokens for pilots, none for those that have ended or are not known; at most 1,000 at once."""
        request = pilot_service_pb2.RenewCredentialsRequest(stamps=stamps, lifetime_s=lifetime_s)
        answer = await self._pilots.RenewCredentials(request)
        return tuple(NewPilot(each.stamp, each.token) for each in answer.pilots)

    async def report_glideins(self, reports: Sequence[GlideinReport]) -> GlideinsHeard:
        """Say what became of glideins."""
        request = pilot_service_pb2.ReportGlideinsRequest(
            request_id=_request_id(), reports=[_report(each) for each in reports]
        )
        answer = await self._pilots.ReportGlideins(request)
        return GlideinsHeard(tuple(answer.unknown_stamps), tuple(answer.worked_stamps))

    async def farm(self, queues: Sequence[QueueId]) -> Farm:
        """Return the nodes of these queues (none = of all) and what waits for them."""
        request = node_service_pb2.GetNodeUseRequest(queues=_to_wire(queues), attribute=ONLY_MULTICORE)
        answer = await self._nodes.GetNodeUse(request)
        waiting = (Waiting(each.cpus, each.jobs, frozenset(each.queue_indexes)) for each in answer.demands)
        own_agent = self._turn.agent if self._turn is not None else ""
        return Farm(tuple(_node(each, own_agent) for each in answer.nodes), tuple(waiting))

    async def set_only_multicore(self, nodes: Sequence[NodeName], value: bool) -> None:
        """Set OnlyMulticore on all these nodes, or on none of them."""
        request = node_service_pb2.SetNodeAttributesRequest(
            request_id=_request_id(),
            nodes=[node_service_pb2.NodeId(site=node.site, node=node.node) for node in nodes],
            set={ONLY_MULTICORE: str(value)},
            turn=self._turn,
        )
        await self._nodes.SetNodeAttributes(request)

    async def refresh_pools(self, older_than_s: float) -> tuple[str, ...]:
        """Have mappings made anew that are older than `older_than_s`; returns the ids of their pools."""
        request = pool_service_pb2.RefreshPoolsRequest(request_id=_request_id(), older_than_s=older_than_s)
        return tuple((await self._pools.RefreshPools(request)).refreshed)

    async def clean_pools(self, grace_s: float) -> tuple[str, ...]:
        """Have pools removed that had no live job for `grace_s`; returns their ids."""
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


def _turn_to_wire(turn: Turn) -> values_pb2.Turn:
    return values_pb2.Turn(agent=turn.agent, holder=turn.holder)


def _to_wire(queues: Sequence[QueueId]) -> list[values_pb2.QueueId]:
    return [queue_to_wire(queue) for queue in queues]


def _demand(message: pool_service_pb2.Demand) -> Demand:
    queues = tuple(message.queue_indexes)
    return Demand(message.pool_id, message.vo, message.waiting, _shape(message.request), queues)


def _shape(amounts: values_pb2.Amounts) -> Shape:
    return Shape(amounts.cpus, amounts.memory_mib, amounts.disk_mib, amounts.gpus)


def _supply(message: pool_service_pb2.QueueSupply) -> QueueSupply:
    idle = tuple(IdleSlots(_shape(each.free), each.count) for each in message.idle)
    empty = EmptyReturns(
        message.empty_returns.pilots,
        message.empty_returns.sendings,
        timedelta(seconds=message.empty_returns.last_s),
    )
    supply = Supply(message.pilots_waiting, message.pilots_running, idle, empty)
    return QueueSupply(message.known, message.banned, supply, message.throttled, message.held)


def _node(message: node_service_pb2.NodeUse, own_agent: str) -> Node:
    return Node(
        NodeName(message.node.site, message.node.node),
        tuple(map(_part, message.parts)),
        can_be_told=message.settable,
        only_multicore=message.holds,
        told_by="" if message.told_by == own_agent else message.told_by,
    )


def _part(message: node_service_pb2.PartUse) -> Part:
    queue = message.queue_index if message.HasField("queue_index") else None
    return Part(message.free_cpus, _widths(message.running), queue)


def _widths(counts: Iterable[node_service_pb2.WidthCount]) -> dict[int, int]:
    return {count.cpus: count.jobs for count in counts}


def _report(report: GlideinReport) -> pilot_service_pb2.GlideinReport:
    ended, submitted = pilot_service_pb2.PILOT_STATE_ENDED, pilot_service_pb2.PILOT_STATE_SUBMITTED
    return pilot_service_pb2.GlideinReport(
        stamp=report.stamp,
        glidein_id=report.glidein_id,
        state=ended if report.ended else submitted,
        reason=report.reason,
        called_back=report.called_back,
    )


def _request_id() -> str:
    return uuid.uuid4().hex
