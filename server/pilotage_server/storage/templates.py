"""Templates in the database: what was submitted, once for all jobs of an array."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import case, func, select
from sqlalchemy.sql.elements import ColumnElement
from sqlmodel import Session

from pilotage.errors import NotFoundError
from pilotage.job_description import InputFile, JobDescription
from pilotage_server.core.accounting import Account
from pilotage_server.core.description_json import description_from_json
from pilotage_server.storage import bulk, many_rows
from pilotage_server.storage.jobs import chunks
from pilotage_server.storage.tables import metadata

TEMPLATES = metadata.tables["templates"]
INPUT_FILES = metadata.tables["input_files"]


@dataclass(frozen=True, slots=True)
class NewTemplate:
    """A description to be kept, as its canonical text, the files that it names, and how many jobs there are of it."""

    text: str
    input_files: Sequence[InputFile] = ()
    jobs: int = 1


def insert_templates(session: Session, account: Account, new: Sequence[NewTemplate]) -> Sequence[int]:
    """Store templates of an account with the input files that they name, and return their ids in order."""
    columns: dict[str, Sequence[Any]] = {
        "owner": [account.owner] * len(new),
        "vo": [account.vo] * len(new),
        "group": [account.group] * len(new),
        "description_json": [one.text for one in new],
        "jobs": [one.jobs for one in new],
    }
    ids = many_rows.add_numbered(session, TEMPLATES, columns)
    files = [(template_id, file) for template_id, one in zip(ids, new, strict=True) for file in one.input_files]
    if files:
        named: dict[str, list[Any]] = {
            "template_id": [template_id for template_id, _ in files],
            "name": [file.name for _, file in files],
            "checksum": [file.checksum for _, file in files],
        }
        many_rows.add(session, INPUT_FILES, named)
    return ids


def release_templates(session: Session, gone: Mapping[int, int]) -> None:
    """Take note that templates have fewer jobs now, by their ids; what no job has any more goes, with its input files.

    Rows are taken in the order of their ids, so that two who do this never wait for each other in a circle.
    """
    bulk.many(session, _FEWER, [(count, template_id) for template_id, count in sorted(gone.items())])
    unused = bulk.rows(session, _UNUSED, list(gone))
    if unused:
        bulk.once(session, _DELETE_FILES, [template_id for (template_id,) in unused])


_FEWER = "UPDATE templates SET jobs = jobs - ? WHERE id = ?"
_UNUSED = "DELETE FROM templates WHERE id = ANY(?) AND jobs <= 0 RETURNING id"
_DELETE_FILES = "DELETE FROM input_files WHERE template_id = ANY(?)"


class KeptDescription(NamedTuple):
    """A description and the characters of its canonical text."""

    description: JobDescription
    size: int


def load_descriptions(session: Session, template_ids: Iterable[int]) -> dict[int, JobDescription]:
    """Return the descriptions by the ids of their templates."""
    return {id_: kept.description for id_, kept in load_kept_descriptions(session, template_ids).items()}


def load_kept_descriptions(session: Session, template_ids: Iterable[int]) -> dict[int, KeptDescription]:
    """Return the descriptions and their sizes by the ids of their templates."""
    return {id_: _kept(text) for id_, text in _found(session, template_ids, TEMPLATES.c.description_json)}


def load_small_descriptions(
    session: Session, template_ids: Iterable[int], most: int
) -> dict[int, KeptDescription | int]:
    """Return the same, but of descriptions with more characters than `most` only how many they have."""
    size = func.length(TEMPLATES.c.description_json)
    rows = _found(session, template_ids, size, case((size <= most, TEMPLATES.c.description_json)))
    return {id_: characters if text is None else _kept(text) for id_, characters, text in rows}


def _kept(text: str) -> KeptDescription:
    return KeptDescription(description_from_json(text), len(text))


def _found(session: Session, template_ids: Iterable[int], *columns: ColumnElement[Any]) -> Iterator[Any]:
    for chunk in chunks(sorted(set(template_ids))):
        yield from session.execute(select(TEMPLATES.c.id, *columns).where(TEMPLATES.c.id.in_(chunk)))


def load_description(session: Session, template_id: int) -> JobDescription:
    """Return the description of one template; raises NotFoundError."""
    found = load_descriptions(session, [template_id])
    if template_id not in found:
        raise NotFoundError("description", str(template_id))
    return found[template_id]
