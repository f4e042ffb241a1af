"""The token that a pilot shows: renewed while it lives, and kept when its file is gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.errors import WorldError
from pilotage_pilot.app import token_reader
from pilotage_pilot.settings import PilotSettings


def settings(path: Path) -> PilotSettings:
    return PilotSettings(server=("127.0.0.1:1",), token_file=path)


def test_a_renewed_token_is_used_at_once_and_the_last_one_outlives_its_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    read = token_reader(settings(path))
    assert read() == "first"
    path.write_text("second\n")
    assert read() == "second"
    path.unlink()
    assert read() == "second"


def test_a_token_file_that_was_never_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="no-such-file: No such file"):
        token_reader(settings(tmp_path / "no-such-file"))()
