"""What is kept of a copy at a queue, in its folder: what follows it to its end, whatever the tree says by then."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotage.errors import WorldError
from pilotage.job_description import JobDescription
from pilotage.resource_tree import QueueId
from pilotage_agents.copies.private_files import write_private

_NAME = "copy.json"


@dataclass(frozen=True, slots=True)
class CopyRecord:
    """What is kept of a copy that was made ready.

    `description` says where its output is, and `seen` what lay there before it. `queue` and `ce_type` are where it goes
    to. `batch_id` "" = nobody knows yet what its batch system calls it. `cut` names the output files that were cut.
    """

    description: JobDescription
    seen: Mapping[str, tuple[int, int]] | None
    queue: str
    ce_type: str
    batch_id: str = ""
    cut: frozenset[str] = frozenset()


def write_record(folder: Path, record: CopyRecord) -> None:
    """Write what is kept of a copy that is ready now; raises OSError."""
    description = record.description
    fields = {
        "stdout": description.stdout,
        "stderr": description.stderr,
        "output_files": description.output_files,
        "seen": record.seen,
        "queue": record.queue,
        "ce_type": record.ce_type,
        "batch_id": record.batch_id,
        "cut": sorted(record.cut),
    }
    write_private(folder / _NAME, json.dumps(fields).encode())


def read_record(folder: Path) -> CopyRecord | None:
    """Return what is kept of a copy; None = it was never made ready here."""
    try:
        return _record_in(json.loads((folder / _NAME).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def change_record(folder: Path, **fields: object) -> None:
    """Keep something else of a copy that was made ready; raises WorldError."""
    path = folder / _NAME
    try:
        write_private(path, json.dumps({**json.loads(path.read_text(encoding="utf-8")), **fields}).encode())
    except (OSError, ValueError) as error:
        raise WorldError(f"{path}: {error}", transient=True) from error


def kept_ce_type(root: Path, queue: QueueId) -> str:
    """Return the CEType that a queue had when a copy went there whose folder lies below `root`; "" = none did."""
    records = (read_record(folder) for folder in root.iterdir()) if root.is_dir() else ()
    return next((record.ce_type for record in records if record is not None and record.queue == str(queue)), "")


def _record_in(fields: Any) -> CopyRecord:
    seen = fields["seen"] and {name: (size, changed) for name, (size, changed) in fields["seen"].items()}
    description = JobDescription(
        executable="",
        stdout=fields["stdout"],
        stderr=fields["stderr"],
        output_files=tuple(fields["output_files"]),
        new_files_come_back=seen is not None,
    )
    where = fields["queue"], fields["ce_type"]
    return CopyRecord(description, seen, *where, fields["batch_id"], frozenset(fields["cut"]))
