"""Descriptions that were needed lately, so that the jobs of one template are not all read from the database."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from pilotage.job_description import JobDescription
from pilotage_server.core.remembered import MOST_BYTES, MOST_REMEMBERED, Remembered
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.templates import KeptDescription, load_kept_descriptions, load_small_descriptions

_SMALL = 16 * 1024
"""A description of no more characters may be read only to know its size: it is likely to be needed."""


class Descriptions:
    """A memory of descriptions by the ids of their templates; a template never changes, nor is its id given again."""

    def __init__(self, most: int = MOST_REMEMBERED, most_bytes: int = MOST_BYTES) -> None:
        self._kept = Remembered[int, KeptDescription](most, most_bytes)

    def of(self, unit: Unit, template_ids: Collection[int]) -> Mapping[int, JobDescription]:
        """Return the descriptions of these templates."""
        known = self._kept.known
        found = {template_id: known[template_id].description for template_id in template_ids if template_id in known}
        if len(found) < len(template_ids):
            read = self._read(unit, [each for each in template_ids if each not in found])
            found |= {template_id: kept.description for template_id, kept in read.items()}
        return found

    def sizes(self, unit: Unit, template_ids: Collection[int]) -> Mapping[int, int]:
        """Return how many characters the descriptions of these templates have; large ones are not read for that."""
        known = self._kept.known
        found = {template_id: known[template_id].size for template_id in template_ids if template_id in known}
        if len(found) < len(template_ids):
            unknown = [each for each in template_ids if each not in found]
            for template_id, read in load_small_descriptions(unit.session, unknown, _SMALL).items():
                if isinstance(read, int):
                    found[template_id] = read
                else:
                    found[template_id] = read.size
                    self._kept.put(template_id, read, read.size)
        return found

    def _read(self, unit: Unit, template_ids: Iterable[int]) -> Mapping[int, KeptDescription]:
        read = load_kept_descriptions(unit.session, template_ids)
        for template_id, kept in read.items():
            self._kept.put(template_id, kept, kept.size)
        return read
