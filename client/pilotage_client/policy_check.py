"""Whether pilots could run a policy, asked of the pilot's own command before one is started with it."""

from __future__ import annotations

import subprocess
from pathlib import Path

from pilotage.errors import InvalidInputError, Violation
from pilotage_client.children import program

_CHECKED_WITHIN_S = 60


def check_policy(path: Path, cpus: int | None = None) -> None:
    """Raise InvalidInputError with what the pilot says where it could not run the policy in this file.

    `cpus` = on a node of so many cores, None = on this one.
    """
    command = [program("pilotage-pilot"), "check", str(path), "--json"]
    command += [] if cpus is None else ["--cpus", str(cpus)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_CHECKED_WITHIN_S)
    if done.returncode != 0:
        said = done.stderr.strip() or f"the check ended with exit code {done.returncode}"
        raise InvalidInputError(*(Violation("", line) for line in said.splitlines()))
