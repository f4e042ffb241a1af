"""The gRPC server: all services behind the access check, and health and reflection without it.

A gateway may serve the same services over HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Protocol

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from pilotage.clock import BootClock, Clock
from pilotage.rpc.channel import SHARED_OPTIONS
from pilotage.v1 import (
    agent_service_pb2,
    agent_service_pb2_grpc,
    audit_service_pb2,
    audit_service_pb2_grpc,
    diagnosis_service_pb2,
    diagnosis_service_pb2_grpc,
    identity_service_pb2,
    identity_service_pb2_grpc,
    job_service_pb2,
    job_service_pb2_grpc,
    matcher_service_pb2,
    matcher_service_pb2_grpc,
    node_service_pb2,
    node_service_pb2_grpc,
    notification_service_pb2,
    notification_service_pb2_grpc,
    overview_service_pb2,
    overview_service_pb2_grpc,
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
from pilotage_server.core.jobs.record import FeedEvent
from pilotage_server.core.pilots.pilots import SecondUse
from pilotage_server.operations.jobs.queries import FeedNews, read_news
from pilotage_server.operations.matching.idle_pilots import ServerMatchEstimator
from pilotage_server.operations.server_state import ServerState
from pilotage_server.rpc.accounting import ShareServicer
from pilotage_server.rpc.audit import AuditServicer
from pilotage_server.rpc.diagnosis import CheckProcess, DiagnosisServicer
from pilotage_server.rpc.framework.admission import Admission, CallLimits
from pilotage_server.rpc.framework.call_counts import CallCounts
from pilotage_server.rpc.framework.dispatch import Acceptor, CallAccess, Dispatcher, LoopCalls, in_event_loop
from pilotage_server.rpc.framework.grpc_calls import CallAcceptor
from pilotage_server.rpc.framework.proofs import PilotProofs
from pilotage_server.rpc.framework.tokens import TokenIssuer, TokenVerifier
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.rpc.identity import IdentityServicer
from pilotage_server.rpc.jobs.event_feed import EventFeed
from pilotage_server.rpc.jobs.notifications import NotificationServicer
from pilotage_server.rpc.jobs.service import JobServicer
from pilotage_server.rpc.leadership import AgentServicer
from pilotage_server.rpc.matching.long_polls import LongPolls
from pilotage_server.rpc.matching.service import MatcherServicer
from pilotage_server.rpc.overview import OverviewServicer
from pilotage_server.rpc.pilots import MakeBrokerLogin, NodeServicer, PilotServicer, PilotTokens
from pilotage_server.rpc.races import RaceServicer
from pilotage_server.rpc.resources import PoolServicer, ResourceServicer
from pilotage_server.rpc.routing import RouteServicer
from pilotage_server.storage.blobs.base import FileStore
from pilotage_server.storage.database.disk import DiskSpace

OPEN_SERVICE_THREADS = 4
"""Threads for each of the health and reflection services; more calls at a time are queued."""


class Health(health.HealthServicer):  # type: ignore[misc]
    """The standard health service."""

    def report(self, refused: Collection[str] = ()) -> None:
        """Report all services, and the server as a whole (""), as serving, except those that are refused."""
        for name in ("", *SERVICES):
            status = "NOT_SERVING" if name in refused else "SERVING"
            self.set(name, health_pb2.HealthCheckResponse.ServingStatus.Value(status))

    def add_to(self, server: grpc.Server) -> None:
        """Add the service to the server."""
        health_pb2_grpc.add_HealthServicer_to_server(self, server)


class _Reflection(reflection.ReflectionServicer):  # type: ignore[misc]
    def ServerReflectionInfo(self, request_iterator: Any, context: Any) -> Any:
        return super().ServerReflectionInfo(request_iterator, context)

    # An open reflection stream holds a thread, which must not be one that answers health checks.
    ServerReflectionInfo.experimental_thread_pool = ThreadPoolExecutor(  # type: ignore[attr-defined]
        OPEN_SERVICE_THREADS, thread_name_prefix="reflection"
    )


def add_reflection(server: grpc.Server, services: Iterable[str]) -> None:
    """Let the server describe these services, and those without a token."""
    names = (*services, health.SERVICE_NAME, reflection.SERVICE_NAME)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(_Reflection(names), server)


OPTIONS: tuple[tuple[str, int], ...] = (
    *SHARED_OPTIONS,
    ("grpc.so_reuseport", 0),  # else a second server would silently share the port
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),  # gRPC's default of 5 min punishes keepalive
    # gRPC cancels calls beyond 1,000 that the serving thread has not taken, and names no retry delay. After a restart
    # all pilots call at once, so that decision is left to `Admission`.
    ("grpc.server.max_pending_requests", 50_000),
    ("grpc.server.max_pending_requests_hard_limit", 100_000),
)

SERVICES = tuple(
    module.DESCRIPTOR.services_by_name[name].full_name
    for module, name in (
        (agent_service_pb2, "AgentService"),
        (audit_service_pb2, "AuditService"),
        (diagnosis_service_pb2, "DiagnosisService"),
        (identity_service_pb2, "IdentityService"),
        (job_service_pb2, "JobService"),
        (matcher_service_pb2, "MatcherService"),
        (node_service_pb2, "NodeService"),
        (notification_service_pb2, "NotificationService"),
        (overview_service_pb2, "OverviewService"),
        (pilot_service_pb2, "PilotService"),
        (pool_service_pb2, "PoolService"),
        (race_service_pb2, "RaceService"),
        (resource_service_pb2, "ResourceService"),
        (route_service_pb2, "RouteService"),
        (share_service_pb2, "ShareService"),
    )
)
"""Full names of Pilotage's own services."""

