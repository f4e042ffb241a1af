"""The resource tree as its operators wrote it: sites, their computing elements, and the queues of these.

Rules
-----
Frozen values; order and spelling are those of the text. What a queue offers in effect, by inheritance and as
a VO sees it, is `pilotage.effective`; reading and refusing is `pilotage.tree_reading`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, Self

from pilotage.errors import InvalidInputError, Violation
from pilotage.folding import fold
from pilotage.job_description import Value
from pilotage.parameters import SHIPPED, ParameterDeclarations

VOS = "VOs"
"""The parameter that holds an access list."""

ENABLED = "Enabled"
"""The flag that closes a queue for everyone when it is false."""

TAGS = "Tags"
REQUIRED_TAGS = "RequiredTags"
"""The tags that a job must ask for in `TAGS` to come to a queue at all."""

PLATFORM = "Platform"
CPU_TIME = "CPUTime"
"""What a queue states as the counterparts of the job's reserved keywords."""

FOR_VO = "ForVO"
"""The section that overlays a level's values for single VOs."""


class QueueId(NamedTuple):
    """Where a queue is: its site, its computing element there, and its name in that one's batch system."""

    site: str
    ce: str
    queue: str

    def __str__(self) -> str:
        """Return "site/ce/queue", which `parse` reads."""
        return f"{self.site}/{self.ce}/{self.queue}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the queue that "site/ce/queue" names; raises InvalidInputError for any other text.

        Names of sites and computing elements have no "/", so all that follows the second one is the queue's.
        """
        parts = text.split("/", maxsplit=2)
        if len(parts) != 3 or not all(parts):
            raise InvalidInputError(Violation("", f'"{text}" does not name a queue as SITE/CE/QUEUE'))
        return cls(*parts)


class Level(StrEnum):
    """Where in the tree a value stands, the outermost first."""

    DEFAULTS = "defaults"
    SITE = "site"
    CE = "ce"
    QUEUE = "queue"


@dataclass(frozen=True, slots=True)
class Origin:
    """The place that a value comes from: a level, or the overlay of that level for `vo` (None = for all)."""

    level: Level
    vo: str | None = None

    def __str__(self) -> str:
        """Return the place in words."""
        return f"{self.level} for VO {self.vo}" if self.vo else str(self.level)


Parameters = Mapping[str, Value]
"""Values by name as written; no two names differ in letter case alone."""


@dataclass(frozen=True, slots=True)
class Overlay:
    """The values that one level states for one VO."""

    vo: str
    parameters: Parameters


@dataclass(frozen=True, slots=True)
class Statement:
    """What one level states: for all, and beside it for single VOs (by folded name)."""

    parameters: Parameters = field(default_factory=dict)
    for_vo: Mapping[str, Overlay] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Queue:
    """A batch queue of a computing element."""

    name: str
    states: Statement = Statement()


@dataclass(frozen=True, slots=True)
class ComputingElement:
    """A computing element of a site, with its queues in the order of the text."""

    name: str
    states: Statement = Statement()
    queues: tuple[Queue, ...] = ()


@dataclass(frozen=True, slots=True)
class Site:
    """A site, with its computing elements in the order of the text."""

    name: str
    states: Statement = Statement()
    ces: tuple[ComputingElement, ...] = ()


@dataclass(frozen=True, slots=True)
class ResourceTree:
    """One version of all resources.

    `declarations` are the shipped ones and the tree's own. `platforms` gives by folded name of a platform the
    folded names of those whose jobs it runs beside its own.
    """

    sites: tuple[Site, ...] = ()
    declarations: ParameterDeclarations = SHIPPED
    defaults: Statement = Statement()
    platforms: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def __contains__(self, queue: object) -> bool:
        return any(queue == known for known in self.queue_ids())

    def queue_ids(self) -> Iterator[QueueId]:
        """Return the queues in the order of the text."""
        for site in self.sites:
            for ce in site.ces:
                for queue in ce.queues:
                    yield QueueId(site.name, ce.name, queue.name)

    def vos_with_overlays(self) -> frozenset[str]:
        """Return the folded names of the VOs that see other values than everyone, anywhere in the tree."""
        statements = [self.defaults]
        for site in self.sites:
            statements.append(site.states)
            for ce in site.ces:
                statements += [ce.states, *(queue.states for queue in ce.queues)]
        return frozenset(fold(vo) for states in statements for vo in states.for_vo)
