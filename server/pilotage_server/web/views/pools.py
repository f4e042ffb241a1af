"""The submit pools and their queues."""

from __future__ import annotations

from pilotage.v1 import pool_service_pb2
from pilotage_server.web.pages import PageView, Shown, Visit

MOST_POOLS = 200
MOST_QUEUES = 8
"""Pools of the page, and queues that it names of each one."""


async def collect_pools(visit: Visit) -> Shown:
    """Return the pools with the most waiting jobs."""
    found = await visit.calls("PoolService/ListPools", pool_service_pb2.ListPoolsRequest())
    return {"pools": found.pools[:MOST_POOLS], "count": len(found.pools), "most_queues": MOST_QUEUES}


POOLS = PageView("/pools", "Pools", ("PoolService/ListPools",), "pools.html", collect_pools)
