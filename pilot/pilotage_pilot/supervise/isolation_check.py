"""The command `pilotage-pilot isolation`: it shows how a pilot on this node isolates payloads, and why not better."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from pilotage.values.isolation import HIDDEN_PATHS
from pilotage_pilot.supervise.folders import PilotFolder
from pilotage_pilot.supervise.isolation import IsolationRules, PayloadPaths, confine
from pilotage_pilot.supervise.spawn import Launcher


def add_isolation_command(command: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    command.add_argument("--scratch", type=Path, default=Path("/tmp"), help="working folder of pilots (/tmp)")  # noqa: S108
    command.add_argument("--json", action="store_true", help="print a JSON object")


def check_isolation(options: argparse.Namespace) -> int:
    """Print the strongest level that works; returns the exit code. Raises a PilotageError if no payload starts."""
    folder = PilotFolder(options.scratch)
    launcher = Launcher()
    try:
        paths = PayloadPaths.of((options.scratch, *map(Path, HIDDEN_PATHS)), (), ())
        confinement, refused = confine(IsolationRules(None, paths), launcher, folder.jobs)
    finally:
        launcher.close()
        folder.remove()
    if options.json:
        sys.stdout.write(f"{json.dumps({'isolation': confinement.level.value, 'refused': refused})}\n")
    else:
        sys.stdout.write(f"isolation: {confinement.level.value}\n")
        sys.stdout.writelines(f"{level} does not work here: {why}\n" for level, why in refused.items())
    return 0
