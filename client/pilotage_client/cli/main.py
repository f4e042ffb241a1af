"""The command `pilotage`."""

from __future__ import annotations

import atexit
import gc
import os

import click

from pilotage.command_line.groups import HELP, examples
from pilotage.telemetry import new_trace, read_trace, trace_bound
from pilotage_client.cli.grammar.commands import NAMES, SECTIONS, TABLE
from pilotage_client.cli.grammar.names import ClientProgram

_OBJECTS_OF_A_COLLECTION = 50_000
"""A command reads thousands of jobs and keeps them: with 700, collections take a sixth of its time and free nothing."""


@click.group(
    "pilotage",
    cls=ClientProgram,
    table=TABLE,
    names=NAMES,
    sections=SECTIONS,
    context_settings=HELP,
    epilog=examples("pilotage up", "pilotage submit -- /bin/hostname", "pilotage status", "pilotage job -h"),
)
@click.version_option(package_name="pilotage", prog_name="pilotage")
def main() -> None:
    """Pilotage: one job queue over all your clusters.

    A command is a noun and a verb, such as `job submit` or `site ban`. Verbs for every day have short names.
    """
    gc.set_threshold(_OBJECTS_OF_A_COLLECTION)
    atexit.register(gc.freeze)  # a process that ends frees all memory; Python's last collections take 30 ms before that
    outer = read_trace(os.environ.get("TRACEPARENT"))  # as OpenTelemetry passes contexts to child processes
    click.get_current_context().with_resource(trace_bound(outer or new_trace()))


if __name__ == "__main__":
    main()
