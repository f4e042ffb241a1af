"""Templates and files in the database: descriptions, once for all jobs of an array, uploads, inputs and outputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, case, func, select, update
from sqlmodel import Session

from pilotage.errors import NotFoundError
from pilotage.job_description import InputFile, JobDescription
from pilotage.values.accounts import Account
from pilotage_server.core.identity import Holder
from pilotage_server.core.jobs.descriptions import description_from_json
from pilotage_server.core.jobs.files import OutputFile
from pilotage_server.storage.attempts import ATTEMPTS, AttemptKey
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.conditions import one_of
from pilotage_server.storage.database.sql import insert_if_absent
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.jobs import chunks

TEMPLATES = metadata.tables["templates"]
INPUT_FILES = metadata.tables["input_files"]


@dataclass(frozen=True, slots=True)
class NewTemplate:
    """A description to store as canonical text, its input files, the number of its jobs, and their trace context."""

    text: str
    input_files: Sequence[InputFile] = ()
    jobs: int = 1
    traceparent: str = ""


def insert_templates(session: Session, account: Account, new: Sequence[NewTemplate]) -> Sequence[int]:
    """Store templates of an account with the input files that they name, and return their ids in order."""
    columns: dict[str, Sequence[Any]] = {
        "owner": [account.owner] * len(new),
        "vo": [account.vo] * len(new),
        "group": [account.group] * len(new),
        "description_json": [one.text for one in new],
        "jobs": [one.jobs for one in new],
        "traceparent": [one.traceparent for one in new],
    }
    ids = sql.insert_numbered_rows(session, TEMPLATES, columns)
    files = [(template_id, file) for template_id, one in zip(ids, new, strict=True) for file in one.input_files]
    if files:
        named: dict[str, list[Any]] = {
            "template_id": [template_id for template_id, _ in files],
            "name": [file.name for _, file in files],
            "checksum": [file.checksum for _, file in files],
        }
        sql.insert_rows(session, INPUT_FILES, named)
    return ids


def release_templates(session: Session, gone: Mapping[int, int]) -> None:
    """Reduce the numbers of jobs of templates; remove templates without jobs, with their input files.

    Rows are locked in the order of ids, so that transactions never wait for each other in a circle.
    """
    sql.execute_many(session, _FEWER, [(count, template_id) for template_id, count in sorted(gone.items())])
    unused = sql.rows(session, _UNUSED, list(gone))
    if unused:
        sql.execute(session, _DELETE_FILES, [template_id for (template_id,) in unused])


_FEWER = "UPDATE templates SET jobs = jobs - ? WHERE id = ?"
_UNUSED = "DELETE FROM templates WHERE id = ANY(?) AND jobs <= 0 RETURNING id"
_DELETE_FILES = "DELETE FROM input_files WHERE template_id = ANY(?)"


class SizedDescription(NamedTuple):
    """A description, the length of its canonical text in characters, and the trace context of its submission."""

    description: JobDescription
    size: int
    traceparent: str


def load_descriptions(session: Session, template_ids: Iterable[int]) -> dict[int, JobDescription]:
    """Return the descriptions by the ids of their templates."""
    return {id_: kept.description for id_, kept in load_sized_descriptions(session, template_ids).items()}


def load_sized_descriptions(session: Session, template_ids: Iterable[int]) -> dict[int, SizedDescription]:
    """Return the descriptions and their sizes by the ids of their templates."""
    columns = TEMPLATES.c.description_json, TEMPLATES.c.traceparent
    return {id_: _kept(text, traceparent) for id_, text, traceparent in _found(session, template_ids, *columns)}


def load_small_descriptions(
    session: Session, template_ids: Iterable[int], most: int
) -> dict[int, SizedDescription | int]:
    """Return the same, but only the sizes of descriptions with more than `most` characters."""
    size = func.length(TEMPLATES.c.description_json)
    columns = size, case((size <= most, TEMPLATES.c.description_json)), TEMPLATES.c.traceparent
    return {
        id_: characters if text is None else _kept(text, traceparent)
        for id_, characters, text, traceparent in _found(session, template_ids, *columns)
    }


def _kept(text: str, traceparent: str) -> SizedDescription:
    return SizedDescription(description_from_json(text), len(text), traceparent)


def _found(session: Session, template_ids: Iterable[int], *columns: ColumnElement[Any]) -> Iterator[Any]:
    for chunk in chunks(sorted(set(template_ids))):
        yield from session.execute(select(TEMPLATES.c.id, *columns).where(one_of(TEMPLATES.c.id, chunk)))


def load_description(session: Session, template_id: int) -> JobDescription:
    """Return the description of one template; raises NotFoundError."""
    found = load_descriptions(session, [template_id])
    if template_id not in found:
        raise NotFoundError("description", str(template_id))
    return found[template_id]


def load_traceparent(session: Session, template_id: int) -> str:
    """Return the trace context of the submission of a template's jobs; "" = it is unknown."""
    return next((text for _, text in _found(session, [template_id], TEMPLATES.c.traceparent)), "")


