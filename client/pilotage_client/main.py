"""The command `pilotage`."""

from __future__ import annotations

from importlib.metadata import version

import click

from pilotage_client.commands import (
    following,
    grid,
    health,
    jobs,
    nodes,
    offline,
    operators,
    output,
    pilots,
    races,
    routes,
    shares,
    slots,
    submission,
    tree,
    why,
)
from pilotage_client.commands.demo import demo
from pilotage_client.commands.up import up
from pilotage_client.running import SectionedGroup

SECTIONS = {
    "Jobs": (
        "submit",
        "status",
        "wait",
        "logs",
        "output",
        "why",
        "ad",
        "edit",
        "hold",
        "release",
        "remove",
        "reschedule",
    ),
    "The grid": ("pools", "queues", "pilots", "slots", "races", "routes list", "routes explain", "shares", "whoami"),
    "Operating it": (
        "tree show",
        "tree put",
        "ban",
        "unban",
        "bans",
        "health list",
        "health hold",
        "health open",
        "drain",
        "routes give-up",
        "shares set-factor",
        "shares set-quota",
        "node set",
        "node unset",
        "node list",
        "pilot-token",
        "token",
    ),
    "Without a server": ("convert", "tree resolve", "tree eligible"),
    "This machine": ("up", "demo"),
}


@click.group(
    cls=SectionedGroup,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(version("pilotage"), prog_name="pilotage")
def main() -> None:
    """Pilotage: one queue over every cluster that you can reach."""


for command in (
    up,
    demo,
    why.why,
    tree.tree,
    slots.slots,
    nodes.node,
    health.health,
    races.races,
    routes.routes,
    shares.shares,
    *submission.COMMANDS,
    *following.COMMANDS,
    *jobs.COMMANDS,
    *output.COMMANDS,
    *grid.COMMANDS,
    *pilots.COMMANDS,
    *operators.COMMANDS,
    *offline.COMMANDS,
):
    main.add_command(command)

if __name__ == "__main__":
    main()
