"""Builds the agents that a configuration asks for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple, assert_never
from uuid import uuid4

import grpc.aio

from pilotage.clock import boot_time_s, now
from pilotage.errors import InvalidInputError, Violation
from pilotage.jobs.files import OutputLimits
from pilotage.rpc.channel import Endpoint
from pilotage.values.leadership import Leadership, ServedQueues
from pilotage_agents.batch_systems.base import BatchSystem
from pilotage_agents.batch_systems.commands import CommandBatchSystem
from pilotage_agents.batch_systems.hosts import Host, LocalHost, SshHost
from pilotage_agents.batch_systems.htcondor import HtcondorBatchSystem, LibrarySchedd
from pilotage_agents.batch_systems.local import LocalBatchSystem
from pilotage_agents.batch_systems.settings import (
    BatchSystemSettings,
    CommandBatchSystemSettings,
    HtcondorBatchSystemSettings,
    LocalBatchSystemSettings,
    SlurmBatchSystemSettings,
    SshSettings,
)
from pilotage_agents.batch_systems.slurm import SlurmBatchSystem
from pilotage_agents.drain_controller.controller import DrainController
from pilotage_agents.drain_controller.settings import DrainControllerSettings
from pilotage_agents.notifier.notifier import Notifier, ServerNotificationLink
from pilotage_agents.notifier.settings import NotifierSettings
from pilotage_agents.pool_cleanup import PoolCleanup, PoolCleanupSettings
from pilotage_agents.racer.racer import Racer, ServerRaceLink
from pilotage_agents.racer.settings import RacerSettings
from pilotage_agents.router.context import RouterContext
from pilotage_agents.router.core.routed_jobs import TrackedJobs
from pilotage_agents.router.folder import RouterFolder
from pilotage_agents.router.hooks import RouteHooks
from pilotage_agents.router.router import JobRouter
from pilotage_agents.router.server_link import RouterServerLink
from pilotage_agents.router.settings import JobRouterSettings
from pilotage_agents.router.table_file import RouteSource
from pilotage_agents.router.target_pool import TargetPool
from pilotage_agents.router.targets.configured import ConfiguredTargets, queue_jobs_folder
from pilotage_agents.router.tasks import BackgroundTasks
from pilotage_agents.runtime.leadership import LeaderAgent, Replica, leadership_name, replica_id
from pilotage_agents.runtime.loop import DEFAULT_BACKOFF, Agent, Backoff, RealPause
from pilotage_agents.runtime.settings import AgentSection
from pilotage_agents.server_link import AgentServerLink
from pilotage_agents.settings import AgentSettings
from pilotage_agents.site_director.director import SiteDirector, names_by_ce_type
from pilotage_agents.site_director.glideins import GlideinFolders
from pilotage_agents.site_director.ports import DirectorContext
from pilotage_agents.site_director.sender import PilotSender
from pilotage_agents.site_director.settings import (
    DirectorSettings,
    SiteDirectorSettings,
    TaskQueueDirectorSettings,
)
from pilotage_agents.site_director.task_queue_director import TaskQueueDirector
from pilotage_agents.site_director.watch import GlideinWatch, WatchLimits

SITE_DIRECTOR, TASK_QUEUE_DIRECTOR = "site-director", "task-queue-director"
POOL_CLEANUP, DRAIN = "pool-cleanup", "drain"
JOB_ROUTER, RACER, NOTIFIER = "job-router", "racer", "notifier"

CYCLE_WAIT_S = 1.0
"""The time that a cycle of the job router waits for the tasks it starts; they continue afterwards."""

_ORIGIN_DIGITS = 8
_CA_NAME = "ca.pem"
"""The file in a pilot's folder with its certificate authorities."""