JOB_SERVICE = job_service_pb2.DESCRIPTOR.services_by_name["JobService"].full_name
"""It is not serving while submissions and uploads are refused."""


@dataclass(frozen=True, slots=True)
class ServiceLimits:
    """Limits of calls, of tokens' lifetimes and of connections; `second_use` is what follows a second enrolment.

    A connection is closed when it is not set up within `handshake`, and when it has had no call for `idle_connection`.
    """

    longest_wait_s: float
    calls: CallLimits
    pilot_token: timedelta
    enrolment: timedelta
    longest_token: timedelta
    second_use: SecondUse
    handshake: timedelta
    idle_connection: timedelta


@dataclass(frozen=True, slots=True)
class ServiceContext:
    """What the services need: transactions, files, tokens and clocks.

    `make_broker_login` None = pilots get no logins at the broker. `authority` returns the fingerprint (SHA-256,
    hexadecimal) of the authority that the server presents, "" = none. `check_process` is for the diagnosis.
    """

    transactions: Transactions
    store: FileStore
    disk: DiskSpace
    issuer: TokenIssuer
    verifier: TokenVerifier
    proofs: PilotProofs
    clock: Clock
    boot_clock: BootClock
    make_broker_login: MakeBrokerLogin | None = None
    authority: Callable[[], str] = lambda: ""
    check_process: CheckProcess = tuple


def _options(limits: ServiceLimits) -> tuple[tuple[str, int], ...]:
    """Return the options of gRPC's server.

    A connection needs no token, so one that is of no use must end by itself. gRPC has no limit for each peer.
    """
    return (
        *OPTIONS,
        ("grpc.server_handshake_timeout_ms", round(limits.handshake.total_seconds() * 1000)),
        ("grpc.max_connection_idle_ms", round(limits.idle_connection.total_seconds() * 1000)),
    )


class HttpGateway(Protocol):
    """Serves calls over HTTP; `gateway.Gateway` fulfils it. Most servers have none, and do not import its libraries."""

    @property
    def calls(self) -> Acceptor:
        """What takes the entry points of all calls."""

    def start(self, clock: BootClock) -> None:
        """Take requests from now on; all calls have their entry points."""

    async def stop(self) -> None:
        """Take no more connections, and let the answers under way end."""


