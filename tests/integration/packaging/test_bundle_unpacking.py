"""Unpacking of the pilot bundle on a node: atomic, shared by pilots, and only on a compatible machine."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import build_bundle
from support.packages import BARE_PYTHON, a_bundle, start


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


def unpacked_folder(scratch: Path) -> Path:
    """Return the only folder in the scratch."""
    (folder,) = scratch.iterdir()
    return folder


def test_bundle_unpacks_and_starts_its_pilot_isolated(tmp_path: Path, scratch: Path, job_folder: Path) -> None:
    done = start(a_bundle(tmp_path), "run", "--config", "x", scratch=scratch, folder=job_folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{unpacked_folder(scratch)}/bin/python ['run', '--config', 'x'] 1 first\n"
    assert unpacked_folder(scratch).stat().st_mode & 0o777 == 0o700
    assert list(job_folder.iterdir()) == []


def test_concurrent_pilots_share_one_unpacked_folder(tmp_path: Path, scratch: Path, job_folder: Path) -> None:
    bundle = a_bundle(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: start(bundle, scratch=scratch, folder=job_folder), range(8)))
    assert {(result.returncode, result.stderr) for result in done} == {(0, "")}
    assert unpacked_folder(scratch).is_dir()


def test_each_bundle_content_has_its_own_folder(tmp_path: Path, scratch: Path, job_folder: Path) -> None:
    for text in ("first", "second"):
        assert f" {text}\n" in start(a_bundle(tmp_path, text), scratch=scratch, folder=job_folder).stdout
    assert len(list(scratch.iterdir())) == 2


def test_folder_unused_for_a_month_is_removed(tmp_path: Path, scratch: Path, job_folder: Path) -> None:
    old, new = a_bundle(tmp_path, "old"), a_bundle(tmp_path, "new")
    start(old, scratch=scratch, folder=job_folder)
    os.utime(unpacked_folder(scratch), (0, 0))
    start(new, scratch=scratch, folder=job_folder)
    assert (unpacked_folder(scratch) / "bin" / "python").exists()
    assert "new" in start(new, scratch=scratch, folder=job_folder).stdout


def test_missing_file_is_restored(tmp_path: Path, scratch: Path, job_folder: Path) -> None:
    bundle = a_bundle(tmp_path)
    start(bundle, scratch=scratch, folder=job_folder)
    (module,) = unpacked_folder(scratch).rglob("data.py")
    module.unlink()
    assert start(bundle, scratch=scratch, folder=job_folder).returncode == 0
    assert module.exists()
    assert unpacked_folder(scratch).is_dir()


@pytest.mark.parametrize("change", ["edited", "added", "compiled", "environment", "linked"])
def test_what_a_payload_changed_is_not_run(tmp_path: Path, scratch: Path, job_folder: Path, change: str) -> None:
    bundle = a_bundle(tmp_path)
    start(bundle, scratch=scratch, folder=job_folder)
    (module,) = unpacked_folder(scratch).rglob("data.py")
    match change:
        case "edited":
            module.write_text("TEXT = 'EVIL!'\n")
        case "added":
            (module.parent / "evil.pth").write_text("import sys; sys.stdout.write('EVIL!')\n")
        case "compiled":
            evil = tmp_path / "data.py"
            evil.write_text("TEXT = 'EVIL!'\n")
            shutil.copystat(module, evil)
            (compiled,) = subprocess.run(
                [*BARE_PYTHON, "-c", "import py_compile, sys; print(py_compile.compile(sys.argv[1]))", evil],
                capture_output=True,
                text=True,
                check=True,
            ).stdout.split()
            (module.parent / "__pycache__").mkdir(exist_ok=True)
            shutil.copy(compiled, module.parent / "__pycache__")
        case "environment":
            (unpacked_folder(scratch) / "pyvenv.cfg").write_text("home = /\n")
        case _:
            (tmp_path / "data.py").write_bytes(module.read_bytes())
            module.unlink()
            module.symlink_to(tmp_path / "data.py")
    done = start(bundle, scratch=scratch, folder=job_folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"{unpacked_folder(scratch)}/bin/python [] 1 first\n"
    assert not list(unpacked_folder(scratch).rglob("__pycache__"))
    (restored,) = unpacked_folder(scratch).rglob("data.py")
    assert not restored.is_symlink()


def test_folder_writable_by_others_is_not_used(tmp_path: Path, scratch: Path, job_folder: Path) -> None:
    bundle = a_bundle(tmp_path)
    start(bundle, scratch=scratch, folder=job_folder)
    (module,) = unpacked_folder(scratch).rglob("data.py")
    module.write_text("TEXT = 'EVIL!'\n")
    unpacked_folder(scratch).chmod(0o777)
    done = start(bundle, scratch=scratch, folder=job_folder)
    assert done.stdout.startswith(str(job_folder))
    assert done.stdout.endswith(" first\n")


def test_unpacking_error_names_every_folder_tried(tmp_path: Path) -> None:
    done = start(a_bundle(tmp_path), scratch=tmp_path / "none", folder=Path("/proc"))
    assert done.returncode == 4
    assert done.stderr == (
        f"first.pyz: cannot be unpacked: {tmp_path}/none: No such file or directory; .: No such file or directory\n"
    )


def test_damaged_bundle_is_one_error_line_and_leaves_nothing(tmp_path: Path, scratch: Path, job_folder: Path) -> None:
    bundle = a_bundle(tmp_path)
    with zipfile.ZipFile(bundle) as archive:
        offset = archive.getinfo("site/data.py").header_offset
    content = bytearray(bundle.read_bytes())
    content[offset + 45] ^= 0xFF
    bundle.write_bytes(content)
    done = start(bundle, scratch=scratch, folder=job_folder)
    assert done.returncode == 4
    assert done.stderr.startswith("first.pyz: cannot be unpacked: ")
    assert done.stderr.count("\n") == 1
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("made_for", "message"),
    [
        ({"python": "3.4"}, "is made for cpython 3.4 on "),
        ({"machine": "vax"}, " on vax, but this is cpython "),
        ({"glibc": [99, 1]}, "needs glibc 99.1 or later, but this machine has glibc 2."),
    ],
    ids=["another Python", "another architecture", "an old C library"],
)
def test_incompatible_machine_is_one_error_line(
    tmp_path: Path, scratch: Path, job_folder: Path, made_for: dict[str, Any], message: str
) -> None:
    done = start(a_bundle(tmp_path, **made_for), scratch=scratch, folder=job_folder)
    assert done.returncode == 2
    assert done.stderr.startswith("first.pyz: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(scratch.iterdir()) == []


def test_version_check_parses_on_old_pythons() -> None:
    ast.parse((build_bundle.HERE / "bundle_main.py").read_text(), feature_version=(3, 4))


def test_bundle_is_reproducible(tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    assert a_bundle(tmp_path).read_bytes() == a_bundle(tmp_path / "again").read_bytes()


def test_concurrent_pilots_repair_an_incomplete_folder(tmp_path: Path, scratch: Path, job_folder: Path) -> None:
    bundle = a_bundle(tmp_path)
    start(bundle, scratch=scratch, folder=job_folder)
    for _ in range(5):
        next(unpacked_folder(scratch).rglob("data.py")).unlink()
        with ThreadPoolExecutor(8) as pool:
            done = list(pool.map(lambda _: start(bundle, scratch=scratch, folder=job_folder), range(8)))
        assert {(result.returncode, result.stderr) for result in done} == {(0, "")}
        assert {result.stdout.split()[0] for result in done} == {f"{unpacked_folder(scratch)}/bin/python"}
    assert list(job_folder.iterdir()) == []
