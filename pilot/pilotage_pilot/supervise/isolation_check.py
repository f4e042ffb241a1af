"""The command `pilotage-pilot isolation`: it shows how a pilot on this node isolates payloads, and why not better."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from pilotage.command_line.groups import examples, report
from pilotage.errors import PilotageError
from pilotage.values.isolation import HIDDEN_PATHS
from pilotage_pilot.core.lifetime import ExitCode
from pilotage_pilot.supervise.folders import PilotFolder
from pilotage_pilot.supervise.isolation import Confinement, IsolationRules, PayloadPaths, confine
from pilotage_pilot.supervise.spawn import Launcher


@click.command(epilog=examples("pilotage-pilot isolation", "pilotage-pilot isolation --scratch /scratch --json"))
@click.option(
    "--scratch",
    type=click.Path(path_type=Path),
    default="/tmp",  # noqa: S108
    show_default=True,
    help="Working folder of pilots.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
def isolation(scratch: Path, as_json: bool) -> int:
    """Show how payloads are isolated on this node: the strongest level that works.

    Exits 4 if no payload can start.
    """
    try:
        confinement, refused = _strongest(scratch)
    except PilotageError as error:
        report(error, f"pilotage-pilot: {error}", as_json=as_json)
        return ExitCode.NODE_UNFIT
    if as_json:
        sys.stdout.write(f"{json.dumps({'isolation': confinement.level.value, 'refused': refused})}\n")
    else:
        sys.stdout.write(f"isolation: {confinement.level.value}\n")
        sys.stdout.writelines(f"{level} does not work here: {why}\n" for level, why in refused.items())
    return 0


def _strongest(scratch: Path) -> tuple[Confinement, dict[str, str]]:
    """Return the strongest confinement that works, and why each stronger one does not; raises a PilotageError."""
    folder = PilotFolder(scratch)
    launcher = Launcher()
    try:
        paths = PayloadPaths.of((scratch, *map(Path, HIDDEN_PATHS)), (), ())
        return confine(IsolationRules(None, paths), launcher, folder.jobs)
    finally:
        launcher.close()
        folder.remove()