_HAS_IGNORED = TEMPLATES.c.description_json.like('%"ignored":["%')
"""In the text of a value the quotes are escaped, so only the field is found."""


def load_ignored(session: Session, template_ids: Iterable[int]) -> dict[int, tuple[str, ...]]:
    """Return the ignored statements of those descriptions that have any, by the ids of their templates."""
    found: dict[int, tuple[str, ...]] = {}
    for chunk in chunks(sorted(set(template_ids))):
        query = select(TEMPLATES.c.id, TEMPLATES.c.description_json).where(one_of(TEMPLATES.c.id, chunk), _HAS_IGNORED)
        found |= {id_: description_from_json(text).ignored for id_, text in session.execute(query)}
    return found


STORED = metadata.tables["stored_files"]
OUTPUTS = metadata.tables["output_files"]


def _of(holder: Holder) -> ColumnElement[bool]:
    return (STORED.c.vo == holder.vo) & (STORED.c.owner == holder.owner)


def sizes_of(session: Session, holder: Holder, checksums: Iterable[str]) -> dict[str, int]:
    """Return the sizes in bytes of those contents that the holder has uploaded."""
    found: dict[str, int] = {}
    for chunk in chunks(sorted(set(checksums))):
        query = select(STORED.c.checksum, STORED.c.size).where(one_of(STORED.c.checksum, chunk), _of(holder))
        found |= {row.checksum: row.size for row in session.execute(query)}
    return found


def stored_bytes(session: Session, holder: Holder) -> int:
    """Return the bytes of the holder's uploads; without an owner, those of the whole VO."""
    query = select(func.coalesce(func.sum(STORED.c.size), 0)).where(STORED.c.vo == holder.vo)
    if holder.owner:
        query = query.where(STORED.c.owner == holder.owner)
    return int(session.execute(query).scalar_one())


def refresh_stored(session: Session, holder: Holder, checksums: Iterable[str], now: datetime) -> None:
    """Renew the times of the holder's uploads, so that they are kept until a job uses them."""
    for chunk in chunks(sorted(checksums)):
        condition = one_of(STORED.c.checksum, chunk) & _of(holder)
        session.execute(update(STORED).where(condition).values(stored=now))


def insert_stored(session: Session, holder: Holder, checksum: str, size: int, now: datetime) -> None:
    """Record that the holder has uploaded a content; repetitions have no effect."""
    row = {"checksum": checksum, "vo": holder.vo, "owner": holder.owner, "size": size, "stored": now}
    if not insert_if_absent(session, STORED, row):
        refresh_stored(session, holder, [checksum], now)


def insert_outputs(session: Session, left: Sequence[tuple[AttemptKey, OutputFile]]) -> None:
    """Store the output files of attempts."""
    columns: sql.Columns = {
        "job_id": [job_id for (job_id, _), _ in left],
        "attempt": [attempt for (_, attempt), _ in left],
        "name": [file.name for _, file in left],
        "checksum": [file.checksum for _, file in left],
        "size": [file.size for _, file in left],
        "truncated": [file.truncated for _, file in left],
    }
    sql.insert_rows(session, OUTPUTS, columns)


_OF_JOBS = """
    SELECT job_id, attempt, name, checksum, size, truncated FROM output_files WHERE job_id = ANY(?)
    ORDER BY job_id, attempt, name
"""


def outputs_of(session: Session, job_id: int, attempt: int) -> tuple[OutputFile, ...]:
    """Return the output files of an attempt, by name."""
    key = (job_id, attempt)
    return tuple(outputs_of_many(session, [key]).get(key, ()))


def outputs_of_many(session: Session, keys: Sequence[AttemptKey]) -> dict[AttemptKey, list[OutputFile]]:
    """Return the output files of attempts, each by name; attempts without any are left out."""
    wanted, found = set(keys), dict[AttemptKey, list[OutputFile]]()
    for job_id, attempt, name, checksum, size, truncated in sql.rows(
        session, _OF_JOBS, sorted({key[0] for key in keys})
    ):
        if (job_id, attempt) in wanted:
            kept = OutputFile(name, checksum, size, bool(truncated))
            found.setdefault((job_id, attempt), []).append(kept)
    return found


def last_ended_attempt(session: Session, job_id: int) -> int:
    """Return the job's last attempt that has ended; 0 = none has."""
    query = select(func.max(ATTEMPTS.c.attempt)).where(ATTEMPTS.c.job_id == job_id, ATTEMPTS.c.ended.is_not(None))
    return session.execute(query).scalar_one() or 0


def brings(session: Session, template_id: int, checksum: str) -> bool:
    """Return whether this content is an input file of the template."""
    conditions = INPUT_FILES.c.template_id == template_id, INPUT_FILES.c.checksum == checksum
    return session.execute(select(INPUT_FILES.c.name).where(*conditions).limit(1)).first() is not None


def left(session: Session, job_id: int, checksum: str) -> bool:
    """Return whether this content is an output file of the job."""
    conditions = OUTPUTS.c.job_id == job_id, OUTPUTS.c.checksum == checksum
    return session.execute(select(OUTPUTS.c.name).where(*conditions).limit(1)).first() is not None
