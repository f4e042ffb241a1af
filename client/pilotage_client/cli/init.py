"""The command `init`, which copies the shipped examples, policies, templates and monitoring files to a folder."""

from __future__ import annotations

import shutil
from pathlib import Path

import click

from pilotage.errors import InvalidInputError, Violation
from pilotage_client.shipped import Shipped

_FIRST_STEPS = {
    Shipped.EXAMPLES: ("job files and a resource tree", "try pilotage submit {}/hello.toml"),
    Shipped.MONITORING: ("alert rules and a dashboard", "name {}/alerts.yml in the rule_files of Prometheus"),
    Shipped.POLICIES: ("HTCondor policies for nodes", "try pilotage up --policy {}/whole-machine.conf"),
    Shipped.TEMPLATES: ("additions of a site to jobs", "try pilotage submit --template {}/bologna-short.toml JOB"),
}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
def init(folder: Path) -> None:
    """Copy the example jobs, policies, job templates and monitoring files to FOLDER, to try and to change them."""
    present = [folder / name for name in Shipped if (folder / name).exists()]
    if present:
        raise InvalidInputError(*(Violation(str(path), "exists; name another folder") for path in present))
    for name, (what, step) in _FIRST_STEPS.items():
        target = folder / name
        shutil.copytree(name.folder, target)
        click.echo(f"{target}: {what}; {step.format(target)}")
