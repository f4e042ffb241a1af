"""The command that makes HTCondor's commands."""

from __future__ import annotations

from pathlib import Path

import click

from pilotage_client.condor.main import write_scripts


@click.command("condor-commands")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def condor_commands(folder: Path) -> None:
    """Write condor_submit, condor_q and other commands of HTCondor to FOLDER, which you put on PATH."""
    scripts = write_scripts(folder)
    names = ", ".join(path.name for path in scripts)
    click.echo(f'{folder}: {names}; try export PATH="{folder.absolute()}:$PATH"')
