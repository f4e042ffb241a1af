"""ResourceService and PoolService: the tree, queues, bans, circuit breakers, pools and demand."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from heapq import nsmallest
from typing import Any

from pilotage.resources.tree import QueueId
from pilotage.rpc.wire import queue_to_wire, section_from_wire, section_to_wire, time_to_wire
from pilotage.v1 import pool_service_pb2, pool_service_pb2_grpc, resource_service_pb2, resource_service_pb2_grpc
from pilotage.values.wire.demand import demand_answer_to_wire
from pilotage.values.wire.fields import Fields, reason_from_wire
from pilotage_server.core.identity import check_queue_set, check_queues
from pilotage_server.core.queueing.tree_plan import TreeEffect, TreePlan
from pilotage_server.core.resources.bans import BanRecord, TreeNode
from pilotage_server.core.resources.downtimes import Downtime
from pilotage_server.operations.cooperative import cooperative
from pilotage_server.operations.health import hold_place, list_health, open_place
from pilotage_server.operations.matching.demand import get_demand
from pilotage_server.operations.put_tree import (
    NO_JOBS,
    AffectedJobs,
    TreeDifference,
    compare_tree,
    first_affected_jobs,
    get_tree,
    put_tree,
    try_tree,
)
from pilotage_server.operations.resources.bans import BanOrder, ban, list_bans, unban
from pilotage_server.operations.resources.downtimes import cancel_downtime, list_downtimes, plan_downtime
from pilotage_server.operations.resources.pools import (
    PoolView,
    clean_pools,
    list_pools,
    plan_cleaning,
    plan_refresh,
    refresh_pools,
)
from pilotage_server.operations.resources.queues import NodeQuery, QueueView, get_eligible_nodes, list_queues
from pilotage_server.operations.resources.tree import NewTree, parse_tree
from pilotage_server.operations.server_state import ServerState
from pilotage_server.rpc.framework.calls import caller
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.rpc.framework.wire_values import queue_set_from_wire, queues_from_wire
from pilotage_server.rpc.health import closed_by_from_wire, location_from_wire, throttle_to_wire
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.resources import TreeText

MAX_CHANGES = 1000
"""Limit of the pools that a response lists with their changes."""

MAX_QUEUES_NAMED = 5000
"""Limit of the queues in these lists: 10,000 pools times 5,000 queues would exceed any message."""


def tree_effect_to_wire(effect: TreeEffect, affected: AffectedJobs = NO_JOBS) -> resource_service_pb2.PutTreeResponse:
    """Return the effect of a tree."""
    budget = MAX_QUEUES_NAMED
    changes: list[resource_service_pb2.PoolChange] = []
    for change in effect.changes[:MAX_CHANGES]:
        message = resource_service_pb2.PoolChange(
            pool_id=change.pool_id,
            gained_count=len(change.gained),
            lost_count=len(change.lost),
            vo=change.vo,
            waiting=change.waiting,
        )
        section_to_wire(change.section, message.requirements)
        message.gained.extend(map(queue_to_wire, _first(budget, change.gained)))
        message.lost.extend(map(queue_to_wire, _first(budget - len(message.gained), change.lost)))
        budget -= len(message.gained) + len(message.lost)
        changes.append(message)
    return resource_service_pb2.PutTreeResponse(
        version=effect.version,
        warnings=[str(warning) for warning in effect.warnings],
        changes=changes,
        pools_changed=len(effect.changes),
        jobs_runnable=effect.jobs_runnable,
        jobs_stuck=effect.jobs_stuck,
        pools_rekeyed=effect.pools_rekeyed,
        first_runnable=affected.runnable,
        first_stuck=affected.stuck,
    )


def _first(count: int, queues: Iterable[QueueId]) -> list[QueueId]:
    return nsmallest(count, queues) if count else []


def tree_text_to_wire(tree: TreeText) -> resource_service_pb2.GetTreeResponse:
    """Return the active tree."""
    return resource_service_pb2.GetTreeResponse(
        version=tree.version,
        text=tree.text,
        format=tree.format,
        created=time_to_wire(tree.created),
        created_by=tree.created_by,
    )


def queue_view_to_wire(view: QueueView) -> resource_service_pb2.QueueInfo:
    """Return the message of a queue with its effective values."""
    message = resource_service_pb2.QueueInfo(
        queue=queue_to_wire(view.id),
        origins=view.origins,
        enabled=view.enabled,
        banned=view.banned,
        pools=view.pools,
        waiting=view.waiting,
        matched=view.matched,
        running=view.running,
        pilots=view.pilots,
        pilot_problem=view.pilot_problem,
        health=view.health,
        downtime=view.downtime,
    )
    section_to_wire(view.parameters, message.parameters)
    return message


def eligible_to_wire(
    sites: Mapping[str, Mapping[str, Sequence[str]]],
) -> resource_service_pb2.GetEligibleNodesResponse:
    """Return the tree of eligible nodes."""
    return resource_service_pb2.GetEligibleNodesResponse(
        sites=[
            resource_service_pb2.EligibleSite(
                name=site,
                ces=[resource_service_pb2.EligibleCe(name=ce, queues=queues) for ce, queues in ces.items()],
            )
            for site, ces in sites.items()
        ]
    )


def ban_from_wire(message: resource_service_pb2.BanRequest) -> BanOrder:
    """Return an order to ban; raises InvalidInputError with all faults of the request."""
    fields = Fields(message)
    _check_node(fields, message)
    order = BanOrder(_node(message), fields("reason", reason_from_wire), fields.time("until"))
    fields.done()
    return order


def unban_from_wire(message: resource_service_pb2.UnbanRequest) -> TreeNode:
    """Return the node to unban; raises InvalidInputError with all faults of the request."""
    fields = Fields(message)
    _check_node(fields, message)
    fields.done()
    return _node(message)


def downtime_from_wire(message: resource_service_pb2.Downtime) -> Downtime:
    """Return a downtime that an operator plans; raises InvalidInputError with all faults."""
    fields = Fields(message)
    _check_node(fields, message)
    start, end = fields.time("start"), fields.time("end")
    fields.faults.unless(start is not None, "start", "is missing")
    fields.faults.unless(end is not None, "end", "is missing")
    reason, drain = fields("reason", reason_from_wire), fields.length("drain_s")
    fields.done()
    assert start is not None, "a downtime without faults has a start"
    assert end is not None, "a downtime without faults has an end"
    return Downtime(_node(message), reason, start, end, drain, by="")


def downtime_to_wire(downtime: Downtime) -> resource_service_pb2.Downtime:
    """Return the message of a downtime."""
    return resource_service_pb2.Downtime(
        id=downtime.id,
        site=downtime.node.site,
        ce=downtime.node.ce or "",
        queue=downtime.node.queue or "",
        reason=downtime.reason,
        start=time_to_wire(downtime.start),
        end=time_to_wire(downtime.end),
        drain_s=downtime.drain.total_seconds(),
        by=downtime.by,
    )


_BanMessage = resource_service_pb2.BanRequest | resource_service_pb2.UnbanRequest | resource_service_pb2.Downtime


def _check_node(fields: Fields, message: _BanMessage) -> None:
    for name in ("site", "ce", "queue"):
        fields.text(name)
    fields.faults.unless(bool(message.site), "site", "is missing")
    fields.faults.unless(bool(message.ce) or not message.queue, "ce", "is missing, but a queue is named")


def _node(message: _BanMessage) -> TreeNode:
    return TreeNode(message.site, message.ce or None, message.queue or None)


def ban_to_wire(record: BanRecord) -> resource_service_pb2.BanInfo:
    """Return the message of a ban."""
    return resource_service_pb2.BanInfo(
        id=record.id,
        site=record.ban.site,
        ce=record.ban.ce or "",
        queue=record.ban.queue or "",
        reason=record.ban.reason,
        until=time_to_wire(record.ban.until),
        by=record.by,
        since=time_to_wire(record.since),
    )


def pool_to_wire(pool: PoolView) -> pool_service_pb2.Pool:
    """Return the message of a pool."""
    message = pool_service_pb2.Pool(
        id=pool.id,
        vo=pool.vo,
        waiting=pool.waiting,
        running=pool.running,
        queues=[queue_to_wire(queue) for queue in pool.queues],
        mapped=time_to_wire(pool.mapped),
        tree_version=pool.tree_version,
        created=time_to_wire(pool.created),
    )
    section_to_wire(pool.requirements, message.requirements)
    return message


class ResourceServicer(resource_service_pb2_grpc.ResourceServiceServicer):
    """Stores the resource tree and shows its queues, bans and circuit breakers."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def PutTree(
        self, request: resource_service_pb2.PutTreeRequest, context: Any
    ) -> resource_service_pb2.PutTreeResponse:
        identity = caller()
        new = await asyncio.to_thread(parse_tree, request.text, request.format, cooperative)
        plan, difference, planned = await self._transactions.read(partial(_plan_tree, new))
        if request.validate_only:
            return planned

        def put(transaction: Transaction, state: ServerState) -> resource_service_pb2.PutTreeResponse:
            effect = put_tree(transaction, state, identity, new, plan, difference)
            return planned if effect is plan.effect else tree_effect_to_wire(effect)

        return await self._transactions.once(identity, "PutTree", request, resource_service_pb2.PutTreeResponse, put)

    async def GetTree(
        self, request: resource_service_pb2.GetTreeRequest, context: Any
    ) -> resource_service_pb2.GetTreeResponse:
        return await self._transactions.read(lambda transaction, _: tree_text_to_wire(get_tree(transaction)))

    async def ListQueues(
        self, request: resource_service_pb2.ListQueuesRequest, context: Any
    ) -> resource_service_pb2.ListQueuesResponse:
        identity = caller()
        fields = Fields(request)
        vo, site = fields.text("vo"), fields.text("site")
        fields.done()

        def show(transaction: Any, state: Any) -> resource_service_pb2.ListQueuesResponse:
            queues = list_queues(transaction, state, identity, vo, site)
            return resource_service_pb2.ListQueuesResponse(queues=[queue_view_to_wire(queue) for queue in queues])

        return await self._transactions.read(show)

    async def GetEligibleNodes(
        self, request: resource_service_pb2.GetEligibleNodesRequest, context: Any
    ) -> resource_service_pb2.GetEligibleNodesResponse:
        identity = caller()
        fields = Fields(request)
        ce_select = fields("ce_select", section_from_wire)
        queue_select = fields("queue_select", section_from_wire)
        vo, level = fields.text("vo"), fields.text("level")
        fields.done()
        query = NodeQuery(vo, level, ce_select, queue_select)
        return await self._transactions.read(
            lambda transaction, state: eligible_to_wire(get_eligible_nodes(transaction, state, identity, query))
        )

    async def Ban(self, request: resource_service_pb2.BanRequest, context: Any) -> resource_service_pb2.BanResponse:
        identity, order = caller(), ban_from_wire(request)

        def put(transaction: Any, state: Any) -> resource_service_pb2.BanResponse:
            return resource_service_pb2.BanResponse(ban=ban_to_wire(ban(transaction, state, identity, order)))

        return await self._transactions.once(identity, "Ban", request, resource_service_pb2.BanResponse, put)

    async def Unban(
        self, request: resource_service_pb2.UnbanRequest, context: Any
    ) -> resource_service_pb2.UnbanResponse:
        identity, node = caller(), unban_from_wire(request)

        def lift(transaction: Any, state: Any) -> resource_service_pb2.UnbanResponse:
            ended = unban(transaction, state, identity, node)
            return resource_service_pb2.UnbanResponse(bans=[ban_to_wire(record) for record in ended])

        return await self._transactions.once(identity, "Unban", request, resource_service_pb2.UnbanResponse, lift)

    async def ListBans(
        self, request: resource_service_pb2.ListBansRequest, context: Any
    ) -> resource_service_pb2.ListBansResponse:
        records = await self._transactions.read(lambda transaction, _: list_bans(transaction))
        return resource_service_pb2.ListBansResponse(bans=[ban_to_wire(record) for record in records])

    async def PlanDowntime(
        self, request: resource_service_pb2.PlanDowntimeRequest, context: Any
    ) -> resource_service_pb2.PlanDowntimeResponse:
        identity, fields = caller(), Fields(request)
        wanted = fields("downtime", downtime_from_wire)
        fields.done()

        def plan(transaction: Transaction, state: ServerState) -> resource_service_pb2.PlanDowntimeResponse:
            planned = plan_downtime(transaction, state, identity, wanted)
            return resource_service_pb2.PlanDowntimeResponse(downtime=downtime_to_wire(planned))

        return await self._transactions.once(
            identity, "PlanDowntime", request, resource_service_pb2.PlanDowntimeResponse, plan
        )

    async def CancelDowntime(
        self, request: resource_service_pb2.CancelDowntimeRequest, context: Any
    ) -> resource_service_pb2.CancelDowntimeResponse:
        identity, downtime_id = caller(), request.id

        def cancel(transaction: Transaction, state: ServerState) -> resource_service_pb2.CancelDowntimeResponse:
            cancelled = cancel_downtime(transaction, state, identity, downtime_id)
            return resource_service_pb2.CancelDowntimeResponse(downtime=downtime_to_wire(cancelled))

        return await self._transactions.once(
            identity, "CancelDowntime", request, resource_service_pb2.CancelDowntimeResponse, cancel
        )

    async def ListDowntimes(
        self, request: resource_service_pb2.ListDowntimesRequest, context: Any
    ) -> resource_service_pb2.ListDowntimesResponse:
        found = await self._transactions.read(lambda transaction, _: list_downtimes(transaction))
        return resource_service_pb2.ListDowntimesResponse(downtimes=map(downtime_to_wire, found))

    async def ListThrottles(
        self, request: resource_service_pb2.ListThrottlesRequest, context: Any
    ) -> resource_service_pb2.ListThrottlesResponse:
        throttles = await self._transactions.read(lambda transaction, _: list_health(transaction))
        return resource_service_pb2.ListThrottlesResponse(throttles=[throttle_to_wire(each) for each in throttles])

    async def HoldPlace(
        self, request: resource_service_pb2.HoldPlaceRequest, context: Any
    ) -> resource_service_pb2.HoldPlaceResponse:
        identity = caller()
        order = closed_by_from_wire(request, identity.owner)

        def hold(transaction: Transaction, state: ServerState) -> resource_service_pb2.HoldPlaceResponse:
            held = hold_place(transaction, state, identity, order)
            return resource_service_pb2.HoldPlaceResponse(
                throttle=throttle_to_wire(held.throttle), warnings=held.warnings
            )

        return await self._transactions.once(
            identity, "HoldPlace", request, resource_service_pb2.HoldPlaceResponse, hold
        )

    async def OpenPlace(
        self, request: resource_service_pb2.OpenPlaceRequest, context: Any
    ) -> resource_service_pb2.OpenPlaceResponse:
        identity, fields = caller(), Fields(request)
        location = fields("place", location_from_wire)
        fields.done()

        def open_breaker(transaction: Transaction, state: ServerState) -> resource_service_pb2.OpenPlaceResponse:
            opened = open_place(transaction, state, identity, location)
            return resource_service_pb2.OpenPlaceResponse(throttle=throttle_to_wire(opened))

        return await self._transactions.once(
            identity, "OpenPlace", request, resource_service_pb2.OpenPlaceResponse, open_breaker
        )