def build_agents(
    settings: AgentSettings,
    wanted: str | None,
    endpoint: Endpoint,
    open_channel: Callable[[AgentSection], grpc.aio.Channel],
) -> tuple[LeaderAgent, ...]:
    """Return the agent `wanted`, or with None every agent that the settings have a section for.

    `open_channel` opens the channel of an agent, which has a token of its own.

    Raises InvalidInputError when there is no such section, or none at all.
    """
    makers: dict[str, Callable[[], LeaderAgent]] = {}
    factory = _AgentFactory(settings, endpoint, open_channel)
    if (director := settings.site_director) is not None:
        makers[SITE_DIRECTOR] = lambda: factory.site_director(director)
    if (task_queues := settings.task_queue_director) is not None:
        makers[TASK_QUEUE_DIRECTOR] = lambda: factory.task_queue_director(task_queues)
    if (cleanup := settings.pool_cleanup) is not None:
        makers[POOL_CLEANUP] = lambda: factory.pool_cleanup(cleanup)
    if (drain := settings.drain_controller) is not None:
        makers[DRAIN] = lambda: factory.drain_controller(drain)
    if (router := settings.job_router) is not None:
        makers[JOB_ROUTER] = lambda: factory.job_router(router)
    if (racer := settings.racer) is not None:
        makers[RACER] = lambda: factory.racer(racer)
    if (notifier := settings.notifier) is not None:
        makers[NOTIFIER] = lambda: factory.notifier(notifier)
    chosen = tuple(make() for name, make in makers.items() if wanted in (None, name))
    if not chosen:
        missing = (wanted or SITE_DIRECTOR).replace("-", "_")
        raise InvalidInputError(Violation(missing, "the configuration has no such section"))
    return chosen


class _DirectorParts(NamedTuple):
    """What a director is built of."""

    leadership: Leadership
    link: AgentServerLink
    context: DirectorContext
    watch: GlideinWatch
    sender: PilotSender


