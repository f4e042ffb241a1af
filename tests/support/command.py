"""The command `pilotage` as scripts run it: a process of its own with an environment that it is given."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

PROGRAMS = Path(sys.executable).parent
_WITHIN_S = 60


def environment_of(home: Path, **variables: str) -> dict[str, str]:
    """Return an environment in which nothing of ours is set but `variables`."""
    return {"HOME": str(home), "PATH": f"{PROGRAMS}:{os.environ['PATH']}", **variables}


class Command:
    """Runs `pilotage` in one environment."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.environment = dict(environment)

    def __call__(self, *words: object, exits: int = 0) -> str:
        """Run the command to its end and return what it printed; fails when it does not exit as expected."""
        done = self.run(*words)
        assert done.returncode == exits, done.stdout + done.stderr
        return done.stdout

    def objects(self, *words: object, exits: int = 0) -> list[dict[str, Any]]:
        """Return the JSON objects that the command prints, one a line."""
        return [json.loads(line) for line in self(*words, "--json", exits=exits).splitlines()]

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        """Run the command to its end."""
        command = ["pilotage", *map(str, words)]
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=_WITHIN_S, check=False
        )

    def start(self, *words: object) -> subprocess.Popen[str]:
        """Start the command; its output is read by the caller."""
        command = ["pilotage", *map(str, words)]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
