"""The command `pilotage`."""

from __future__ import annotations

import gc
import os
from importlib.metadata import version

import click

from pilotage.telemetry import new_trace, read_trace, trace_bound
from pilotage_client.cli import (
    admin,
    jobs,
    notify,
    output,
    pilots,
    resources,
    routes,
    status,
    submit,
    usage,
    why,
    workflows,
)
from pilotage_client.cli.demo import condor_commands, demo, init
from pilotage_client.cli.operations import agents, audit, downtimes
from pilotage_client.cli.options import SectionedGroup
from pilotage_client.cli.show import watch
from pilotage_client.cli.top import command as top
from pilotage_client.cli.up import COMMANDS as UP_COMMANDS

_OBJECTS_OF_A_COLLECTION = 50_000
"""A command reads thousands of jobs and keeps them: with 700, collections take a sixth of its time and free nothing."""

SECTIONS = {
    "Jobs": (
        "submit",
        "status",
        "wait",
        "watch",
        "events",
        "logs",
        "userlog",
        "output",
        "why",
        "ad",
        "edit",
        "hold",
        "release",
        "remove",
        "reschedule",
        "notify",
        "rescue",
    ),
    "The grid": (
        "pools",
        "queues",
        "pilots",
        "slots",
        "races",
        "routes list",
        "routes explain",
        "shares",
        "usage",
        "top",
        "whoami",
    ),
    "Operations": (
        "doctor",
        "agents",
        "audit",
        "tree show",
        "tree put",
        "ban",
        "unban",
        "bans",
        "downtime plan",
        "downtime list",
        "downtime cancel",
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
        "pilots revoke",
        "pilot-token",
        "token",
        "token join",
        "token revoke",
        "token revocations",
    ),
    "Without a server": ("convert", "tree resolve", "tree eligible"),
    "This machine": (
        "up",
        "join",
        "context list",
        "context show",
        "context use",
        "context remove",
        "demo",
        "init",
        "condor-commands",
    ),
}


@click.group(
    cls=SectionedGroup,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(version("pilotage"), prog_name="pilotage")
def main() -> None:
    """Pilotage: one job queue over all your clusters."""
    gc.set_threshold(_OBJECTS_OF_A_COLLECTION)
    outer = read_trace(os.environ.get("TRACEPARENT"))  # as OpenTelemetry passes contexts to child processes
    click.get_current_context().with_resource(trace_bound(outer or new_trace()))


for command in (
    *UP_COMMANDS,
    demo,
    init,
    condor_commands,
    why.why,
    status.status,
    watch.watch,
    *top.COMMANDS,
    submit.submit,
    *jobs.COMMANDS,
    *output.COMMANDS,
    *notify.COMMANDS,
    *resources.COMMANDS,
    *pilots.COMMANDS,
    *admin.COMMANDS,
    *agents.COMMANDS,
    *audit.COMMANDS,
    *downtimes.COMMANDS,
    *routes.COMMANDS,
    *usage.COMMANDS,
    *workflows.COMMANDS,
):
    main.add_command(command)

if __name__ == "__main__":
    main()