def _plan_tree(
    new: NewTree, transaction: Transaction, state: ServerState
) -> tuple[TreePlan, TreeDifference, resource_service_pb2.PutTreeResponse]:
    """Return the plan of a tree, its difference and its answer, made before the transaction: they may take long."""
    plan = try_tree(transaction, state, new)
    affected = first_affected_jobs(transaction, plan.effect)
    return plan, compare_tree(get_tree(transaction), new), tree_effect_to_wire(plan.effect, affected)


class PoolServicer(pool_service_pb2_grpc.PoolServiceServicer):
    """Shows pools and keeps their mappings up to date."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def ListPools(
        self, request: pool_service_pb2.ListPoolsRequest, context: Any
    ) -> pool_service_pb2.ListPoolsResponse:
        identity = caller()
        fields = Fields(request)
        vo = fields.text("vo")
        fields.done()

        def show(transaction: Any, state: Any) -> pool_service_pb2.ListPoolsResponse:
            pools = list_pools(transaction, state, identity, vo)
            return pool_service_pb2.ListPoolsResponse(pools=[pool_to_wire(pool) for pool in pools])

        return await self._transactions.read(show)

    async def RefreshPools(
        self, request: pool_service_pb2.RefreshPoolsRequest, context: Any
    ) -> pool_service_pb2.RefreshPoolsResponse:
        fields = Fields(request)
        older_than = fields.length("older_than_s")
        fields.done()

        planned = await self._transactions.read(lambda transaction, state: plan_refresh(transaction, state, older_than))

        def refresh(transaction: Any, state: Any) -> pool_service_pb2.RefreshPoolsResponse:
            return pool_service_pb2.RefreshPoolsResponse(refreshed=refresh_pools(transaction, state, planned))

        return await self._transactions.once(
            caller(), "RefreshPools", request, pool_service_pb2.RefreshPoolsResponse, refresh
        )

    async def CleanPools(
        self, request: pool_service_pb2.CleanPoolsRequest, context: Any
    ) -> pool_service_pb2.CleanPoolsResponse:
        fields = Fields(request)
        grace = fields.length("grace_s")
        fields.done()

        planned = await self._transactions.read(lambda transaction, _: plan_cleaning(transaction, grace))

        def clean(transaction: Any, state: Any) -> pool_service_pb2.CleanPoolsResponse:
            return pool_service_pb2.CleanPoolsResponse(removed=clean_pools(transaction, state, grace, planned))

        return await self._transactions.once(
            caller(), "CleanPools", request, pool_service_pb2.CleanPoolsResponse, clean
        )

    async def GetDemand(
        self, request: pool_service_pb2.GetDemandRequest, context: Any
    ) -> pool_service_pb2.GetDemandResponse:
        identity, queues = caller(), queues_from_wire(request.queues)
        queue_set = queue_set_from_wire(request.queue_set)
        check_queues(identity, queues)
        check_queue_set(identity, queue_set)
        return await self._transactions.read(
            lambda transaction, state: demand_answer_to_wire(
                get_demand(transaction, state, queues, identity.bounds, queue_set)
            )
        )
