"""The resource tree as its operators wrote it: sites, their computing elements, and their queues.

Frozen values in the order and spelling of the text. `pilotage.resources.inheritance` computes effective values,
`pilotage.resources.tree_reader` reads and validates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pilotage.job_description import Value
from pilotage.resources.parameters import SHIPPED, ParameterDeclarations
from pilotage.resources.queue_id import QueueId as QueueId
from pilotage.text import fold

VOS = "VOs"
"""The parameter with the access list."""

ENABLED = "Enabled"
"""The flag that disables a queue if it is false."""

TAGS = "Tags"
REQUIRED_TAGS = "RequiredTags"
"""The tags that a job must ask for in `TAGS` to run on a queue."""

PLATFORM = "Platform"
CPU_TIME = "CPUTime"
MAX_WALL_TIME = "MaxWallTime"
"""A queue's counterparts of the job's reserved keywords, and of its wall time."""

FOR_VO = "ForVO"
"""The section with the overlays of a level."""


class Level(StrEnum):
    """The levels of the tree, the outermost first."""

    DEFAULTS = "defaults"
    SITE = "site"
    CE = "ce"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class Origin:
    """The origin of a value: a level, or the overlay of that level for `vo` (None = no overlay)."""

    level: Level
    vo: str | None = None

    def __str__(self) -> str:
        """Return the origin in words."""
        return f"{self.level} for VO {self.vo}" if self.vo else str(self.level)


Parameters = Mapping[str, Value]
"""Values by name as written; no two names differ in letter case alone."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """The values that a level states for one VO."""

    vo: str
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class StatedParameters:
    """The values that a level states: for all VOs, and the overlays by folded name of the VO."""

    parameters: Parameters = field(default_factory=dict)
    for_vo: Mapping[str, Overlay] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """A batch queue of a computing element."""

    name: str
    stated: StatedParameters = StatedParameters()


@dataclass(frozen=True, slots=True)
class ComputingElement:
    """A computing element with its queues, in the order of the text."""

    name: str
    stated: StatedParameters = StatedParameters()
    queues: tuple[Queue, ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """A site with its computing elements, in the order of the text."""

    name: str
    stated: StatedParameters = StatedParameters()
    ces: tuple[ComputingElement, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceTree:
    """One version of all resources.

    `declarations` are the built-in ones and those of the tree. `platforms` maps the folded name of a platform to the
    folded names of the other platforms whose jobs it runs.
    """

    sites: tuple[Site, ...] = ()
    declarations: ParameterDeclarations = SHIPPED
    defaults: StatedParameters = StatedParameters()
    platforms: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def __contains__(self, queue: object) -> bool:
        return any(queue == known for known in self.queue_ids())

    def queue_ids(self) -> Iterator[QueueId]:
        """Yield the queues in the order of the text."""
        for site in self.sites:
            for ce in site.ces:
                for queue in ce.queues:
                    yield QueueId(site.name, ce.name, queue.name)

    def vos_with_overlays(self) -> frozenset[str]:
        """Return the folded names of the VOs with an overlay anywhere in the tree."""
        statements = [self.defaults]
        for site in self.sites:
            statements.append(site.stated)
            for ce in site.ces:
                statements += [ce.stated, *(queue.stated for queue in ce.queues)]
        return frozenset(fold(vo) for states in statements for vo in states.for_vo)
