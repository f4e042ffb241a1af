"""What the parts of a site director share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pilotage.clock import Clock
from pilotage_agents.batch_systems.base import BatchSystem
from pilotage_agents.glideins.glidein_folders import GlideinFolders
from pilotage_agents.link import DirectorLink


@dataclass(frozen=True, slots=True)
class DirectorEdges:
    """Its folders and the world around it; `batch_systems` by the names that the settings give them."""

    folders: GlideinFolders
    link: DirectorLink
    batch_systems: Mapping[str, BatchSystem]
    clock: Clock
