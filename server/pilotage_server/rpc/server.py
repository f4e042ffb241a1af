"""The gRPC server: every service behind the door, with health and reflection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import grpc

from pilotage.channel import SHARED_OPTIONS
from pilotage.clock import BootClock, Clock
from pilotage.v1 import (
    agent_service_pb2,
    agent_service_pb2_grpc,
    identity_service_pb2,
    identity_service_pb2_grpc,
    job_service_pb2,
    job_service_pb2_grpc,
    matcher_service_pb2,
    matcher_service_pb2_grpc,
    node_service_pb2,
    node_service_pb2_grpc,
    pilot_service_pb2,
    pilot_service_pb2_grpc,
    pool_service_pb2,
    pool_service_pb2_grpc,
    race_service_pb2,
    race_service_pb2_grpc,
    resource_service_pb2,
    resource_service_pb2_grpc,
    route_service_pb2,
    route_service_pb2_grpc,
    share_service_pb2,
    share_service_pb2_grpc,
)
from pilotage_server.core.job_events import JobEvent
from pilotage_server.operations.chances import Chances
from pilotage_server.operations.world import World
from pilotage_server.rpc.agent_servicer import AgentServicer
from pilotage_server.rpc.door import Door
from pilotage_server.rpc.event_feed import EventFeed
from pilotage_server.rpc.identity_servicer import IdentityServicer
from pilotage_server.rpc.in_flight import CallsInFlight
from pilotage_server.rpc.job_servicer import JobServicer
from pilotage_server.rpc.long_polls import LongPolls
from pilotage_server.rpc.loop_calls import LoopCalls, in_event_loop
from pilotage_server.rpc.matcher_servicer import MatcherServicer
from pilotage_server.rpc.node_servicer import NodeServicer
from pilotage_server.rpc.open_services import ASKERS, Health, reflect
from pilotage_server.rpc.pilot_servicer import PilotServicer, PilotTokens
from pilotage_server.rpc.pool_servicer import PoolServicer
from pilotage_server.rpc.race_servicer import RaceServicer
from pilotage_server.rpc.reception import Reception
from pilotage_server.rpc.resource_servicer import ResourceServicer
from pilotage_server.rpc.route_servicer import RouteServicer
from pilotage_server.rpc.share_servicer import ShareServicer
from pilotage_server.rpc.tokens import TokenIssuer, TokenVerifier
from pilotage_server.rpc.transactions import Transactions
from pilotage_server.storage.file_store import FileStore

OPTIONS: tuple[tuple[str, int], ...] = (
    *SHARED_OPTIONS,
    ("grpc.so_reuseport", 0),  # or a second server would share the port in silence
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),  # gRPC's own 5 min punish keepalive
    # Past 1,000 calls that the serving thread has not taken yet, gRPC would cancel some without a word: after a
    # restart all pilots call at once. Who is refused is told when to come again (`in_flight`).
    ("grpc.server.max_pending_requests", 50_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
)

SERVICES = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in (
        (agent_service_pb2, "AgentService"),
        (identity_service_pb2, "IdentityService"),
        (job_service_pb2, "JobService"),
        (matcher_service_pb2, "MatcherService"),
        (node_service_pb2, "NodeService"),
        (pilot_service_pb2, "PilotService"),
        (pool_service_pb2, "PoolService"),
        (race_service_pb2, "RaceService"),
        (resource_service_pb2, "ResourceService"),
        (route_service_pb2, "RouteService"),
        (share_service_pb2, "ShareService"),
    )
)
"""Full names of Pilotage's own services."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the services go by: the longest wait of a call, how many are under way, the lives of tokens."""

    longest_wait_s: float
    calls_in_flight: int
    pilot_token: timedelta
    longest_token: timedelta


@dataclass(frozen=True, slots=True)
class Ground:
    """What the services stand on."""

    transactions: Transactions
    store: FileStore
    issuer: TokenIssuer
    verifier: TokenVerifier
    clock: Clock
    boot_clock: BootClock


