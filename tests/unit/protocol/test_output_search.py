"""Output files that names and patterns select in a job's folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pilotage.job_description import JobDescription
from pilotage.jobs.files import JobFaultError, OutputLimits, OutputNotes, OutputSearch, find_output, plain_files

FILES = (
    ".hidden",
    "a.root",
    "b.root",
    "set[1].txt",
    "runs/1/a.root",
    "runs/1/log",
    "runs/2/a.root",
    "runs/2/deep/er/a.root",
    "runs/top.root",
    "x/a/b/a/c",
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        path = tmp_path / "work" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    return tmp_path / "work"


def matches(folder: Path, pattern: str) -> list[str]:
    return list(OutputSearch(folder, OutputNotes()).find(pattern))


def notes_of(folder: Path, *patterns: str, most: int = 1000) -> str:
    notes = OutputNotes()
    search = OutputSearch(folder, notes, most=most)
    for pattern in patterns:
        search.find(pattern)
    return "; ".join(notes.texts)


@pytest.mark.parametrize(
    "pattern",
    [
        "*",
        "?.root",
        "[ab].root",
        "[!a].root",
        "runs/*/a.root",
        "runs/?/*",
        "*/*/*.root",
        "**",
        "**/*",
        "**/a.root",
        "runs/**/a.root",
        "runs/**",
        "**/a/**/c",
        "x/**/a/**",
        "**/**/a",
        "*/1",
        "./runs/./*//a.root",
        "runs/[12]/",
        "none/*",
        "*/none",
        ".*",
    ],
)
def test_patterns_select_like_pathlib_with_all_files_below(folder: Path, pattern: str) -> None:
    found: set[Path] = set()
    for path in folder.glob(pattern.rstrip("/")):
        found |= {path} if path.is_file() else {below for below in path.rglob("*") if below.is_file()}
    assert matches(folder, pattern) == sorted(str(path.relative_to(folder)) for path in found)


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("a.root", ["a.root"]),
        ("set[1].txt", ["set[1].txt"]),
        ("runs/1/", ["runs/1/a.root", "runs/1/log"]),
        ("./x//a", ["x/a/b/a/c"]),
        ("none", []),
        ("a.root/below", []),
    ],
)
def test_exact_name_precedes_pattern(folder: Path, name: str, files: list[str]) -> None:
    assert matches(folder, name) == files


@pytest.mark.parametrize("pattern", ["**.root", "**/**/**/a", "../*", "out/*"])
def test_invalid_or_escaping_pattern_is_job_fault(folder: Path, pattern: str) -> None:
    (folder / "out").symlink_to("/")
    with pytest.raises(JobFaultError):
        matches(folder, pattern)


def test_patterns_do_not_follow_links(folder: Path) -> None:
    for name in ("here", "there"):
        (folder / name).symlink_to(".")
    (folder / "latest").symlink_to("runs/2")
    assert matches(folder, "*/" * 60 + "none") == []
    assert matches(folder, "**/there/**/here/c") == []
    assert matches(folder, "*ere") == ["here", "there"]
    assert matches(folder, "latest/*.root") == ["latest/a.root"], "a named link is followed inside the folder"
    assert matches(folder, "latest") == ["latest"]


def test_number_of_inspected_files_is_limited_over_all_patterns(folder: Path) -> None:
    (folder / "many").mkdir()
    for number in range(50):
        (folder / "many" / str(number)).touch()
    note = "the job left more files than are looked through"
    assert notes_of(folder, "many/none*", most=51) == ""
    assert notes_of(folder, "many/none*", "many/none*", most=51) == note
    assert notes_of(folder, "many/*", most=51) == note


def test_too_deep_folder_is_noted_and_files_above_are_found(folder: Path) -> None:
    deep = folder / "/".join(["d"] * 99)
    (deep / "d").mkdir(parents=True)
    (deep / "last").touch()
    assert matches(folder, "d/**/last") == [str((deep / "last").relative_to(folder))]
    assert "too deep" in notes_of(folder, "d")


def test_exhausted_search_does_not_report_missing_files(folder: Path) -> None:
    (folder / "skipped").mkdir()
    (folder / "skipped" / "x").touch()
    notes = OutputNotes()
    search = OutputSearch(folder, notes, most=len(list(folder.iterdir())))
    assert search.find("*/x") == []
    assert (notes.texts, search.is_exhausted) == (("the job left more files than are looked through",), True)


def test_number_of_output_files_is_limited_without_duplicates(folder: Path) -> None:
    description = JobDescription("/bin/true", stdout="a.root", output_files=("a.root", "*.root"))
    unlimited = find_output(description, folder, OutputLimits(100, 2))
    assert (list(unlimited.files), unlimited.notes) == (["a.root", "b.root"], ())
    limited = find_output(description, folder, OutputLimits(100, 1), {})
    assert (list(limited.files), limited.notes) == (["a.root"], ("only 1 output files were taken, and there are more",))


def test_total_size_of_output_files_is_limited(folder: Path) -> None:
    for name, size in (("1", 60), ("2", 50), ("3", 40), ("4", 1 << 40)):
        (folder / name).touch()
        os.truncate(folder / name, size)
    (folder / "link").symlink_to("2")
    description = JobDescription("/bin/true", output_files=("1", "link", "2", "3", "4"))
    found = find_output(description, folder, OutputLimits(1000, all_bytes=100))
    assert list(found.files) == ["1", "3"]
    why = "was not taken: together with those before it has more than 100 bytes"
    assert found.notes == tuple(f"output file {name} {why}" for name in ("link", "2", "4"))
    assert "4" in find_output(description, folder, OutputLimits(5, all_bytes=25)).files, (
        "only its first bytes are taken"
    )


def test_changed_finds_new_and_modified_files(folder: Path) -> None:
    before = plain_files(folder)
    (folder / "b.root").write_text("more than before")
    (folder / "new").touch()
    (folder / "link").symlink_to("new")
    assert OutputSearch(folder, OutputNotes()).changed(before) == ["b.root", "new"]


def test_notes_are_limited_and_unique(folder: Path) -> None:
    description = JobDescription("/bin/true", output_files=tuple(f"none{number % 30}" for number in range(60)))
    notes = find_output(description, folder, OutputLimits(100)).notes
    assert (len(notes), notes[0], len(set(notes))) == (21, "output file none0 is not there", 21)
