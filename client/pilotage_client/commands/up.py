"""The command that runs the whole stack on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from pilotage_client.location import data_folder
from pilotage_client.policy_check import check_policy
from pilotage_client.up import UpOptions, run_up


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="Where everything is kept (default: PILOTAGE_DATA).")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=4711, show_default=True, help="On loopback; 0 = any free one."
)
@click.option("--cpus", type=click.IntRange(1, 1024), help="Cores to offer (default: all of this machine).")
@click.option(
    "--tree",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Bring this resource tree; CEs of CEType local are served.",
)
@click.option(
    "--policy",
    type=click.Path(path_type=Path, dir_okay=False, exists=True, resolve_path=True),
    help="Run this HTCondor policy on this machine's pilots.",
)
def up(data: Path | None, port: int, cpus: int | None, tree: Path | None, policy: Path | None) -> None:
    """Run server, agents and pilots on this machine, in the foreground; Ctrl-C stops them.

    Jobs that run then go back to the queue; the next `pilotage up` finds all jobs as they were.
    """
    if policy is not None:
        check_policy(policy, cpus)
    run_up(UpOptions(data_folder(data), port, cpus, tree, policy), click.echo)
