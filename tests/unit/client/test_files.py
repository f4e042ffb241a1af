"""Names of output files that a server says, before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from pilotage.errors import InvalidInputError
from pilotage.v1 import jobs_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage_client.files import fetch

NOBODY = cast(JobServiceStub, None)


@pytest.mark.parametrize(
    ("name", "why"),
    [("../x", "outside the job's folder"), ("/x", "outside"), ("a/" * 1500 + "x", "more than 100 parts")],
)
def test_a_file_that_cannot_lie_in_the_folder_is_not_asked_for(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        fetch(NOBODY, 1, [jobs_pb2.OutputFile(name=name)], tmp_path)
    assert not list(tmp_path.iterdir())
