"""ShareService: who has used how much, and what everybody is entitled to."""

from __future__ import annotations

from typing import Any

from pilotage.v1 import share_service_pb2, share_service_pb2_grpc
from pilotage_server.operations.shares import list_shares, set_shares
from pilotage_server.operations.world import World
from pilotage_server.rpc.calls import caller
from pilotage_server.rpc.convert_shares import factors_from_wire, quotas_from_wire, shares_to_wire
from pilotage_server.rpc.convert_values import Fields
from pilotage_server.rpc.transactions import Transactions
from pilotage_server.storage.engine import Unit


class ShareServicer(share_service_pb2_grpc.ShareServiceServicer):
    """Shows shares and sets what they go by."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def ListShares(
        self, request: share_service_pb2.ListSharesRequest, context: Any
    ) -> share_service_pb2.ListSharesResponse:
        identity = caller()
        fields = Fields(request)
        vo = fields.text("vo")
        fields.done()
        return await self._transactions.read(lambda unit, world: shares_to_wire(list_shares(unit, world, identity, vo)))

    async def SetShares(
        self, request: share_service_pb2.SetSharesRequest, context: Any
    ) -> share_service_pb2.SetSharesResponse:
        fields = Fields(request)
        factors = fields("priority_factors", factors_from_wire)
        quotas = fields("group_quotas", quotas_from_wire)
        fields.done()

        def set_them(unit: Unit, world: World) -> share_service_pb2.SetSharesResponse:
            set_shares(unit, world, factors, quotas)
            return share_service_pb2.SetSharesResponse()

        return await self._transactions.once(
            caller(), "SetShares", request, share_service_pb2.SetSharesResponse, set_them
        )
