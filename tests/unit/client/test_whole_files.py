"""Files that are written whole or not at all."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import pytest

from pilotage.errors import WorldError
from pilotage_client.files import whole_file, write_private


def test_a_file_takes_its_place_when_all_of_it_is_there(tmp_path: Path) -> None:
    target = tmp_path / "new" / "out"
    with whole_file(target) as output:
        output.write(b"one")
        assert not target.exists()
    assert target.read_bytes() == b"one"
    assert list(target.parent.iterdir()) == [target]


def test_what_fails_halfway_leaves_the_file_that_was_there_and_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("before")
    with suppress(ZeroDivisionError), whole_file(target) as output:
        output.write(b"half")
        raise ZeroDivisionError
    assert target.read_text() == "before"
    assert list(tmp_path.iterdir()) == [target]


def test_a_place_where_nothing_can_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorldError, match=r"file/out cannot be written: Not a directory|File exists"):
        write_private(tmp_path / "file" / "out", "")


def test_a_private_file_is_for_its_owner_alone(tmp_path: Path) -> None:
    write_private(tmp_path / "token", "sécret")
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "token").read_text(encoding="utf-8") == "sécret"
