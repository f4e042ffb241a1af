"""Input and output files of jobs: uploads, downloads, and outputs of attempts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pilotage.errors import InvalidInputError, NotFoundError, Violation
from pilotage.jobs.file_names import is_checksum
from pilotage.values.attempts import ReportedOutput
from pilotage.values.leadership import Leadership
from pilotage_server.core.identity import Identity, Role, check_turn, holder_of
from pilotage_server.core.jobs.files import MAX_INLINE_BYTES, OutputFile
from pilotage_server.core.jobs.record import router_stamp
from pilotage_server.operations.jobs.output import stop_of
from pilotage_server.operations.jobs.queries import visible_job
from pilotage_server.operations.leadership import check_leadership
from pilotage_server.storage.attempts import load_attempts
from pilotage_server.storage.blobs.base import FileStore
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_job
from pilotage_server.storage.submission import templates as stored


@dataclass(frozen=True, slots=True)
class Outputs:
    """The output files of an attempt, by name; `attempt` 0 = none has ended.

    `partial` = how the attempt was stopped, "" = its payload ended by itself.
    """

    attempt: int
    files: tuple[OutputFile, ...]
    partial: str = ""


def find_missing(transaction: Transaction, identity: Identity, checksums: Sequence[str]) -> tuple[str, ...]:
    """Return the contents that the caller must still upload, in the requested order.

    The others count as new, so that retention leaves them for the coming submission. Raises InvalidInputError for an
    invalid SHA-256.
    """
    faults = [
        Violation(f"checksums[{index}]", f"{checksum!r} is no SHA-256 in 64 lower-case hex digits")
        for index, checksum in enumerate(checksums)
        if not is_checksum(checksum)
    ]
    if faults:
        raise InvalidInputError(*faults)
    holder = holder_of(identity)
    present = stored.sizes_of(transaction.session, holder, checksums)
    stored.refresh_stored(transaction.session, holder, present, transaction.now)
    return tuple(dict.fromkeys(checksum for checksum in checksums if checksum not in present))


def check_stored(store: FileStore, checksum: str) -> None:
    """Raise NotFoundError unless a content that was uploaded is in the store: another server may have removed it.

    Call it before `record_upload` and outside of its transaction: an object store may be slow.
    """
    if not store.has(checksum):
        raise NotFoundError("content", checksum)


def record_upload(transaction: Transaction, identity: Identity, checksum: str, size: int) -> None:
    """Record an upload of the caller."""
    stored.insert_stored(transaction.session, holder_of(identity), checksum, size, transaction.now)


def check_download(
    transaction: Transaction, identity: Identity, job_id: int, checksum: str, leadership: Leadership | None = None
) -> None:
    """Raise unless the caller may download this content of this job.

    Owners and operators may download inputs and outputs. A pilot or a leading job router may download the inputs of a
    job whose lease it holds.

    Raises
    ------
    NotFoundError
        There is no such content that the caller may download.
    LeadershipLostError
        The agent no longer leads.
    """
    if identity.pilot is not None:
        allowed = _is_brought(transaction, job_id, checksum, identity.pilot.stamp)
    elif leadership is not None and Role.ROUTER in identity.roles:
        check_turn(identity, leadership.agent)
        check_leadership(transaction, leadership)
        allowed = _is_brought(transaction, job_id, checksum, router_stamp(leadership.agent))
    else:
        job = visible_job(transaction, identity, job_id)
        allowed = stored.brings(transaction.session, job.template_id, checksum)
        allowed = allowed or stored.left(transaction.session, job_id, checksum)
    if not allowed:
        raise NotFoundError("content", f"{checksum} of job {job_id}")


def _is_brought(transaction: Transaction, job_id: int, checksum: str, stamp: str) -> bool:
    """Whether the content is an input of the job, and the job's lease is held under this stamp."""
    job = load_job(transaction.session, job_id)
    return job.is_leased and job.pilot_stamp == stamp and stored.brings(transaction.session, job.template_id, checksum)


def list_outputs(transaction: Transaction, identity: Identity, job_id: int, attempt: int = 0) -> Outputs:
    """Return the output files of an attempt; `attempt` 0 = the last one that ended. Raises NotFoundError."""
    visible_job(transaction, identity, job_id)
    if attempt and not load_attempts(transaction.session, [(job_id, attempt)]):
        raise NotFoundError("attempt", f"{attempt} of job {job_id}")
    number = attempt or stored.last_ended_attempt(transaction.session, job_id)
    files = stored.outputs_of(transaction.session, job_id, number)
    return Outputs(number, files, stop_of(transaction, job_id, number))


def store_contents(store: FileStore, files: Sequence[ReportedOutput], where: str = "output_files") -> None:
    """Store the contents inside a report on disk; call it before the report is recorded.

    Raises InvalidInputError if a content does not match its report.
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
