"""PoolService: submit pools and the demand in them."""

from __future__ import annotations

from typing import Any

from pilotage.v1 import pool_service_pb2, pool_service_pb2_grpc
from pilotage_server.operations.demand import get_demand
from pilotage_server.operations.pool_views import list_pools
from pilotage_server.operations.pools import clean_pools, plan_cleaning, plan_refresh, refresh_pools
from pilotage_server.rpc.calls import caller
from pilotage_server.rpc.convert_resources import demand_to_wire, pool_to_wire
from pilotage_server.rpc.convert_values import Fields, queues_from_wire
from pilotage_server.rpc.transactions import Transactions


class PoolServicer(pool_service_pb2_grpc.PoolServiceServicer):
    """Shows pools and keeps their mappings fresh."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def ListPools(
        self, request: pool_service_pb2.ListPoolsRequest, context: Any
    ) -> pool_service_pb2.ListPoolsResponse:
        identity = caller()
        fields = Fields(request)
        vo = fields.text("vo")
        fields.done()

        def show(unit: Any, world: Any) -> pool_service_pb2.ListPoolsResponse:
            pools = list_pools(unit, world, identity, vo)
            return pool_service_pb2.ListPoolsResponse(pools=[pool_to_wire(pool) for pool in pools])

        return await self._transactions.read(show)

    async def RefreshPools(
        self, request: pool_service_pb2.RefreshPoolsRequest, context: Any
    ) -> pool_service_pb2.RefreshPoolsResponse:
        fields = Fields(request)
        older_than = fields.length("older_than_s")
        fields.done()

        planned = await self._transactions.read(lambda unit, world: plan_refresh(unit, world, older_than))

        def refresh(unit: Any, world: Any) -> pool_service_pb2.RefreshPoolsResponse:
            return pool_service_pb2.RefreshPoolsResponse(refreshed=refresh_pools(unit, world, planned))

        return await self._transactions.once(
            caller(), "RefreshPools", request, pool_service_pb2.RefreshPoolsResponse, refresh
        )

    async def CleanPools(
        self, request: pool_service_pb2.CleanPoolsRequest, context: Any
    ) -> pool_service_pb2.CleanPoolsResponse:
        fields = Fields(request)
        grace = fields.length("grace_s")
        fields.done()

        planned = await self._transactions.read(lambda unit, _: plan_cleaning(unit, grace))

        def clean(unit: Any, world: Any) -> pool_service_pb2.CleanPoolsResponse:
            return pool_service_pb2.CleanPoolsResponse(removed=clean_pools(unit, world, grace, planned))

        return await self._transactions.once(
            caller(), "CleanPools", request, pool_service_pb2.CleanPoolsResponse, clean
        )

    async def GetDemand(
        self, request: pool_service_pb2.GetDemandRequest, context: Any
    ) -> pool_service_pb2.GetDemandResponse:
        queues = queues_from_wire(request.queues)
        return await self._transactions.read(lambda unit, world: demand_to_wire(get_demand(unit, world, queues)))
