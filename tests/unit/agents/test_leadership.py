"""Names of leaderships, and ids of the replicas that compete for them."""

from __future__ import annotations

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from pilotage.errors import WorldError
from pilotage_agents.runtime.leadership import leadership_name, replica_id


def test_name_ignores_order_and_letter_case_of_sites() -> None:
    assert leadership_name("director", ["CERN/*/*", "Lyon/*/*"]) == leadership_name(
        "director", ["lyon/*/*", "cern/*/*"]
    )


def test_different_services_have_different_names() -> None:
    names = {
        leadership_name("director"),
        leadership_name("director", ["A/*/*"]),
        leadership_name("director", ["B/*/*"]),
        leadership_name("director", ["B/*/*"], ["slurm"]),
        leadership_name("drains", ["A/*/*"]),
    }
    assert len(names) == 5


def test_name_of_a_long_list_is_short_and_unique() -> None:
    shorter, longer = (leadership_name("director", [f"SITE{n}/*/*" for n in range(count)]) for count in (100, 101))
    assert shorter != longer
    assert len(longer) < 500


def test_replica_id_belongs_to_the_folder(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert replica_id(tmp_path) == replica_id(tmp_path)
    assert replica_id(tmp_path) != replica_id(tmp_path / "other")
    assert stat.S_IMODE((tmp_path / "copy-id").stat().st_mode) == 0o600


def test_concurrent_starts_in_a_new_folder_get_the_same_id(tmp_path: Path) -> None:
    starters, barrier = 8, Barrier(8)

    def start(folder: Path) -> str:
        barrier.wait()
        return replica_id(folder)

    with ThreadPoolExecutor(starters) as threads:
        for number in range(50):
            folder = tmp_path / str(number)
            folder.mkdir()
            (id_,) = set(threads.map(start, [folder] * starters))
            assert id_
            assert [path.name for path in folder.iterdir()] == ["copy-id"]


def test_names_the_id_file_that_cannot_be_created(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="copy-id: No such file or directory"):
        replica_id(tmp_path / "none")
