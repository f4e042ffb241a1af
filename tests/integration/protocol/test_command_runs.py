"""Open files without a name, which commands read and print into."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pilotage.processes import file_text, memory_file


@pytest.mark.parametrize("has_memory_files", [True, False])
def test_what_a_command_prints_is_read_whole_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_memory_files: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if not has_memory_files:  # as in a Python that was built for an old glibc
        monkeypatch.delattr(os, "memfd_create")
    with memory_file() as said:
        subprocess.run(["sh", "-c", "echo one; echo two"], stdout=said, check=True)
        assert file_text(said) == "one\ntwo\n"
        assert list(tmp_path.iterdir()) == []
