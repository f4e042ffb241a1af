"""Which of the files that a pilot reports for an attempt are kept.

Rules
-----
A pilot is not believed: a name must lie inside the job's folder, and a content must have come inside the report
or have been uploaded by the same pilot, or anybody's file could be fetched under a job of one's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pilotage_server.core.job_files import OutputFile, ReportedOutput, fault_of_name
from pilotage_server.core.job_limits import JobLimits


@dataclass(frozen=True, slots=True)
class KeptOutputs:
    """What is kept, and one sentence for each file that is not."""

    files: tuple[OutputFile, ...]
    refusals: tuple[str, ...]


def choose_outputs(
    files: Iterable[ReportedOutput],
    uploaded: Mapping[str, int],
    limits: JobLimits,
    before: Iterable[OutputFile] = (),
) -> KeptOutputs:
    """Return what is kept of the files beside those that were kept `before`.

    `uploaded` maps the checksums that the pilot has uploaded to sizes in bytes.
    """
    known = {file.name: file for file in before}
    kept: dict[str, OutputFile] = {}
    refusals: list[str] = []
    total = sum(file.size for file in known.values())
    for file in files:
        there = known.get(file.name)
        if there is not None and there.checksum == file.checksum:
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
        return "there are two of this name"
    if file.content is None and file.checksum not in uploaded:
        return "its content never came"
    return fault_of_name(file.name)


def _excess(total: int, count: int, limits: JobLimits) -> str:
    if count >= limits.max_files:
        return f"there are more than {limits.max_files}"
    if total > limits.max_output_bytes:
        return f"together with those before it has more than {limits.max_output_bytes} bytes"
    return ""
