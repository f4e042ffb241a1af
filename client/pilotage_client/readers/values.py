"""Job descriptions from Python values: the keys of job files, with their units."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from pilotage.errors import InvalidInputError, Violation
from pilotage.job_description import JobDescription
from pilotage_client.readers.files import resolve_local_files
from pilotage_client.readers.toml import read_table

PROGRAM_KEYS = frozenset({"executable", "arguments", "stdin", "stdout", "stderr", "count"})
"""Keys of `job` that make the program, which executors set themselves."""


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


def check_user_keys(keys: AbstractSet[str], own: AbstractSet[str] = PROGRAM_KEYS, prefix: str = "") -> None:
    """Raise InvalidInputError if a user sets keys that an executor sets itself; messages name them with `prefix`."""
    if taken := sorted(keys & own):
        raise InvalidInputError(*(Violation(f"{prefix}{key}", "is set by the executor itself") for key in taken))