class _AllDispatchers:
    """Registers the methods of servicers in several dispatchers."""

    def __init__(self, dispatchers: Sequence[Dispatcher]) -> None:
        self._dispatchers = dispatchers

    def add_generic_rpc_handlers(self, _handlers: Any) -> None:
        """Do nothing, as `Dispatcher`."""

    def add_registered_method_handlers(self, service: str, handlers: Mapping[str, Any]) -> None:
        """Register the methods of a service."""
        for dispatcher in self._dispatchers:
            dispatcher.add_registered_method_handlers(service, handlers)


class RpcServer:
    """The gRPC server with all services, their long polls and their event feed, and perhaps their gateway."""

    def __init__(
        self, context: ServiceContext, limits: ServiceLimits, gateway: HttpGateway | None = None, *, reflects: bool
    ) -> None:
        state = context.transactions.state
        self._context = context
        self._limits = limits
        self._polls = LongPolls(ServerMatchEstimator(state, context.clock))
        self._feed = EventFeed(partial(_read_news, context.transactions))
        self._health = Health()
        self._admission = Admission(limits.calls, context.boot_clock)
        # Its own: admission counts in one thread only, and callers over HTTP cannot exhaust those over gRPC.
        self._http_admission = Admission(limits.calls, context.boot_clock)
        self._gateway = gateway
        self.call_counts: tuple[CallCounts, ...] = ()
        """The calls of each method; none before the server serves."""
        self._server = grpc.server(
            ThreadPoolExecutor(OPEN_SERVICE_THREADS, thread_name_prefix="health"), options=_options(limits)
        )
        self._health.add_to(self._server)
        if reflects:
            add_reflection(self._server, SERVICES)
        _subscribe(state, self._polls, self._feed)

    def listen(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        """Listen at `address` and return the port; no credentials = plain text."""
        if credentials is None:
            return self._server.add_insecure_port(address)
        return self._server.add_secure_port(address, credentials)

    def serve(self, tasks: asyncio.TaskGroup) -> None:
        """Take calls from now on; coroutines of calls run in `tasks`."""
        context = self._context
        state = context.transactions.state
        access = CallAccess(context.verifier, lambda: state.revocations, context.proofs, context.clock)
        loop_calls = LoopCalls(tasks, access.recheck)
        clock, gateway = context.boot_clock, self._gateway
        dispatchers = [Dispatcher(CallAcceptor(self._server), access, loop_calls, self._admission, clock)]
        if gateway is not None:
            dispatchers.append(Dispatcher(gateway.calls, access, loop_calls, self._http_admission, clock, "HTTP"))
        self._add_services(_AllDispatchers(dispatchers))
        self.call_counts = tuple(counts for dispatcher in dispatchers for counts in dispatcher.call_counts)
        tasks.create_task(self._feed.run())
        self._health.report()
        for dispatcher in dispatchers:
            dispatcher.open()
        if gateway is not None:
            gateway.start(clock)

    def _add_services(self, server: Any) -> None:
        context, limits = self._context, self._limits
        transactions, wait_s = context.transactions, limits.longest_wait_s
        tokens = PilotTokens(
            context.issuer,
            context.verifier,
            context.proofs,
            context.clock,
            limits.pilot_token,
            limits.enrolment,
            limits.longest_token,
        )
        jobs = JobServicer(transactions, context.store, self._feed, context.boot_clock, wait_s, context.disk)
        matcher = MatcherServicer(transactions, context.store, self._polls, context.boot_clock, wait_s)
        identity = IdentityServicer(
            transactions, context.issuer, context.verifier, context.clock, limits.longest_token, context.authority
        )
        job_service_pb2_grpc.add_JobServiceServicer_to_server(jobs, server)
        matcher_service_pb2_grpc.add_MatcherServiceServicer_to_server(matcher, server)
        pool_service_pb2_grpc.add_PoolServiceServicer_to_server(PoolServicer(transactions), server)
        resource_service_pb2_grpc.add_ResourceServiceServicer_to_server(ResourceServicer(transactions), server)
        pilot_service_pb2_grpc.add_PilotServiceServicer_to_server(
            PilotServicer(transactions, tokens, limits.second_use, context.make_broker_login), server
        )
        node_service_pb2_grpc.add_NodeServiceServicer_to_server(NodeServicer(transactions), server)
        routes = RouteServicer(transactions, context.store)
        route_service_pb2_grpc.add_RouteServiceServicer_to_server(routes, server)
        agent_service_pb2_grpc.add_AgentServiceServicer_to_server(AgentServicer(transactions), server)
        audit_service_pb2_grpc.add_AuditServiceServicer_to_server(AuditServicer(transactions), server)
        race_service_pb2_grpc.add_RaceServiceServicer_to_server(RaceServicer(transactions), server)
        notifications = NotificationServicer(transactions)
        notification_service_pb2_grpc.add_NotificationServiceServicer_to_server(notifications, server)
        share_service_pb2_grpc.add_ShareServiceServicer_to_server(ShareServicer(transactions), server)
        overview_service_pb2_grpc.add_OverviewServiceServicer_to_server(OverviewServicer(transactions), server)
        identity_service_pb2_grpc.add_IdentityServiceServicer_to_server(identity, server)

        diagnosis = DiagnosisServicer(transactions, context.check_process, context.clock, context.boot_clock)
        diagnosis_service_pb2_grpc.add_DiagnosisServiceServicer_to_server(diagnosis, server)

    def report_health(self, *, is_writable: bool, has_room: bool) -> None:
        """Report whether the database can be written, and whether the disk has room for jobs and uploads."""
        refused = () if has_room else (JOB_SERVICE,)
        self._health.report(refused if is_writable else ("", *SERVICES))

    def calls_in_flight(self) -> dict[str, int]:
        """Return the numbers of calls in flight to methods that users may call, and to the others, and over HTTP."""
        counts = {"users": len(self._admission.of_users), "others": len(self._admission.of_others)}
        if self._gateway is not None:
            counts["http"] = len(self._http_admission.of_users) + len(self._http_admission.of_others)
        return counts

    def wake_followers(self) -> None:
        """Notify the calls that follow events: another server has committed some."""
        self._feed.announce()

    async def stop(self, grace_s: float) -> None:
        """Take no more calls, let those in flight end, and cancel the rest after `grace_s`."""
        await asyncio.to_thread(self._health.enter_graceful_shutdown)
        self._polls.close()
        self._feed.close()
        stopped = self._server.stop(grace_s)
        if self._gateway is not None:
            await self._gateway.stop()
        await asyncio.to_thread(stopped.wait)


def _subscribe(state: ServerState, polls: LongPolls, feed: EventFeed) -> None:
    """Notify waiting calls, in the event loop's thread, of what writers' threads commit."""
    state.waiting_listeners += [polls.announce_jobs, in_event_loop(polls.wake_for_jobs)]
    state.is_offered = polls.is_offered
    state.command_listeners.append(in_event_loop(polls.wake_pilot))
    state.access_listeners.append(in_event_loop(polls.wake_all))
    state.event_listeners.append(_event_publisher(feed))


async def _read_news(transactions: Transactions, after: int | None) -> FeedNews:
    return await transactions.read(lambda transaction, _: read_news(transaction, after))


def _event_publisher(feed: EventFeed) -> Callable[[Sequence[FeedEvent]], None]:
    """Return a listener that announces events; without followers it leaves the event loop alone."""
    announce_soon = in_event_loop(feed.announce)

    def publish(_events: Sequence[FeedEvent]) -> None:
        if feed.has_followers:
            announce_soon()

    return publish
