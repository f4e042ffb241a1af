"""Builds the agents that a configuration asks for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from hashlib import sha256
from pathlib import Path
from typing import assert_never
from uuid import uuid4

import grpc.aio

from pilotage.channel import Endpoint
from pilotage.clock import boot_time_s, now
from pilotage.errors import InvalidInputError, Violation
from pilotage.job_output import Bounds
from pilotage_agents.batch_systems.base import BatchSystem
from pilotage_agents.batch_systems.htcondor import HtcondorBatchSystem
from pilotage_agents.batch_systems.local import LocalBatchSystem
from pilotage_agents.batch_systems.places import Place, ThisMachine
from pilotage_agents.batch_systems.schedd import LibrarySchedd
from pilotage_agents.batch_systems.slurm import SlurmBatchSystem
from pilotage_agents.batch_systems.ssh import SshPlace
from pilotage_agents.copies.copy_places import ConfiguredPlaces, queue_copies_folder
from pilotage_agents.copy_id import copy_id
from pilotage_agents.core.copies.held_copies import HeldCopies
from pilotage_agents.core.turn_names import turn_name
from pilotage_agents.drain_controller import DrainController
from pilotage_agents.glideins.director_edges import DirectorEdges
from pilotage_agents.glideins.glidein_folders import GlideinFolders
from pilotage_agents.glideins.glidein_watch import GlideinWatch, Terms
from pilotage_agents.glideins.pilot_sender import PilotSender
from pilotage_agents.glideins.served_queues import names_by_ce_type
from pilotage_agents.job_router import JobRouter
from pilotage_agents.link import Turn
from pilotage_agents.loop import USUAL_BACKOFF, Agent, Backoff, RealPause
from pilotage_agents.pool_cleanup import PoolCleanup
from pilotage_agents.race_link import ServerRaceLink
from pilotage_agents.racer import Racer
from pilotage_agents.router.errands import Errands
from pilotage_agents.router.route_hooks import RouteHooks
from pilotage_agents.router.route_places import Places
from pilotage_agents.router.route_shared import Shared
from pilotage_agents.router.route_source import RouteSource
from pilotage_agents.router.router_folder import RouterFolder
from pilotage_agents.router.router_link import RouterServerLink
from pilotage_agents.server_link import ServerLink
from pilotage_agents.settings import (
    BatchSystemSettings,
    DrainControllerSettings,
    HtcondorBatchSystemSettings,
    JobRouterSettings,
    LocalBatchSystemSettings,
    PoolCleanupSettings,
    RacerSettings,
    Settings,
    SiteDirectorSettings,
    SlurmBatchSystemSettings,
    SshSettings,
)
from pilotage_agents.site_director import SiteDirector
from pilotage_agents.turns import Copy, InTurn

SITE_DIRECTOR, POOL_CLEANUP, DRAIN = "site-director", "pool-cleanup", "drain"
JOB_ROUTER, RACER = "job-router", "racer"

ROUND_WAITS_S = 1.0
"""So long a round of the job router waits for what it begins, which goes on then."""

_ORIGIN_DIGITS = 8
_CA_NAME = "ca.pem"
"""The file in a pilot's folder with the authorities that it trusts."""


def build_agents(
    settings: Settings, wanted: str | None, endpoint: Endpoint, channel: grpc.aio.Channel
) -> tuple[InTurn, ...]:
    """Return the agent that is `wanted`, or with None every agent that the settings have a section for.

    Raises InvalidInputError when there is no section for it, or for none at all.
    """
    makers: dict[str, Callable[[], InTurn]] = {}
    ground = _Ground(settings, endpoint, channel)
    if (director := settings.site_director) is not None:
        makers[SITE_DIRECTOR] = lambda: ground.site_director(director)
    if (cleanup := settings.pool_cleanup) is not None:
        makers[POOL_CLEANUP] = lambda: ground.pool_cleanup(cleanup)
    if (drain := settings.drain_controller) is not None:
        makers[DRAIN] = lambda: ground.drain_controller(drain)
    if (router := settings.job_router) is not None:
        makers[JOB_ROUTER] = lambda: ground.job_router(router)
    if (racer := settings.racer) is not None:
        makers[RACER] = lambda: ground.racer(racer)
    chosen = tuple(make() for name, make in makers.items() if wanted in (None, name))
    if not chosen:
        missing = (wanted or SITE_DIRECTOR).replace("-", "_")
        raise InvalidInputError(Violation(missing, "the configuration has no such section"))
    return chosen


