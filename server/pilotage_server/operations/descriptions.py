"""Descriptions that were needed lately, so that the jobs of one template are not all read from the database."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pilotage.job_description import JobDescription
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.templates import load_descriptions

MOST_REMEMBERED = 20_000


class Descriptions:
    """A memory of descriptions by the ids of their templates; a template never changes, nor is its id given again."""

    def __init__(self, most: int = MOST_REMEMBERED) -> None:
        self._most = most
        self._known: dict[int, JobDescription] = {}

    def of(self, unit: Unit, template_ids: Collection[int]) -> Mapping[int, JobDescription]:
        """Return the descriptions of these templates."""
        known = self._known
        found = {template_id: known[template_id] for template_id in template_ids if template_id in known}
        if len(found) < len(template_ids):
            read = load_descriptions(unit.session, [each for each in template_ids if each not in found])
            if len(known) + len(read) > self._most:
                known = self._known = {}  # a new one, as other threads may be reading the old
            known.update(read)
            found |= read
        return found
