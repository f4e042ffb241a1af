"""Files of jobs: what is missing, what has come, who may fetch what, and what attempts leave behind."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pilotage.errors import InvalidInputError, NotFoundError, Violation
from pilotage_server.core.identity import Identity, Role
from pilotage_server.core.job_files import MAX_INLINE_BYTES, OutputFile, ReportedOutput, is_checksum
from pilotage_server.core.routes import stamp_of
from pilotage_server.core.turns import Turn
from pilotage_server.operations.query_jobs import visible_job
from pilotage_server.operations.turns import check_turn
from pilotage_server.storage import files as stored
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.file_store import FileStore
from pilotage_server.storage.files import Holder
from pilotage_server.storage.jobs import load_job


@dataclass(frozen=True, slots=True)
class Outputs:
    """What an attempt left behind, by name; `attempt` 0 = none has ended."""

    attempt: int
    files: tuple[OutputFile, ...]


def holder_of(identity: Identity) -> Holder:
    """Return under whose name the caller's uploads stand."""
    return Holder("", f"pilot:{identity.pilot.stamp}") if identity.pilot else Holder(identity.vo, identity.owner)


def find_missing(unit: Unit, identity: Identity, checksums: Sequence[str]) -> tuple[str, ...]:
    """Return which contents the caller has not uploaded yet, in the order asked.

    Those that he has count as new from now on, so that retention leaves them for the submission to come.
    Raises InvalidInputError where one is no SHA-256.
    """
    faults = [
        Violation(f"checksums[{index}]", f"{checksum!r} is no SHA-256 in 64 lower-case hex digits")
        for index, checksum in enumerate(checksums)
        if not is_checksum(checksum)
    ]
    if faults:
        raise InvalidInputError(*faults)
    holder = holder_of(identity)
    there = stored.sizes_of(unit.session, holder, checksums)
    stored.refresh_stored(unit.session, holder, there, unit.now)
    return tuple(dict.fromkeys(checksum for checksum in checksums if checksum not in there))


def record_upload(unit: Unit, store: FileStore, identity: Identity, checksum: str, size: int) -> None:
    """Note that the caller has uploaded a content, which the store has on disk already."""
    if not store.has(checksum):
        raise NotFoundError("content", checksum)
    stored.insert_stored(unit.session, holder_of(identity), checksum, size, unit.now)


def find_download(unit: Unit, identity: Identity, job_id: int, checksum: str, turn: Turn | None = None) -> None:
    """Return when the caller may fetch this content of this job.

    Owners and operators fetch what a job brings and what it left; a pilot fetches what a job brings that it
    holds the lease of, and so does a job router in its turn.

    Raises
    ------
    NotFoundError
        There is no such content that the caller may fetch.
    TurnLostError
        The agent does not have the turn that it names.
    """
    if identity.pilot is not None:
        allowed = _is_brought(unit, job_id, checksum, identity.pilot.stamp)
    elif turn is not None and Role.AGENT in identity.roles:
        check_turn(unit, turn)
        allowed = _is_brought(unit, job_id, checksum, stamp_of(turn.agent))
    else:
        job = visible_job(unit, identity, job_id)
        allowed = stored.brings(unit.session, job.template_id, checksum)
        allowed = allowed or stored.left(unit.session, job_id, checksum)
    if not allowed:
        raise NotFoundError("content", f"{checksum} of job {job_id}")


def _is_brought(unit: Unit, job_id: int, checksum: str, stamp: str) -> bool:
    """Whether the job brings this content, and its lease is held under this stamp."""
    job = load_job(unit.session, job_id)
    return job.is_leased and job.pilot_stamp == stamp and stored.brings(unit.session, job.template_id, checksum)


def list_outputs(unit: Unit, identity: Identity, job_id: int, attempt: int = 0) -> Outputs:
    """Return what an attempt left behind; `attempt` 0 = the last that ended. Raises NotFoundError."""
    visible_job(unit, identity, job_id)
    asked = attempt or stored.last_ended_attempt(unit.session, job_id)
    return Outputs(asked, stored.outputs_of(unit.session, job_id, asked))


def keep_contents(store: FileStore, files: Sequence[ReportedOutput], where: str = "output_files") -> None:
    """Put the contents that came inside a report on disk; comes before the report is recorded.

    Raises InvalidInputError where a content is not what its report says.
    """
    for index, file in enumerate(files):
        if file.content is not None:
            _keep_content(store, file, f"{where}[{index}]")


def _keep_content(store: FileStore, file: ReportedOutput, where: str) -> None:
    content = file.content or b""
    if len(content) > MAX_INLINE_BYTES:
        why = f"{len(content)} bytes are more than the {MAX_INLINE_BYTES} of a report; upload the file"
        raise InvalidInputError(Violation(f"{where}.content", why))
    if len(content) != file.size or store.put(content) != file.checksum:
        raise InvalidInputError(Violation(f"{where}.content", "does not have the size and the checksum stated"))
