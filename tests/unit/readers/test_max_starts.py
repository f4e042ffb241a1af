"""The most starts of a job, in the three job languages."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from pilotage_client.readers.draft import ReadError
from pilotage_client.readers.jdl import read_jdl
from pilotage_client.readers.submit import read_submit
from pilotage_client.readers.toml import read_toml


def test_jdl_has_max_starts() -> None:
    (job,) = read_jdl('Executable = "run.sh"; MaxStarts = 1;', "job.jdl")
    assert (job.max_starts, job.attributes["MaxStarts"], job.warnings) == (1, 1, ())


def test_submit_file_has_max_starts() -> None:
    (job,) = read_submit(
        "executable = run.sh\nmax_starts = 1\nqueue\n", "job.sub", Path(), datetime(2026, 11, 20, tzinfo=UTC)
    )
    assert (job.max_starts, job.warnings) == (1, ())


def test_toml_has_max_starts() -> None:
    (job,) = read_toml('executable = "run.sh"\nmax_starts = 1\n', "job.toml")
    assert (job.max_starts, dict(job.attributes)) == (1, {})


@pytest.mark.parametrize("value", ["0", "-1", "true", '"once"'])
def test_invalid_number_is_an_error_with_its_line(value: str) -> None:
    with pytest.raises(ReadError, match=r"job.toml:2: "):
        read_toml(f'executable = "run.sh"\nmax_starts = {value}\n', "job.toml")
