"""RaceService: what may be raced, copies that are to be made, and races as people see them."""

from __future__ import annotations

from typing import Any

from pilotage.v1 import race_service_pb2, race_service_pb2_grpc
from pilotage_server.operations.races import list_races
from pilotage_server.operations.start_copies import start_copies
from pilotage_server.operations.stragglers import SlotGlance, find_stragglers, race_loads
from pilotage_server.operations.turns import hold_turn
from pilotage_server.operations.world import World
from pilotage_server.rpc.calls import caller
from pilotage_server.rpc.convert_races import (
    new_rivals_from_wire,
    race_filter_from_wire,
    races_to_wire,
    started_to_wire,
    stragglers_to_wire,
)
from pilotage_server.rpc.convert_turns import turn_from_wire
from pilotage_server.rpc.convert_values import Fields, not_too_many
from pilotage_server.rpc.transactions import Transactions
from pilotage_server.storage.engine import Unit


class RaceServicer(race_service_pb2_grpc.RaceServiceServicer):
    """Lets copies of jobs race."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._glance = SlotGlance()

    async def FindStragglers(
        self, request: race_service_pb2.FindStragglersRequest, context: Any
    ) -> race_service_pb2.FindStragglersResponse:
        fields = Fields(request)
        after = fields.count("after_set")
        fields("after_jobs", not_too_many)
        after_jobs = dict(request.after_jobs)
        glance = self._glance if request.free_slots_wanted else None
        fields.done()

        def find(unit: Unit, world: World) -> race_service_pb2.FindStragglersResponse:
            found = find_stragglers(unit, world, after, glance, after_jobs)
            return stragglers_to_wire(found, None if after else race_loads(unit))

        return await self._transactions.read(find)

    async def StartCopies(
        self, request: race_service_pb2.StartCopiesRequest, context: Any
    ) -> race_service_pb2.StartCopiesResponse:
        fields = Fields(request)
        turn = fields.if_set("turn", turn_from_wire)
        wanted = fields("copies", new_rivals_from_wire)
        fields.done()

        def start(unit: Unit, world: World) -> race_service_pb2.StartCopiesResponse:
            hold_turn(unit, turn)
            return started_to_wire(start_copies(unit, world, wanted))

        return await self._transactions.once(
            caller(), "StartCopies", request, race_service_pb2.StartCopiesResponse, start
        )

    async def ListRaces(
        self, request: race_service_pb2.ListRacesRequest, context: Any
    ) -> race_service_pb2.ListRacesResponse:
        identity = caller()
        wanted, size = race_filter_from_wire(request)
        token = request.page_token
        return await self._transactions.read(
            lambda unit, _: races_to_wire(list_races(unit, identity, wanted, size, token))
        )