@dataclass(frozen=True, slots=True)
class _AgentFactory:
    """Builds agents from the settings and the connection to the server."""

    settings: AgentSettings
    endpoint: Endpoint
    open_channel: Callable[[AgentSection], grpc.aio.Channel]

    def pool_cleanup(self, settings: PoolCleanupSettings) -> LeaderAgent:
        leadership = Leadership(leadership_name(PoolCleanup.name), uuid4().hex)
        link = AgentServerLink(self.open_channel(settings), leadership)
        return self._leader_agent(PoolCleanup(settings, link, now), leadership, link)

    def drain_controller(self, settings: DrainControllerSettings) -> LeaderAgent:
        leadership = Leadership(leadership_name(DrainController.name, settings.queues), uuid4().hex)
        link = AgentServerLink(self.open_channel(settings), leadership)
        return self._leader_agent(DrainController(settings, link, RealPause()), leadership, link)

    def racer(self, settings: RacerSettings) -> LeaderAgent:
        leadership = Leadership(leadership_name(Racer.name), uuid4().hex)
        channel = self.open_channel(settings)
        link = ServerRaceLink(channel, leadership, free_slots_wanted=settings.needs_free_slot)
        return self._leader_agent(Racer(settings, link), leadership, AgentServerLink(channel, leadership))

    def notifier(self, settings: NotifierSettings) -> LeaderAgent:
        leadership = Leadership(leadership_name(Notifier.name), uuid4().hex)
        channel = self.open_channel(settings)
        notifier = Notifier(settings, ServerNotificationLink(channel))
        return self._leader_agent(notifier, leadership, AgentServerLink(channel, leadership))

    def site_director(self, settings: SiteDirectorSettings) -> LeaderAgent:
        ce_types = tuple(each for system in settings.batch_systems.values() for each in system.ce_types)
        parts = self._director_parts(settings, SiteDirector.name, ServedQueues(settings.queues, ce_types))
        director = SiteDirector(settings, parts.context, parts.watch, parts.sender)
        return self._leader_agent(director, parts.leadership, parts.link)

    def task_queue_director(self, settings: TaskQueueDirectorSettings) -> LeaderAgent:
        parts = self._director_parts(settings, TaskQueueDirector.name, ServedQueues(settings.queues))
        director = TaskQueueDirector(settings, parts.context, parts.watch, parts.sender)
        return self._leader_agent(director, parts.leadership, parts.link)

    def _director_parts(self, settings: DirectorSettings, agent: str, serves: ServedQueues) -> _DirectorParts:
        folders = GlideinFolders(settings.folder / "pilots", {_CA_NAME: ca} if (ca := self.settings.ca_file) else {})
        folders.open()
        # A director that starts again in its folder is the same copy: it goes on at once.
        served = (serves.patterns, serves.ce_types) if serves.ce_types else (serves.patterns,)
        leadership = Leadership(leadership_name(agent, *served), folders.replica_id())
        link = AgentServerLink(self.open_channel(settings), leadership, serves)
        systems = {name: _batch_system(name, each, folders.root) for name, each in settings.batch_systems.items()}
        context = DirectorContext(folders, link, systems, now)
        lost_after, credential = timedelta(seconds=settings.lost_after_s), timedelta(seconds=settings.credential_s)
        watch = GlideinWatch(context, WatchLimits(settings.keep_ended, lost_after, credential))
        sender = PilotSender(settings, self._connection(), context, watch)
        return _DirectorParts(leadership, link, context, watch, sender)

    def job_router(self, settings: JobRouterSettings) -> LeaderAgent:
        origin = sha256(f"{self.settings.server} {settings.name}".encode()).hexdigest()[:_ORIGIN_DIGITS]
        folder = RouterFolder(settings.folder, settings.shared_folder / f"router-{origin}")
        folder.open()
        hooks = RouteHooks(settings.hook_settings, folder.shared / "hooks")
        # A router that restarts in its folder is the same replica: it continues at once.
        leadership = Leadership(leadership_name(JobRouter.name, [settings.name]), replica_id(settings.folder))
        channel = self.open_channel(settings)
        server = AgentServerLink(channel, leadership)
        root = queue_jobs_folder(settings.shared_folder)
        systems = {name: _batch_system(name, each, root) for name, each in settings.batch_systems.items()}
        by_ce_type = {ce_type: systems[name] for ce_type, name in names_by_ce_type(settings.batch_systems).items()}
        bounds = OutputLimits(settings.max_file_bytes, all_bytes=settings.max_output_bytes)
        access = settings.server_access
        targets = ConfiguredTargets(
            settings.shared_folder, bounds, by_ce_type, access, server.queues, origin, settings.plug_s
        )
        places = TargetPool(targets, now, settings.target_timeout_s)
        link = RouterServerLink(channel, leadership)
        shared = RouterContext(settings.name, TrackedJobs(), link, places, hooks, now, BackgroundTasks(CYCLE_WAIT_S))
        source = RouteSource(settings.table_settings, now)
        interval = timedelta(seconds=settings.interval_s)
        router = JobRouter(shared, source, folder, interval, settings.search_timeouts)
        # Routed jobs are followed at the usual interval whatever fails, such as reading the table.
        return self._leader_agent(router, leadership, server, Backoff(longest=interval))

    def _leader_agent(
        self, agent: Agent, leadership: Leadership, link: AgentServerLink, after_failure: Backoff = DEFAULT_BACKOFF
    ) -> LeaderAgent:
        replica = Replica(leadership, self.settings.turn_s, f"{socket.gethostname()} (process {os.getpid()})")
        return LeaderAgent(agent, replica, link, boot_time_s, RealPause(), after_failure)

    def _connection(self) -> Mapping[str, object]:
        """Return the settings with which a pilot reaches the server."""
        connection: dict[str, object] = {"server": list(self.endpoint.addresses), "tls": self.endpoint.is_encrypted}
        if self.settings.ca_file is not None:
            connection["ca_file"] = _CA_NAME
        return connection


def host_of(ssh: SshSettings | None) -> Host:
    """Return the host that runs the commands of a batch system."""
    return LocalHost() if ssh is None else SshHost(ssh)


def _batch_system(name: str, settings: BatchSystemSettings, root: Path) -> BatchSystem:
    """Return a batch system; `root` holds the folders of its jobs."""
    match settings:
        case LocalBatchSystemSettings():
            return LocalBatchSystem(root, kill_after_s=settings.kill_after_s)
        case SlurmBatchSystemSettings():
            return SlurmBatchSystem(name, settings, host_of(settings.ssh))
        case HtcondorBatchSystemSettings():
            schedd = LibrarySchedd(settings.schedd, settings.collector, timeout_s=settings.timeout_s)
            return HtcondorBatchSystem(name, settings, schedd)
        case CommandBatchSystemSettings():
            return CommandBatchSystem(name, settings)
        case _:
            assert_never(settings)
