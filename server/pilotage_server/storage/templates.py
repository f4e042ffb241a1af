"""Templates in the database: what was submitted, once for all jobs of an array."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, delete, insert, select, update
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
    """A description to be kept, whose it is, and how many jobs there are of it."""

    owner: str
    vo: str
    group: str
    description: JobDescription
    jobs: int = 1


def insert_templates(session: Session, new: Sequence[NewTemplate]) -> list[int]:
    """Store the templates with the input files that they name, and return their ids in order."""
    rows = [
        {
            "owner": one.owner,
            "vo": one.vo,
            "group": one.group,
            "description_json": description_to_json(one.description),
            "jobs": one.jobs,
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


def release_templates(session: Session, gone: Mapping[int, int]) -> None:
    """Take note that templates have fewer jobs now, by their ids; what no job has any more goes, with its input files.

    Rows are taken in the order of their ids, so that two who do this never wait for each other in a circle.
    """
    rows = [{"template": template_id, "gone": count} for template_id, count in sorted(gone.items())]
    if not rows:
        return
    fewer = update(TEMPLATES).where(TEMPLATES.c.id == bindparam("template"))
    session.connection().execute(fewer.values(jobs=TEMPLATES.c.jobs - bindparam("gone")), rows)
    for chunk in chunks(sorted(gone)):
        unused = delete(TEMPLATES).where(TEMPLATES.c.id.in_(chunk), TEMPLATES.c.jobs <= 0).returning(TEMPLATES.c.id)
        ids = session.connection().execute(unused).scalars().all()
        session.execute(delete(INPUT_FILES).where(INPUT_FILES.c.template_id.in_(ids)))


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
