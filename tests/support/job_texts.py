"""Functions that read job texts in each language: all jobs, the only job, or the error."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pilotage.job_description import JobDescription
from pilotage_client.readers.cfg import read_cfg
from pilotage_client.readers.draft import ReadError
from pilotage_client.readers.jdl import read_jdl
from pilotage_client.readers.submit import read_submit
from pilotage_client.readers.toml import read_toml

NOW = datetime(2026, 3, 4, 12, 30, tzinfo=UTC)
"""The submission time of submit files."""


def jdl_jobs(text: str, *, ignore_unsupported: bool = False) -> list[JobDescription]:
    """Return the jobs of a JDL text."""
    return read_jdl(text, "job.jdl", ignore_unsupported=ignore_unsupported)


def jdl_job(text: str, *, ignore_unsupported: bool = False) -> JobDescription:
    """Return the only job of a JDL text."""
    (job,) = jdl_jobs(text, ignore_unsupported=ignore_unsupported)
    return job


def jdl_error(text: str) -> str:
    """Return the error of a JDL text, "job.jdl:LINE: cause"."""
    with pytest.raises(ReadError) as caught:
        jdl_jobs(text)
    return str(caught.value)


def cfg_jobs(text: str, *, ignore_unsupported: bool = False) -> list[JobDescription]:
    """Return the jobs of a CFG text."""
    return read_cfg(text, "job.cfg", ignore_unsupported=ignore_unsupported)


def cfg_error(text: str) -> str:
    """Return the error of a CFG text, "job.cfg:LINE: cause"."""
    with pytest.raises(ReadError) as caught:
        cfg_jobs(text)
    return str(caught.value)


def submit_jobs(
    text: str, base_dir: Path | None = None, *, ignore_unsupported: bool = False, appended: Sequence[str] = ()
) -> list[JobDescription]:
    """Return the jobs of a submit file."""
    folder = base_dir or Path("/nonexistent")
    return read_submit(text, "job.sub", folder, NOW, ignore_unsupported=ignore_unsupported, appended=appended)


def submit_job(text: str, queue: str = "queue", *, ignore_unsupported: bool = False) -> JobDescription:
    """Return the only job of submit commands, with an executable and a queue statement added."""
    (job,) = submit_jobs(f"executable = run\n{text}\n{queue}\n", ignore_unsupported=ignore_unsupported)
    return job


def refusals(error: str) -> list[str]:
    """Return the faults of a file without the advice to ignore what is not supported, which must be the last."""
    *faults, advice = error.split("; job.")
    assert advice.endswith("--ignore-unsupported submits them so")
    return [fault if fault.startswith("job.") else f"job.{fault}" for fault in faults]


def submit_error(text: str, base_dir: Path | None = None) -> str:
    """Return the error of a submit file, "job.sub:LINE: cause"."""
    with pytest.raises(ReadError) as caught:
        submit_jobs(text, base_dir)
    return str(caught.value)


def toml_jobs(text: str) -> list[JobDescription]:
    """Return the jobs of a TOML text."""
    return read_toml(text, "job.toml")


def toml_error(text: str) -> str:
    """Return the error of a TOML text, "job.toml:LINE: cause"."""
    with pytest.raises(ReadError) as caught:
        toml_jobs(text)
    return str(caught.value)
