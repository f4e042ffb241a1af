"""ResourceService: the resource tree and its bans."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from pilotage.v1 import resource_service_pb2, resource_service_pb2_grpc
from pilotage.wire import section_from_wire
from pilotage_server.core.tree_plan import TreePlan
from pilotage_server.operations.bans import ban, list_bans, unban
from pilotage_server.operations.health import hold_place, list_health, open_place
from pilotage_server.operations.resources import NodeQuery, get_eligible_nodes, list_queues
from pilotage_server.operations.tree_loading import NewTree, parse_tree
from pilotage_server.operations.trees import get_tree, put_tree, try_tree
from pilotage_server.operations.unhurried import left_lying, unhurried
from pilotage_server.operations.world import World
from pilotage_server.rpc.calls import caller
from pilotage_server.rpc.convert_health import closed_by_from_wire, place_from_wire, throttle_to_wire
from pilotage_server.rpc.convert_resources import (
    ban_from_wire,
    ban_to_wire,
    eligible_to_wire,
    queue_view_to_wire,
    tree_effect_to_wire,
    tree_text_to_wire,
    unban_from_wire,
)
from pilotage_server.rpc.convert_values import Fields
from pilotage_server.rpc.transactions import Transactions
from pilotage_server.storage.engine import Unit


class ResourceServicer(resource_service_pb2_grpc.ResourceServiceServicer):
    """Holds the resource tree."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def PutTree(
        self, request: resource_service_pb2.PutTreeRequest, context: Any
    ) -> resource_service_pb2.PutTreeResponse:
        identity = caller()
        with left_lying():
            new = await asyncio.to_thread(parse_tree, request.text, request.format, unhurried)
            plan, tried = await self._transactions.read(partial(_tried, new))
        if request.validate_only:
            return tried

        def put(unit: Unit, world: World) -> resource_service_pb2.PutTreeResponse:
            effect = put_tree(unit, world, identity, new, plan)
            return tried if effect is plan.effect else tree_effect_to_wire(effect)

        return await self._transactions.once(identity, "PutTree", request, resource_service_pb2.PutTreeResponse, put)

    async def GetTree(
        self, request: resource_service_pb2.GetTreeRequest, context: Any
    ) -> resource_service_pb2.GetTreeResponse:
        return await self._transactions.read(lambda unit, _: tree_text_to_wire(get_tree(unit)))

    async def ListQueues(
        self, request: resource_service_pb2.ListQueuesRequest, context: Any
    ) -> resource_service_pb2.ListQueuesResponse:
        identity = caller()
        fields = Fields(request)
        vo, site = fields.text("vo"), fields.text("site")
        fields.done()

        def show(unit: Any, world: Any) -> resource_service_pb2.ListQueuesResponse:
            queues = list_queues(unit, world, identity, vo, site)
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
            lambda unit, world: eligible_to_wire(get_eligible_nodes(unit, world, identity, query))
        )

    async def Ban(self, request: resource_service_pb2.BanRequest, context: Any) -> resource_service_pb2.BanResponse:
        identity, order = caller(), ban_from_wire(request)

        def put(unit: Any, world: Any) -> resource_service_pb2.BanResponse:
            return resource_service_pb2.BanResponse(ban=ban_to_wire(ban(unit, world, identity, order)))

        return await self._transactions.once(identity, "Ban", request, resource_service_pb2.BanResponse, put)

    async def Unban(
        self, request: resource_service_pb2.UnbanRequest, context: Any
    ) -> resource_service_pb2.UnbanResponse:
        node = unban_from_wire(request)

        def lift(unit: Any, world: Any) -> resource_service_pb2.UnbanResponse:
            ended = unban(unit, world, node)
            return resource_service_pb2.UnbanResponse(bans=[ban_to_wire(record) for record in ended])

        return await self._transactions.once(caller(), "Unban", request, resource_service_pb2.UnbanResponse, lift)

    async def ListBans(
        self, request: resource_service_pb2.ListBansRequest, context: Any
    ) -> resource_service_pb2.ListBansResponse:
        records = await self._transactions.read(lambda unit, _: list_bans(unit))
        return resource_service_pb2.ListBansResponse(bans=[ban_to_wire(record) for record in records])

    async def ListThrottles(
        self, request: resource_service_pb2.ListThrottlesRequest, context: Any
    ) -> resource_service_pb2.ListThrottlesResponse:
        throttles = await self._transactions.read(lambda unit, _: list_health(unit))
        return resource_service_pb2.ListThrottlesResponse(throttles=[throttle_to_wire(each) for each in throttles])

    async def HoldPlace(
        self, request: resource_service_pb2.HoldPlaceRequest, context: Any
    ) -> resource_service_pb2.HoldPlaceResponse:
        ordered = closed_by_from_wire(request, caller().owner)

        def hold(unit: Unit, world: World) -> resource_service_pb2.HoldPlaceResponse:
            held = hold_place(unit, world, ordered)
            return resource_service_pb2.HoldPlaceResponse(
                throttle=throttle_to_wire(held.throttle), warnings=held.warnings
            )

        return await self._transactions.once(
            caller(), "HoldPlace", request, resource_service_pb2.HoldPlaceResponse, hold
        )

    async def OpenPlace(
        self, request: resource_service_pb2.OpenPlaceRequest, context: Any
    ) -> resource_service_pb2.OpenPlaceResponse:
        identity, fields = caller(), Fields(request)
        place = fields("place", place_from_wire)
        fields.done()

        def let(unit: Unit, world: World) -> resource_service_pb2.OpenPlaceResponse:
            now_open = open_place(unit, world, place, identity.owner)
            return resource_service_pb2.OpenPlaceResponse(throttle=throttle_to_wire(now_open))

        return await self._transactions.once(
            identity, "OpenPlace", request, resource_service_pb2.OpenPlaceResponse, let
        )


def _tried(new: NewTree, unit: Unit, world: World) -> tuple[TreePlan, resource_service_pb2.PutTreeResponse]:
    """Return what a tree would change, and the answer that tells it: to name many queues takes long too."""
    plan = try_tree(unit, world, new)
    return plan, tree_effect_to_wire(plan.effect)
