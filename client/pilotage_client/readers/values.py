"""Job descriptions from Python values: the keys of job files, with their units."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pilotage.job_description import JobDescription
from pilotage_client.readers.files import resolve_local_files
from pilotage_client.readers.toml import read_table


def job(executable: str | Path = "", *arguments: object, folder: Path | None = None, **keys: Any) -> JobDescription:
    """Return the description of a job, or of an array with `count`, with its local files resolved.

    `keys` are those of job files in TOML; `cpus`, `memory`, `disk`, `gpus`, `require`, `inputs` and `outputs` are short
    names of `request_cpus` and so on. Amounts take units ("2 GB", "90 min"). Paths are relative to `folder`, None = the
    present one: a relative executable that exists here is sent with the job, and so are its input files.

    Raises
    ------
    InvalidInputError
        With every key at fault, or with every file that is missing.
    """
    named = {"executable": str(executable)} if executable else {}
    listed = {"arguments": [str(each) for each in arguments]} if arguments else {}
    return resolve_local_files(read_table({**keys, **named, **listed}), folder or Path())
