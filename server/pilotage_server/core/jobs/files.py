"""Output files of jobs, and the limits of submissions, jobs and files.

Reports of pilots are not trusted: a file name must lie inside the job's folder. The content must be part of the report
or an upload of the same pilot; otherwise a pilot could publish other users' files under its job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta

from pilotage.jobs.file_names import fault_of_name
from pilotage.values.attempts import ReportedOutput

MAX_INLINE_BYTES = 64 * 1024
"""A content up to this size may be part of a report."""


@dataclass(frozen=True, slots=True)
class OutputFile:
    """A file that an attempt left behind; `truncated` = the pilot cut it at the size limit."""

    name: str
    checksum: str
    size: int
    truncated: bool = False


MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class JobLimits:
    """Limits of submissions and stored files.

    `max_jobs_per_call` counts the jobs of all arrays of a submission. `max_text` = the longest text of a description,
    in characters. `max_output_bytes` = the sum over the output files of one attempt. `optimizers` = the names of the
    steps of the optimizer chain, in order. `max_live_jobs…` count the jobs that are not final, `max_stored_bytes…` the
    uploads that are kept.
    """

    max_jobs_per_call: int = 1_000_000
    max_descriptions_per_call: int = 20_000
    max_files: int = 10_000
    max_text: int = 1_000_000
    shortest_lease: timedelta = timedelta(seconds=30)
    longest_lease: timedelta = timedelta(days=1)
    max_file_bytes: int = 1024 * MIB
    max_output_bytes: int = 4096 * MIB
    max_live_jobs_of_owner: int = 10_000_000
    max_live_jobs_of_vo: int = 50_000_000
    max_stored_bytes_of_owner: int = 102_400 * MIB
    max_stored_bytes_of_vo: int = 1_024_000 * MIB
    optimizers: tuple[str, ...] = ("sanity", "requirements", "expressions", "task queue")


@dataclass(frozen=True, slots=True)
class Retention:
    """How long what is over is kept; `batch` = most rows that a transaction removes."""

    finished_jobs: timedelta = timedelta(days=30)
    pilots: timedelta = timedelta(days=30)
    agents: timedelta = timedelta(days=3)
    audit: timedelta = timedelta(days=365)
    uploads: timedelta = timedelta(days=1)
    requests: timedelta = timedelta(days=1)
    batch: int = 200


@dataclass(frozen=True, slots=True)
class KeptOutputs:
    """The output files to be stored, and one sentence for each refused file."""

    files: tuple[OutputFile, ...]
    refusals: tuple[str, ...]


def choose_outputs(
    files: Iterable[ReportedOutput],
    uploaded: Mapping[str, int],
    limits: JobLimits,
    before: Iterable[OutputFile] = (),
) -> KeptOutputs:
    """Return which of the files are to be stored; `before` = the files stored earlier.

    `uploaded` maps the checksums of the pilot's uploads to sizes in bytes.
    """
    known = {file.name: file for file in before}
    kept: dict[str, OutputFile] = {}
    refusals: list[str] = []
    total = sum(file.size for file in known.values())
    for file in files:
        stored = known.get(file.name)
        if stored is not None and stored.checksum == file.checksum:
            continue
        size = file.size if file.content is not None else uploaded.get(file.checksum, file.size)
        why = _fault(file, known, uploaded) or _excess(total + size, len(known), limits)
        if why:
            refusals.append(f"output file {file.name!r} was not kept: {why}")
            continue
        kept[file.name] = known[file.name] = OutputFile(file.name, file.checksum, size, file.truncated)
        total += size
    return KeptOutputs(tuple(kept.values()), tuple(refusals))


def _fault(file: ReportedOutput, known: Mapping[str, OutputFile], uploaded: Mapping[str, int]) -> str:
    if file.name in known:
        return "another file has this name"
    if file.content is None and file.checksum not in uploaded:
        return "its content was not uploaded"
    return fault_of_name(file.name)


def _excess(total: int, count: int, limits: JobLimits) -> str:
    if count >= limits.max_files:
        return f"there are more than {limits.max_files}"
    if total > limits.max_output_bytes:
        return f"together with those before it has more than {limits.max_output_bytes} bytes"
    return ""
