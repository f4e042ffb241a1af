"""The command that shows the audit: which operators and agents have changed what."""

from __future__ import annotations

import click

from pilotage_client.api import Client
from pilotage_client.cli.options import AS_JSON, echo_json, past_time, printable, time_text, with_operator_client
from pilotage_client.models.operations import AuditRecord


@click.command()
@click.option("--since", metavar="TIME", help="Since then: 2 h (ago), 02:00 (the last one here), or ISO 8601.")
@click.option("--who", default="", metavar="OWNER", help="Only changes by this owner of a token.")
@click.option("--what", default="", metavar="KIND", help="Only changes of a kind, such as tree, ban, token or jobs.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True, help="The newest ones only.")
@AS_JSON
@with_operator_client
def audit(client: Client, since: str | None, who: str, what: str, limit: int, as_json: bool) -> None:
    """Show who has changed what and when, with the difference, the newest change first."""
    shown = 0
    for entry in client.audit(since=past_time(since, "--since"), who=who, what=what):
        if shown == limit:
            if not as_json:
                click.echo(f"pilotage: there are more; --limit {2 * limit} shows them", err=True)
            break
        shown += 1
        if as_json:
            echo_json(entry.as_json())
        else:
            _echo_entry(entry)
    if not shown and not as_json:
        click.echo("no changes")


def _echo_entry(entry: AuditRecord) -> None:
    by = (
        entry.who
        + (f" ({', '.join(entry.roles)})" if entry.roles else "")
        + (f" as {entry.agent}" if entry.agent else "")
    )
    reason = f": {entry.reason}" if entry.reason else ""
    click.echo(printable(f"{time_text(entry.time)}  {entry.what} {entry.subject}, by {by}{reason}"))
    for line in entry.difference.splitlines():
        click.echo(f"    {printable(line)}")
