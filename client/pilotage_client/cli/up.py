"""The command `up`, which runs the whole stack on this machine."""

from __future__ import annotations

from pathlib import Path

import click

from pilotage_client.connection import data_folder
from pilotage_client.up.up import UpOptions, check_policy, run_up


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="The data folder (default: PILOTAGE_DATA).")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=4711, show_default=True, help="On loopback; 0 = any free port."
)
@click.option("--cpus", type=click.IntRange(1, 1024), help="The number of cores to use (default: all of this machine).")
@click.option(
    "--tree",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Activate this resource tree; CEs of CEType local get pilots.",
)
@click.option(
    "--policy",
    type=click.Path(path_type=Path, dir_okay=False, exists=True, resolve_path=True),
    help="The HTCondor policy of this machine's pilots.",
)
@click.option(
    "--writable",
    type=click.Path(path_type=Path, exists=True, resolve_path=True),
    multiple=True,
    help="A path that jobs may write to, although they are isolated; repeatable.",
)
def up(
    data: Path | None,
    port: int,
    cpus: int | None,
    tree: Path | None,
    policy: Path | None,
    writable: tuple[Path, ...],
) -> None:
    """Run server, agents and pilots on this machine, in the foreground; Ctrl-C stops them.

    Running jobs then return to the queue; the next `pilotage up` continues with all jobs.
    """
    if policy is not None:
        check_policy(policy, cpus)
    run_up(UpOptions(data_folder(data), port, cpus, tree, policy, writable), click.echo)
