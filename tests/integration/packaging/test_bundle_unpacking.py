"""How a pilot bundle comes to run on a node: whole or not at all, once for all pilots, and never on a wrong machine."""

from __future__ import annotations

import ast
import os
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import build_bundle
from support.packages import a_bundle, start


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


@pytest.fixture
def job_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "job"
    folder.mkdir()
    return folder


def unpacked(scratch: Path) -> Path:
    """Return the only thing that is in the scratch."""
    (folder,) = scratch.iterdir()
    return folder


def test_a_bundle_unpacks_itself_and_starts_its_pilot_isolated(tmp_path: Path, scratch: Path, job_folder: Path) -> None:
    done = start(a_bundle(tmp_path), "run", "--config", "x", scratch=scratch, folder=job_folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{unpacked(scratch)}/bin/python ['run', '--config', 'x'] 1 first\n"
    assert unpacked(scratch).stat().st_mode & 0o777 == 0o700
    assert list(job_folder.iterdir()) == []


def test_pilots_that_start_at_once_share_what_is_unpacked(tmp_path: Path, scratch: Path, job_folder: Path) -> None:
    bundle = a_bundle(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: start(bundle, scratch=scratch, folder=job_folder), range(8)))
    assert {(each.returncode, each.stderr) for each in done} == {(0, "")}
    assert unpacked(scratch).is_dir()


def test_another_content_is_unpacked_beside_it(tmp_path: Path, scratch: Path, job_folder: Path) -> None:
    for text in ("first", "second"):
        assert f" {text}\n" in start(a_bundle(tmp_path, text), scratch=scratch, folder=job_folder).stdout
    assert len(list(scratch.iterdir())) == 2


def test_what_nobody_was_started_from_for_a_month_is_removed(tmp_path: Path, scratch: Path, job_folder: Path) -> None:
    old, new = a_bundle(tmp_path, "old"), a_bundle(tmp_path, "new")
    start(old, scratch=scratch, folder=job_folder)
    os.utime(unpacked(scratch), (0, 0))
    start(new, scratch=scratch, folder=job_folder)
    assert (unpacked(scratch) / "bin" / "python").exists()
    assert "new" in start(new, scratch=scratch, folder=job_folder).stdout


def test_a_file_that_somebody_has_cleared_away_is_there_again(tmp_path: Path, scratch: Path, job_folder: Path) -> None:
    bundle = a_bundle(tmp_path)
    start(bundle, scratch=scratch, folder=job_folder)
    (module,) = unpacked(scratch).rglob("data.py")
    module.unlink()
    assert start(bundle, scratch=scratch, folder=job_folder).returncode == 0
    assert module.exists()
    assert unpacked(scratch).is_dir()


def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, scratch: Path, job_folder: Path) -> None:
    bundle = a_bundle(tmp_path)
    start(bundle, scratch=scratch, folder=job_folder)
    (module,) = unpacked(scratch).rglob("data.py")
    module.write_text("TEXT = 'EVIL!'\n")
    unpacked(scratch).chmod(0o777)
    done = start(bundle, scratch=scratch, folder=job_folder)
    assert done.stdout.startswith(str(job_folder))
    assert done.stdout.endswith(" first\n")


def test_where_nothing_can_be_unpacked_one_line_names_every_place(tmp_path: Path) -> None:
    done = start(a_bundle(tmp_path), scratch=tmp_path / "none", folder=Path("/proc"))
    assert done.returncode == 4
    assert done.stderr == (
        f"first.pyz: cannot be unpacked: {tmp_path}/none: No such file or directory; .: No such file or directory\n"
    )


def test_a_damaged_bundle_says_so_and_leaves_nothing(tmp_path: Path, scratch: Path, job_folder: Path) -> None:
    bundle = a_bundle(tmp_path)
    with zipfile.ZipFile(bundle) as archive:
        place = archive.getinfo("site/data.py").header_offset
    content = bytearray(bundle.read_bytes())
    content[place + 45] ^= 0xFF
    bundle.write_bytes(content)
    done = start(bundle, scratch=scratch, folder=job_folder)
    assert done.returncode == 4
    assert done.stderr.startswith("first.pyz: cannot be unpacked: ")
    assert done.stderr.count("\n") == 1
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("made_for", "words"),
    [
        ({"python": "3.4"}, "is made for cpython 3.4 on "),
        ({"machine": "vax"}, " on vax, but this is cpython "),
        ({"glibc": [99, 1]}, "needs glibc 99.1 or later, but this machine has glibc 2."),
    ],
    ids=["another Python", "another architecture", "an old C library"],
)
def test_on_a_machine_that_it_is_not_made_for_a_bundle_says_so_in_one_line(
    tmp_path: Path, scratch: Path, job_folder: Path, made_for: dict[str, Any], words: str
) -> None:
    done = start(a_bundle(tmp_path, **made_for), scratch=scratch, folder=job_folder)
    assert done.returncode == 2
    assert done.stderr.startswith("first.pyz: ")
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(scratch.iterdir()) == []


def test_old_pythons_can_read_what_tells_them_that_they_are_too_old() -> None:
    ast.parse((build_bundle.HERE / "bundle_main.py").read_text(), feature_version=(3, 4))


def test_the_same_packages_give_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    assert a_bundle(tmp_path).read_bytes() == a_bundle(tmp_path / "again").read_bytes()


def test_pilots_that_find_it_not_whole_at_once_all_run_from_one_that_is(
    tmp_path: Path, scratch: Path, job_folder: Path
) -> None:
    bundle = a_bundle(tmp_path)
    start(bundle, scratch=scratch, folder=job_folder)
    for _ in range(5):
        next(unpacked(scratch).rglob("data.py")).unlink()
        with ThreadPoolExecutor(8) as pool:
            done = list(pool.map(lambda _: start(bundle, scratch=scratch, folder=job_folder), range(8)))
        assert {(each.returncode, each.stderr) for each in done} == {(0, "")}
        assert {each.stdout.split()[0] for each in done} == {f"{unpacked(scratch)}/bin/python"}
    assert list(job_folder.iterdir()) == []
