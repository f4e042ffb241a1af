"""Files that the client writes: atomically, privately, and only inside their folder."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import pytest

from pilotage.errors import InvalidInputError, WorldError
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage_client.files import fetch, whole_file, write_private
from pilotage_client.models import JobFile

NO_SERVER = cast(JobServiceStub, None)


@pytest.mark.parametrize(
    ("name", "why"),
    [("../x", "outside the job's folder"), ("/x", "outside"), ("a/" * 1500 + "x", "more than 100 parts")],
)
def test_fetch_refuses_unsafe_name_of_output_file(tmp_path: Path, name: str, why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        fetch(NO_SERVER, 1, [JobFile(name=name)], tmp_path)
    assert not list(tmp_path.iterdir())


def test_file_appears_when_complete(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out"
    with whole_file(target) as output:
        output.write(b"one")
        assert not target.exists()
    assert target.read_bytes() == b"one"
    assert list(target.parent.iterdir()) == [target]


def test_failure_keeps_the_previous_file(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("before")

    def write_half() -> None:
        with whole_file(target) as output:
            output.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_names_file_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorldError, match=r"file/out cannot be written: (Not a directory|File exists)"):
        write_private(tmp_path / "file" / "out", "")


def test_private_file_is_readable_by_its_owner_only(tmp_path: Path) -> None:
    write_private(tmp_path / "token", "sécret")
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "token").read_text(encoding="utf-8") == "sécret"
