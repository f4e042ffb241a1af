"""A grid whose web page has visitors, and what views show: slots in all states, past use, and routes of a router."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any

from playwright.async_api import Browser

from pilotage import clock
from pilotage.job_description import JobDescription
from pilotage.resources.tree import QueueId
from pilotage.rpc.wire import time_to_wire
from pilotage.v1 import matcher_service_pb2, route_service_pb2, values_pb2
from pilotage.values.dependencies import Dependency
from pilotage.values.wire.dependencies import dependency_to_wire
from pilotage_server.core.accounting.job_counts import JobCounts
from pilotage_server.core.accounting.usage_sums import SumKey, UsageSum
from pilotage_server.core.identity import Role
from pilotage_server.storage.accounting import add_counts, add_daily_usage
from pilotage_server.storage.database.engine import Database, closing
from pilotage_server.storage.database.transaction import Transaction
from support.browser import WebVisitor
from support.routers import WireRouter
from support.server import RunningServer
from support.wire_grid import WireGrid, WirePilot, submission

_STATES = {
    ("Claimed", "Busy"): 70,
    ("Unclaimed", "Idle"): 14,
    ("Claimed", "Idle"): 4,
    ("Claimed", "Suspended"): 4,
    ("Claimed", "Retiring"): 3,
    ("Preempting", "Vacating"): 2,
    ("Owner", "Idle"): 3,
}
"""States and activities of slots with their shares."""


@dataclass
class WebScene:
    """A grid behind a server with a web page, and a browser."""

    grid: WireGrid
    browser: Browser

    async def visitor(self, *roles: Role, owner: str = "olga", **options: object) -> WebVisitor:
        """Return a visitor of the grid's VO who has logged in; `options` are those of `WebVisitor.arrive`."""
        server = self.grid.server
        visitor = await WebVisitor.arrive(self.browser, server.http_address, **options)
        await visitor.log_in(server.token(*roles, owner=owner, vo=self.grid.vo))
        return visitor


def a_slot(name: str, state: str, activity: str, **facts: Any) -> matcher_service_pb2.SlotState:
    """Return a slot of one core."""
    amounts = values_pb2.Amounts(cpus=1, memory_mib=2000)
    free = amounts if state == "Unclaimed" else values_pb2.Amounts()
    given: dict[str, Any] = {"name": name, "state": state, "activity": activity, "amounts": amounts, "free": free}
    return matcher_service_pb2.SlotState(**(given | facts))


def show_slots(pilot: WirePilot, node: str, slots: Iterable[matcher_service_pb2.SlotState], **facts: Any) -> None:
    """Report a node with these slots."""
    pilot.heartbeat(node=matcher_service_pb2.NodeState(name=node, slots=slots, **facts))


def show_farm(grid: WireGrid, nodes_of_queues: Mapping[QueueId, int]) -> None:
    """Start a pilot on each of some nodes of these queues; some nodes drain."""
    chance = random.Random(5)
    states, weights = list(_STATES), list(_STATES.values())
    for queue, nodes in nodes_of_queues.items():
        for number in range(nodes):
            drains = number % 7 == 4
            since = time_to_wire(clock.now() - timedelta(minutes=chance.randrange(2, 600)))
            slots = [
                a_slot(f"slot{slot}", *(("Drained", "Idle") if drains and slot % 3 else found), since=since, load=0.97)
                for slot, found in enumerate(chance.choices(states, weights, k=chance.choice((16, 32, 64))), 1)
            ]
            node = f"wn{number + 101}.{queue.site.lower()}.example"
            show_slots(grid.start_pilot(queue), node, slots, draining=drains)


def past_usage(server: RunningServer, vo: str) -> None:
    """Keep the use of three groups over a month."""
    noise = random.Random(9)
    sums = {
        SumKey(f"{clock.now() - timedelta(days=age):%Y-%m-%d}", vo, group, owner, "CERN-PROD"): UsageSum(
            done=(done := noise.randrange(900, 1500)),
            failed=done // (4 if age == 9 else 30),
            interrupted=done // 50,
            done_core_s=done * 14_000.0,
            failed_core_s=done * (6_000.0 if age == 9 else 300.0),
            interrupted_core_s=done * 150.0,
            cpu_s=done * 13_000.0,
        )
        for age in range(29, -1, -1)
        for group, owner in (("higgs", "alice"), ("higgs", "bruno"), ("calib", "chiara"))
    }
    with closing(Database(f"sqlite:///{server.data / 'pilotage.db'}")) as database:
        database.write(partial(_keep_usage, sums=sums))


def _keep_usage(transaction: Transaction, sums: Mapping[SumKey, UsageSum]) -> None:
    add_daily_usage(transaction.session, sums)


def keep_counts(transaction: Transaction, minute: int, counts: Mapping[str, JobCounts]) -> None:
    """Keep counts of jobs by VO at a minute."""
    add_counts(transaction.session, minute, counts)


def put_routes(grid: WireGrid) -> None:
    """Report the routes of a router: open, full, throttled and closed ones, and one that is not in use."""
    outline = route_service_pb2.RouteOutline
    needs = "WantRoute && RequestMemory <= 4000"
    routes = [
        outline(name="hpc", target="queue NIKHEF/klimplant/long", requirements=needs, max_jobs=500, copies=212, idle=9),
        outline(name="cloud", target="server burst.example:4711", max_jobs=40, copies=40, max_idle_jobs=10, idle=3),
        outline(
            name="opportunistic", target="server far.example:4711", max_jobs=100, throttled="9 of 10 copies failed"
        ),
        outline(name="partner", target="server partner.example:4711", max_jobs=100, closed="it does not answer"),
    ]
    left_out = [route_service_pb2.LeftOutRoute(name="<script>old</script>", reason="no target", copies=2, idle=1)]
    router = WireRouter(grid)
    router.routes.PutRoutes(
        route_service_pb2.PutRoutesRequest(
            turn=router.turn, routes=routes, constraint="JobPrio >= 0", max_jobs=1000, left_out=left_out
        )
    )


def submit_workflow(
    grid: WireGrid,
    name: str,
    descriptions: Sequence[JobDescription],
    dependencies: Iterable[Dependency],
    owner: str = "alice",
) -> Sequence[int]:
    """Submit a workflow and return the ids of its jobs."""
    request = submission(descriptions)
    request.workflow.name = name
    request.dependencies.extend(map(dependency_to_wire, dependencies))
    return grid.user(owner).SubmitJobs(request).job_ids
