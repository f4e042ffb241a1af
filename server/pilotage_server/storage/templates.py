"""Templates in the database: what was submitted, once for all jobs of an array."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import insert, select
from sqlmodel import Session

from pilotage.errors import NotFoundError
from pilotage.job_description import JobDescription
from pilotage_server.core.description_json import description_from_json, description_to_json
from pilotage_server.storage.jobs import chunks
from pilotage_server.storage.tables import metadata

TEMPLATES = metadata.tables["templates"]
INPUT_FILES = metadata.tables["input_files"]


@dataclass(frozen=True, slots=True)
class NewTemplate:
    """A description to be kept, and whose it is."""

    owner: str
    vo: str
    group: str
    description: JobDescription


def insert_templates(session: Session, new: Sequence[NewTemplate]) -> list[int]:
    """Store the templates with the input files that they name, and return their ids in order."""
    rows = [
        {
            "owner": one.owner,
            "vo": one.vo,
            "group": one.group,
            "description_json": description_to_json(one.description),
        }
        for one in new
    ]
    statement = insert(TEMPLATES).returning(TEMPLATES.c.id, sort_by_parameter_order=True)
    ids = list(session.connection().execute(statement, rows).scalars())
    files = [
        {"template_id": template_id, "name": file.name, "checksum": file.checksum}
        for template_id, one in zip(ids, new, strict=True)
        for file in one.description.input_files
    ]
    if files:
        session.connection().execute(insert(INPUT_FILES), files)
    return ids


def load_descriptions(session: Session, template_ids: Iterable[int]) -> dict[int, JobDescription]:
    """Return the descriptions by the ids of their templates."""
    found: dict[int, JobDescription] = {}
    for chunk in chunks(sorted(set(template_ids))):
        query = select(TEMPLATES.c.id, TEMPLATES.c.description_json).where(TEMPLATES.c.id.in_(chunk))
        found |= {template_id: description_from_json(text) for template_id, text in session.execute(query)}
    return found


def load_description(session: Session, template_id: int) -> JobDescription:
    """Return the description of one template; raises NotFoundError."""
    found = load_descriptions(session, [template_id])
    if template_id not in found:
        raise NotFoundError("description", str(template_id))
    return found[template_id]
