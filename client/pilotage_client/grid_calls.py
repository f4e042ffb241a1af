"""What a client asks of the grid: pools, queues, pilots, slots, and what fits where."""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.job_description import Value
from pilotage.v1 import (
    node_service_pb2,
    pilot_service_pb2,
    pool_service_pb2,
    resource_service_pb2,
    share_service_pb2,
)
from pilotage.wire import section_to_wire
from pilotage_client.connection import Connection


class GridCalls(Connection):
    """The calls that show the grid; they change nothing."""

    def pools(self, vo: str = "") -> list[pool_service_pb2.Pool]:
        """Return the pools that the caller may see, most waiting first."""
        return list(self._pools.ListPools(pool_service_pb2.ListPoolsRequest(vo=vo)).pools)

    def pilots(self, *, ended: bool = False) -> list[pilot_service_pb2.Pilot]:
        """Return the pilots, newest first."""
        return list(self._pilots.ListPilots(pilot_service_pb2.ListPilotsRequest(ended=ended)).pilots)

    def slots(self, constraint: str = "", *, ads_wanted: bool = False) -> list[node_service_pb2.SlotInfo]:
        """Return the slots of live pilots, by node and name; with a constraint those of whose ads it is true."""
        request = node_service_pb2.ListSlotsRequest(constraint=constraint, ads_wanted=ads_wanted)
        return list(self._nodes.ListSlots(request).slots)

    def shares(self, vo: str = "") -> share_service_pb2.ListSharesResponse:
        """Return the shares that the caller may see: groups by name, accounts in the order in which they go."""
        return self._shares.ListShares(share_service_pb2.ListSharesRequest(vo=vo))

    def queues(self, *, vo: str = "", site: str = "") -> list[resource_service_pb2.QueueInfo]:
        """Return queues with their effective values and where these come from, in the tree's order."""
        return list(self._resources.ListQueues(resource_service_pb2.ListQueuesRequest(vo=vo, site=site)).queues)

    def eligible_nodes(
        self, *, vo: str = "", level: str = "Queue", queue_select: Mapping[str, Value] | None = None
    ) -> dict[str, dict[str, list[str]]]:
        """Return {SITE: {CE: [QUEUE…]}} of what fits, nothing in it empty."""
        request = resource_service_pb2.GetEligibleNodesRequest(vo=vo, level=level)
        section_to_wire(queue_select or {}, request.queue_select)
        answer = self._resources.GetEligibleNodes(request)
        return {site.name: {ce.name: list(ce.queues) for ce in site.ces} for site in answer.sites}
