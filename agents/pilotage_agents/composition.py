"""Builds the agents that a configuration asks for."""

from __future__ import annotations

from collections.abc import Mapping

import grpc.aio

from pilotage.channel import Endpoint
from pilotage.clock import now
from pilotage.errors import InvalidInputError, Violation
from pilotage_agents.batch_systems.base import BatchSystem
from pilotage_agents.batch_systems.local import LocalBatchSystem
from pilotage_agents.glidein_folders import GlideinFolders
from pilotage_agents.glidein_watch import GlideinWatch
from pilotage_agents.loop import Agent
from pilotage_agents.pilot_sender import PilotSender
from pilotage_agents.pool_cleanup import PoolCleanup
from pilotage_agents.server_link import ServerLink
from pilotage_agents.settings import Settings, SiteDirectorSettings
from pilotage_agents.site_director import SiteDirector

SITE_DIRECTOR, POOL_CLEANUP = "site-director", "pool-cleanup"


def build_agents(
    settings: Settings, wanted: str | None, endpoint: Endpoint, channel: grpc.aio.Channel
) -> tuple[Agent, ...]:
    """Return the agent that is `wanted`, or with None every agent that the settings have a section for.

    Raises InvalidInputError when there is no section for it, or for none at all.
    """
    link = ServerLink(channel)
    agents: dict[str, Agent] = {}
    if settings.site_director is not None:
        agents[SITE_DIRECTOR] = _site_director(settings.site_director, _connection(settings, endpoint), link)
    if settings.pool_cleanup is not None:
        agents[POOL_CLEANUP] = PoolCleanup(settings.pool_cleanup, link, now)
    chosen = tuple(agent for name, agent in agents.items() if wanted in (None, name))
    if not chosen:
        missing = (wanted or SITE_DIRECTOR).replace("-", "_")
        raise InvalidInputError(Violation(missing, "the configuration has no such section"))
    return chosen


def _site_director(settings: SiteDirectorSettings, connection: Mapping[str, object], link: ServerLink) -> SiteDirector:
    folders = GlideinFolders(settings.folder / "pilots")
    folders.open()
    systems: dict[str, BatchSystem] = {
        name: LocalBatchSystem(folders.root, kill_after_s=each.kill_after_s)
        for name, each in settings.batch_systems.items()
    }
    watch = GlideinWatch(folders, link, systems, now, keep_ended=settings.keep_ended)
    sender = PilotSender(settings, connection, link, folders, watch)
    return SiteDirector(settings, link, systems, watch, sender, now)


def _connection(settings: Settings, endpoint: Endpoint) -> dict[str, object]:
    """Return the pilot's settings that lead it to the server."""
    connection: dict[str, object] = {"server": list(endpoint.addresses), "tls": endpoint.is_encrypted}
    if settings.ca_file is not None:
        connection["ca_file"] = str(settings.ca_file)
    return connection
