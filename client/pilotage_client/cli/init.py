"""The command `init`, which copies the shipped examples, policies and templates to a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from pilotage.errors import InvalidInputError, Violation
from pilotage_client.shipped import Shipped

_FIRST_COMMANDS = {
    Shipped.EXAMPLES: ("job files and a resource tree", "submit {}/hello.toml"),
    Shipped.POLICIES: ("HTCondor policies for nodes", "up --policy {}/whole-machine.conf"),
    Shipped.TEMPLATES: ("additions of a site to jobs", "submit --template {}/bologna-short.toml JOB"),
}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def init(folder: Path) -> None:
    """Copy the example jobs, policies and job templates to FOLDER, to try and to change them."""
    present = [folder / name for name in Shipped if (folder / name).exists()]
    if present:
        raise InvalidInputError(*(Violation(str(path), "exists; name another folder") for path in present))
    for name, (what, command) in _FIRST_COMMANDS.items():
        target = folder / name
        shutil.copytree(name.folder, target)
        click.echo(f"{target}: {what}; try pilotage {command.format(target)}")
