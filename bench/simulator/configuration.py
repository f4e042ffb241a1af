"""A configuration to try: the operator's own files in one folder.

`tree.toml` (or .json, .yaml, .cfg) is the resource tree, `server.toml` the settings of the server, `agents.toml` those
of the agents with a site director. `model.toml` says how computing elements and nodes behave; it is optional.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from pilotage.errors import InvalidInputError, Violation
from pilotage.resources.formats import read_tree_text
from pilotage.resources.tree_reader import tree_from_mapping
from pilotage.settings import Section, load_section, load_settings
from pilotage_agents.runtime.link import TreeQueue
from pilotage_agents.settings import AgentSettings
from pilotage_agents.site_director.director import served_queues
from pilotage_agents.site_director.planning import Ramp
from pilotage_agents.site_director.queues import ServedQueue
from pilotage_agents.site_director.settings import SiteDirectorSettings
from pilotage_server.core.resources.tree import ActiveTree
from pilotage_server.core.rules import Rules
from pilotage_server.settings import ServerSettings


class GridModel(Section):
    """What the simulator has to assume: computing elements and nodes are not part of Pilotage."""

    start_delay_s: float = Field(300, ge=0, description="The mean time of a pilot in the batch queue.")
    black_hole_nodes: float = Field(0, ge=0, le=1, description="The part of nodes where every job fails.")
    black_hole_fails_after_s: float = Field(10, gt=0, description="How long a job runs on such a node.")
    step_s: float = Field(60, gt=0, le=3600, description="What happens within one step happens at its end.")
    seed: int = Field(1, description="The seed of delays and black holes.")


@dataclass(frozen=True, slots=True)
class Configuration:
    """A configuration; `pool_cores` = the cores of all pilots that the queues admit."""

    tree: ActiveTree
    rules: Rules
    director: SiteDirectorSettings
    served: tuple[ServedQueue, ...]
    model: GridModel

    @property
    def ramp(self) -> Ramp:
        """How fast queues grow."""
        return Ramp(self.director.ramp_start, self.director.ramp_factor)

    @property
    def pool_cores(self) -> int:
        """The cores of all pilots that the queues admit; queues without a limit do not count."""
        limits = ((queue.facts.max_total, queue.facts.pilot.cpus or 1) for queue in self.served)
        return sum(pilots * cpus for pilots, cpus in limits if pilots is not None)


def read_configuration(folder: Path) -> Configuration:
    """Read the files of a folder; raises InvalidInputError with every fault and its place."""
    trees = sorted(folder.glob("tree.*"))
    if len(trees) != 1:
        raise InvalidInputError(Violation(str(folder), f"has {len(trees)} files tree.*; put one resource tree there"))
    tree = tree_from_mapping(read_tree_text(trees[0].read_text(), trees[0].name))[0]
    agents = load_settings(AgentSettings, folder / "agents.toml", {})
    if agents.site_director is None:
        raise InvalidInputError(Violation(str(folder / "agents.toml"), "has no section site_director; add one"))
    model = folder / "model.toml"
    return configuration_of(
        ActiveTree(1, tree),
        load_settings(ServerSettings, folder / "server.toml", {}).rules(),
        agents.site_director,
        load_section(GridModel, model) if model.exists() else GridModel(),
    )


def configuration_of(tree: ActiveTree, rules: Rules, director: SiteDirectorSettings, model: GridModel) -> Configuration:
    """Return the configuration of these parts."""
    views = tree.view_for(None)
    queues = [TreeQueue(id_, queue.is_enabled(), queue.parameters()) for id_, queue in views.items()]
    return Configuration(tree, rules, director, served_queues(director, queues), model)
