"""The examples of docs/reference/python-api.md run unchanged."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from support.commands import environment_of, up_command

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "python-api.md"


def test_examples_of_the_page_run(tmp_path: Path) -> None:
    example = tmp_path / "example.py"
    example.write_text("\n".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)))
    with up_command(tmp_path / "data") as up:
        up.start()
        environment = environment_of(tmp_path, PILOTAGE_DATA=str(up.data))
        command = [sys.executable, str(example)]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("DONE local/") == 3
    printed = done.stdout.splitlines()
    assert "cubes: [0, 1, 8, 27, 64]" in printed
    assert {
        f"power: {2**100}",
        "inputs: ['3 numbers.txt', '1 2 3']",
        "refused: descriptions[0].input_files - lost: no such file or directory",
        "exit codes: [0, 1] {'DONE': 1, 'FAILED': 1}",
        "first: DONE exits True",
        "failed: True",
        "banned: [('local', 'power cut')]",
        "pilot: RUNNING True local",
        "token: True",
        "subscribed: url True",
        "endless: [0, 7, 14, 21, 28]",
        "died: True",
        "no Python: True",
        "errors: NotFoundError PermissionDeniedError InvalidInputError with 1 Violation",
        "errors: try again",
    } <= set(printed)
    assert any(re.match(r"queue: local/\S+ True works", line) for line in printed)
    assert any(re.match(r"why: 1 \[\('SoftwareTag', 1\)\]", line) for line in printed)
    assert {"0 squared is 0", "1 squared is 1", "2 squared is 4", "RECEIVED -> WAITING"} <= set(printed)
    assert printed.count("async: DONE") == 2
