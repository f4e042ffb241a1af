"""The ids of copies of agents, which lie in their folders."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from pilotage.errors import WorldError
from pilotage_agents.runtime.leadership import replica_id


def test_who_starts_again_in_a_folder_is_the_same_copy_and_in_another_folder_another(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert replica_id(tmp_path) == replica_id(tmp_path)
    assert replica_id(tmp_path) != replica_id(tmp_path / "other")
    assert stat.S_IMODE((tmp_path / "copy-id").stat().st_mode) == 0o600


def test_all_that_start_at_once_in_a_new_folder_get_the_same_id(tmp_path: Path) -> None:
    starters, at_once = 8, Barrier(8)

    def start(folder: Path) -> str:
        at_once.wait()
        return replica_id(folder)

    with ThreadPoolExecutor(starters) as threads:
        for place in range(50):
            folder = tmp_path / str(place)
            folder.mkdir()
            (the_id,) = set(threads.map(start, [folder] * starters))
            assert the_id
            assert [path.name for path in folder.iterdir()] == ["copy-id"]


def test_a_folder_in_which_no_id_can_be_made_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="copy-id: No such file or directory"):
        replica_id(tmp_path / "none")
