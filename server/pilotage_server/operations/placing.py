"""Places for many jobs in one transaction: those that nothing tells apart are placed once."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from pilotage.job_description import JobDescription
from pilotage_server.core.description_json import description_to_json
from pilotage_server.operations.task_queueing import Placement, place
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit


@dataclass(frozen=True, slots=True)
class Placer:
    """Finds task queues and pools, and remembers them as long as its transaction lasts."""

    unit: Unit
    world: World
    _placed: dict[tuple[str, str, str, str], Placement] = field(default_factory=dict)

    def place(self, owner: str, vo: str, group: str, description: JobDescription) -> Placement:
        """Return where a job of this description waits; raises as `task_queueing.place`."""
        key = (owner, vo, group, _what_places(description))
        placement = self._placed.get(key)
        if placement is None:
            placement = self._placed[key] = place(self.unit, self.world, owner, vo, group, description)
        return placement


def _what_places(description: JobDescription) -> str:
    """Return a text that is equal only for descriptions that belong in one place: all but what a payload sees."""
    asked = replace(
        description,
        executable="",
        arguments="",
        name="",
        environment={},
        stdin=None,
        stdout=None,
        stderr=None,
        input_files=(),
        output_files=(),
        lease=None,
        priority=0,
        hold=False,
        count=None,
        warnings=(),
    )
    return description_to_json(asked)
