"""The pilot's command, run with a server that is not there: what it says, how it ends, what it leaves."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

_CLAIMS = {"site": "S", "ce": "C", "queue": "Q", "stamp": "stamp1"}
_TOKEN = f"e30.{base64.urlsafe_b64encode(json.dumps(_CLAIMS).encode()).decode().rstrip('=')}.x"


def run_pilot(folder: Path, *missing: str, **settings: object) -> tuple[int, list[str], list[str]]:
    """Run a pilot where these Python packages are missing.

    Returns its exit code, the lines it said, and what is left in its scratch.
    """
    scratch = folder / "scratch"
    scratch.mkdir()
    given = {"server": ["localhost:1"], "token": _TOKEN, "scratch": str(scratch), "cpus": 2, "unreachable_s": 0}
    config = folder / "pilot.json"
    config.write_text(json.dumps({**given, **settings}))
    hidden = f"import sys; sys.modules.update(dict.fromkeys({list(missing)}))"
    start = f"{hidden}; from pilotage_pilot.main import main; main()"
    command = [sys.executable, "-c", start, "run", "--config", str(config)]
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    said = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)
    return said.returncode, said.stderr.splitlines(), [path.name for path in scratch.iterdir()]
