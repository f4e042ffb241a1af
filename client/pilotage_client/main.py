"""The command `pilotage`."""

from __future__ import annotations

from importlib.metadata import version

import click

from pilotage_client.commands import grid, jobs, offline, operators, submission, why
from pilotage_client.commands.demo import demo
from pilotage_client.commands.up import up
from pilotage_client.running import CommandGroup


@click.group(cls=CommandGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(version("pilotage"), prog_name="pilotage")
def main() -> None:
    """Pilotage: one queue over every cluster that you can reach."""


for command in (
    up,
    demo,
    why.why,
    *submission.COMMANDS,
    *jobs.COMMANDS,
    *grid.COMMANDS,
    *operators.COMMANDS,
    *offline.COMMANDS,
):
    main.add_command(command)

if __name__ == "__main__":
    main()