class RpcServer:
    """The services, and the calls that wait in them."""

    def __init__(self, ground: Ground, limits: Limits, *, reflects: bool) -> None:
        world = ground.transactions.world
        self._ground = ground
        self._limits = limits
        self._polls = LongPolls(Chances(world, ground.clock))
        self._feed = EventFeed()
        self._health = Health()
        self._server = grpc.server(ThreadPoolExecutor(ASKERS, thread_name_prefix="health"), options=OPTIONS)
        self._health.add_to(self._server)
        if reflects:
            reflect(self._server, SERVICES)
        _observe(world, self._polls, self._feed)

    def listen(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        """Listen at `address` and return the port; without credentials in plain text."""
        if credentials is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, credentials)

    def serve(self, tasks: asyncio.TaskGroup) -> None:
        """Take calls from now on; those that wait do so in `tasks`."""
        ground = self._ground
        door = Door(ground.verifier, ground.clock)
        in_flight = CallsInFlight(self._limits.calls_in_flight, ground.boot_clock)
        reception = Reception(self._server, door, LoopCalls(tasks), in_flight, ground.boot_clock)
        self._add_services(reception)
        self._health.serves(SERVICES)
        reception.open()

    def _add_services(self, server: Any) -> None:
        ground, limits = self._ground, self._limits
        transactions, wait_s = ground.transactions, limits.longest_wait_s
        tokens = PilotTokens(ground.issuer, ground.clock, limits.pilot_token, limits.longest_token)
        jobs = JobServicer(transactions, ground.store, self._feed, ground.boot_clock, wait_s)
        matcher = MatcherServicer(transactions, ground.store, self._polls, ground.boot_clock, wait_s)
        identity = IdentityServicer(ground.issuer, ground.clock, limits.longest_token)
        job_service_pb2_grpc.add_JobServiceServicer_to_server(jobs, server)
        matcher_service_pb2_grpc.add_MatcherServiceServicer_to_server(matcher, server)
        pool_service_pb2_grpc.add_PoolServiceServicer_to_server(PoolServicer(transactions), server)
        resource_service_pb2_grpc.add_ResourceServiceServicer_to_server(ResourceServicer(transactions), server)
        pilot_service_pb2_grpc.add_PilotServiceServicer_to_server(PilotServicer(transactions, tokens), server)
        node_service_pb2_grpc.add_NodeServiceServicer_to_server(NodeServicer(transactions), server)
        routes = RouteServicer(transactions, ground.store)
        route_service_pb2_grpc.add_RouteServiceServicer_to_server(routes, server)
        agent_service_pb2_grpc.add_AgentServiceServicer_to_server(AgentServicer(transactions), server)
        race_service_pb2_grpc.add_RaceServiceServicer_to_server(RaceServicer(transactions), server)
        share_service_pb2_grpc.add_ShareServiceServicer_to_server(ShareServicer(transactions), server)
        identity_service_pb2_grpc.add_IdentityServiceServicer_to_server(identity, server)

    def nudge(self) -> None:
        """Let the calls that follow events look again: another server may have had some."""
        self._feed.nudge()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, let those under way come to their end, and cut off what lasts longer."""
        await asyncio.to_thread(self._health.enter_graceful_shutdown)
        self._polls.close()
        self._feed.close()
        stopped = self._server.stop(grace_s)
        await asyncio.to_thread(stopped.wait)


def _observe(world: World, polls: LongPolls, feed: EventFeed) -> None:
    """Let the calls that wait hear, in the event loop's thread, what the writer threads have committed."""
    world.on_enqueued += [polls.jobs_come, in_event_loop(polls.jobs_arrived)]
    world.is_offered = polls.is_offered
    world.on_commands.append(in_event_loop(polls.pilot_called))
    world.on_reach_changed.append(in_event_loop(polls.everything_changed))
    world.event_listeners.append(_to_followers(feed))


def _to_followers(feed: EventFeed) -> Callable[[Sequence[JobEvent]], None]:
    """Return what hands events to the feed; where nobody follows, the event loop is left alone at every match."""
    tell = in_event_loop(feed.happened)

    def happened(events: Sequence[JobEvent]) -> None:
        if feed.is_followed:
            tell(events)

    return happened
