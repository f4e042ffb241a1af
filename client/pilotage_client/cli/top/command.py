"""The command `top`, without the packages of its screen."""

from __future__ import annotations

from typing import Any

import click

from pilotage.errors import WorldError
from pilotage.programs import install_advice, missing_packages
from pilotage_client.api import Client
from pilotage_client.cli.options import server_options
from pilotage_client.cli.show.terminal import is_terminal
from pilotage_client.connection import ServerOptions

EXTRA = "tui"


@click.command()
@click.option("--interval", "interval_s", type=click.FloatRange(min=1), default=5.0, show_default=True, help="Seconds.")
@server_options
@click.pass_context
def top(ctx: click.Context, /, interval_s: float, **connection: Any) -> None:
    """Show jobs, sites, pools, slots, pilots and owners on a screen that refreshes itself.

    Keys: 1 to 6 or the mouse choose what is shown. The key s sorts by the next column, S in the other order, and /
    filters. Enter shows details, such as why a job waits. The key r refreshes, and q quits. Users see what they may
    see.
    """
    if missing := missing_packages(EXTRA):
        raise WorldError(f"top: {install_advice(EXTRA, missing)}", transient=False)
    if not is_terminal():
        raise click.UsageError("a screen needs a terminal; use `status`, `pools` and `slots`")
    from pilotage_client.cli.top.app import TopApp

    with Client.located(ServerOptions(**connection)) as client:
        app = TopApp(client, interval_s)
        app.run()
    ctx.exit(app.return_code or 0)