@dataclass(frozen=True, slots=True)
class _Ground:
    """What the agents stand on."""

    settings: Settings
    endpoint: Endpoint
    channel: grpc.aio.Channel

    def pool_cleanup(self, settings: PoolCleanupSettings) -> InTurn:
        turn = Turn(turn_name(PoolCleanup.name), uuid4().hex)
        link = ServerLink(self.channel, turn)
        return self._in_turn(PoolCleanup(settings, link, now), turn, link)

    def drain_controller(self, settings: DrainControllerSettings) -> InTurn:
        turn = Turn(turn_name(DrainController.name, settings.queues), uuid4().hex)
        link = ServerLink(self.channel, turn)
        return self._in_turn(DrainController(settings, link, RealPause()), turn, link)

    def racer(self, settings: RacerSettings) -> InTurn:
        turn = Turn(turn_name(Racer.name), uuid4().hex)
        link = ServerRaceLink(self.channel, turn, free_slots_wanted=settings.needs_free_slot)
        return self._in_turn(Racer(settings, link), turn, ServerLink(self.channel, turn))

    def site_director(self, settings: SiteDirectorSettings) -> InTurn:
        folders = GlideinFolders(settings.folder / "pilots", {_CA_NAME: ca} if (ca := self.settings.ca_file) else {})
        folders.open()
        ce_types = [each for system in settings.batch_systems.values() for each in system.ce_types]
        # A director that starts again in its folder is the same copy: it goes on at once.
        turn = Turn(turn_name(SiteDirector.name, settings.queues, ce_types), folders.copy_id())
        link = ServerLink(self.channel, turn)
        systems = {name: _batch_system(name, each, folders.root) for name, each in settings.batch_systems.items()}
        edges = DirectorEdges(folders, link, systems, now)
        lost_after, credential = timedelta(seconds=settings.lost_after_s), timedelta(seconds=settings.credential_s)
        watch = GlideinWatch(edges, Terms(settings.keep_ended, lost_after, credential))
        sender = PilotSender(settings, self._connection(), edges, watch)
        return self._in_turn(SiteDirector(settings, edges, watch, sender), turn, link)

    def job_router(self, settings: JobRouterSettings) -> InTurn:
        origin = sha256(f"{self.settings.server} {settings.name}".encode()).hexdigest()[:_ORIGIN_DIGITS]
        folder = RouterFolder(settings.folder, settings.shared_folder / f"router-{origin}")
        folder.open()
        hooks = RouteHooks(settings.hook_settings, folder.shared / "hooks")
        # A router that starts again in its folder is the same copy: it goes on at once.
        turn = Turn(turn_name(JobRouter.name, [settings.name]), copy_id(settings.folder))
        server = ServerLink(self.channel, turn)
        root = queue_copies_folder(settings.shared_folder)
        systems = {name: _batch_system(name, each, root) for name, each in settings.batch_systems.items()}
        by_ce_type = {ce_type: systems[name] for ce_type, name in names_by_ce_type(settings.batch_systems).items()}
        bounds = Bounds(settings.max_file_bytes, all_bytes=settings.max_output_bytes)
        access = settings.server_access
        targets = ConfiguredPlaces(settings.shared_folder, bounds, by_ce_type, access, server.queues, origin)
        places = Places(targets, now, settings.target_timeout_s)
        link = RouterServerLink(self.channel, turn)
        shared = Shared(settings.name, HeldCopies(), link, places, hooks, now, Errands(ROUND_WAITS_S))
        source = RouteSource(settings.table_settings, now)
        interval = timedelta(seconds=settings.interval_s)
        router = JobRouter(shared, source, folder, interval, settings.patience)
        # Whatever fails, such as its table, the copies are looked after as often as ever.
        return self._in_turn(router, turn, server, Backoff(longest=interval))

    def _in_turn(self, agent: Agent, turn: Turn, link: ServerLink, after_failure: Backoff = USUAL_BACKOFF) -> InTurn:
        copy = Copy(turn, self.settings.turn_s, f"{socket.gethostname()} (process {os.getpid()})")
        return InTurn(agent, copy, link, boot_time_s, RealPause(), after_failure)

    def _connection(self) -> Mapping[str, object]:
        """Return the pilot's settings that lead it to the server."""
        connection: dict[str, object] = {"server": list(self.endpoint.addresses), "tls": self.endpoint.is_encrypted}
        if self.settings.ca_file is not None:
            connection["ca_file"] = _CA_NAME
        return connection


def place_of(ssh: SshSettings | None) -> Place:
    """Return where the commands of a batch system run."""
    return ThisMachine() if ssh is None else SshPlace(ssh)


def _batch_system(name: str, settings: BatchSystemSettings, root: Path) -> BatchSystem:
    """Return a batch system; `root` is where the folders of its jobs are."""
    match settings:
        case LocalBatchSystemSettings():
            return LocalBatchSystem(root, kill_after_s=settings.kill_after_s)
        case SlurmBatchSystemSettings():
            return SlurmBatchSystem(name, settings, place_of(settings.ssh))
        case HtcondorBatchSystemSettings():
            schedd = LibrarySchedd(settings.schedd, settings.collector, timeout_s=settings.timeout_s)
            return HtcondorBatchSystem(name, settings, schedd)
        case _:
            assert_never(settings)
