"""Commands that need no server: run in this process or as one of their own, over the file of a tree."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pilotage_client.cli.main import main

QUEUE = '{"sites": {"S": {"ces": {"C": {"queues": {"Q": {"Memory": 4000, "Tags": ["a", "b"], "OS": "el9"}}}}}}}'


def pilotage(*arguments: str | Path, stdout: int = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """Run the command as a process of its own."""
    command = [str(Path(sys.executable).with_name("pilotage")), *map(str, arguments)]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60, check=False)


def run(*arguments: str | Path) -> Result:
    """Run the command in this process; whatever it raises is raised."""
    result = CliRunner().invoke(main, [str(argument) for argument in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def objects(printed: str) -> list[dict[str, Any]]:
    """Return the JSON objects that were printed, one a line."""
    return [json.loads(line) for line in printed.splitlines()]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return the file of a tree with one queue."""
    file = tmp_path / "tree.json"
    file.write_text(QUEUE)
    return file
