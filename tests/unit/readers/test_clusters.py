"""Which jobs of a file are one cluster, in each language."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pilotage.job_description import JobDescription
from pilotage_client.templates import with_change
from support.job_texts import jdl_jobs, submit_jobs, toml_jobs


def clusters(jobs: list[JobDescription]) -> list[list[int]]:
    """Return the counts of the descriptions of each cluster."""
    found: list[list[int]] = []
    for job in jobs:
        if not job.continues_cluster:
            found.append([])
        found[-1].append(job.count or 1)
    return found


@pytest.mark.parametrize(
    ("read", "text", "expected"),
    [
        (submit_jobs, "executable = a\nqueue 5", [[5]]),
        (submit_jobs, "executable = a\narguments = $(x)\nqueue 2 x in (p, q)", [[2, 2]]),
        (submit_jobs, "executable = a\narguments = $(Step)\nqueue 3", [[1, 1, 1]]),
        (submit_jobs, "executable = a\narguments = $(Process)\nqueue 3", [[3]]),
        (submit_jobs, "executable = a\narguments = 1\nqueue 2\narguments = 2\nqueue\nqueue", [[2, 2]]),
        (submit_jobs, "executable = a\nqueue\nexecutable = b\nqueue 2\narguments = 1\nqueue", [[1], [2, 1]]),
        (submit_jobs, "executable = a\nqueue 0 x in (p)\narguments = 1\nqueue\narguments = 2\nqueue", [[1, 1]]),
        (submit_jobs, "executable = $(x)\nqueue x in (p, q)", [[1, 1]]),
        (jdl_jobs, 'Executable = "a"; Arguments = "%s"; Parameters = {"x", "y"};', [[1, 1]]),
        (jdl_jobs, 'Executable = "a";', [[1]]),
        (toml_jobs, 'executable = "a{n}"\ncount = 2\nparameters = {n = [1, 2, 3]}', [[2, 2, 2]]),
        (toml_jobs, '[[job]]\nexecutable = "a"\n[[job]]\nexecutable = "b"\nparameters = {n = [1, 2]}', [[1], [1, 1]]),
    ],
)
def test_jobs_of_a_file_are_clusters(
    read: Callable[[str], list[JobDescription]], text: str, expected: list[list[int]]
) -> None:
    assert clusters(read(text)) == expected


def test_items_of_matching_files_are_one_cluster(tmp_path: Path) -> None:
    for name in ("a.dat", "b.dat"):
        (tmp_path / name).touch()
    text = "executable = a\narguments = $(f)\nqueue f matching files *.dat"
    assert clusters(submit_jobs(text, tmp_path)) == [[1, 1]]


def test_edit_keeps_the_cluster() -> None:
    _, second = toml_jobs('executable = "a{n}"\nparameters = {n = [1, 2]}')
    assert with_change(second, "priority=5").continues_cluster
