"""What the parts of a job router share."""

from __future__ import annotations

from dataclasses import dataclass

from pilotage.clock import Clock
from pilotage_agents.core.copies.held_copies import HeldCopies
from pilotage_agents.router.errands import Errands
from pilotage_agents.router.route_edges import RouterLink
from pilotage_agents.router.route_hooks import RouteHooks
from pilotage_agents.router.route_places import Places


@dataclass(frozen=True, slots=True)
class Shared:
    """The router's name, its copies, the world around it, and what is done there beside the rounds."""

    name: str
    copies: HeldCopies
    link: RouterLink
    places: Places
    hooks: RouteHooks
    clock: Clock
    errands: Errands
