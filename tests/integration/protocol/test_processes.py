"""Anonymous files for the input and output of commands."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from pilotage.processes import file_text, memory_file


@pytest.mark.parametrize("has_memory_files", [True, False])
def test_command_output_in_memory_file_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_memory_files: bool
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    if not has_memory_files:  # as in a Python built for an old glibc
        monkeypatch.delattr(os, "memfd_create")
    with memory_file() as file:
        subprocess.run(["sh", "-c", "echo one; echo two"], stdout=file, check=True)
        assert file_text(file) == "one\ntwo\n"
        assert list(tmp_path.iterdir()) == []
