"""Commands for operators: the tree in force, bans, tokens."""

from __future__ import annotations

from pathlib import Path

import click

from pilotage import clock
from pilotage.errors import InvalidInputError, Violation
from pilotage.resources import parse_duration, parse_time
from pilotage.v1 import identity_service_pb2, resource_service_pb2
from pilotage_client.api import Client
from pilotage_client.commands.offline import eligible, resolve
from pilotage_client.private_files import write_private
from pilotage_client.running import echo_json, echo_table, with_admin_client, with_client, with_operator_client
from pilotage_client.statuses import time_of
from pilotage_client.tree_files import read_tree_file, tree_format

SHOWN_CHANGES = 20


@click.group()
def tree() -> None:
    """Show the resource tree, bring a new version of it, or look into a file offline."""


tree.add_command(resolve)
tree.add_command(eligible)


@tree.command()
@with_operator_client
def show(client: Client) -> None:
    """Print the tree in force, as it was given."""
    click.echo(client.tree().text, nl=False)


@tree.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--validate-only", is_flag=True, help="Only say what it would change.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
@with_operator_client
def put(client: Client, file: Path, validate_only: bool, as_json: bool) -> None:
    """Bring a new version of the tree: taken whole, or refused whole with every error."""
    answer = client.put_tree(read_tree_file(file), tree_format(file), validate_only=validate_only)
    for warning in answer.warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        echo_json(_changes_json(answer))
    else:
        _show_changes(answer, validate_only=validate_only)


def _changes_json(answer: resource_service_pb2.PutTreeResponse) -> dict[str, object]:
    return {
        "version": answer.version,
        "jobs_runnable": answer.jobs_runnable,
        "jobs_stuck": answer.jobs_stuck,
        "pools_rekeyed": answer.pools_rekeyed,
        "changes": [
            {
                "pool": change.pool_id,
                "gained": [f"{queue.site}/{queue.ce}/{queue.queue}" for queue in change.gained],
                "lost": [f"{queue.site}/{queue.ce}/{queue.queue}" for queue in change.lost],
            }
            for change in answer.changes
        ],
        "warnings": list(answer.warnings),
    }


def _show_changes(answer: resource_service_pb2.PutTreeResponse, *, validate_only: bool) -> None:
    click.echo(f"tree version {answer.version} {'would be' if validate_only else 'is'} in force")
    for change in answer.changes[:SHOWN_CHANGES]:
        click.echo(f"pool {change.pool_id[:12]}: +{len(change.gained)} -{len(change.lost)} queues")
    if len(answer.changes) > SHOWN_CHANGES:
        click.echo(f"... and {len(answer.changes) - SHOWN_CHANGES} more pools (--json has all)")
    click.echo(f"waiting jobs that become runnable: {answer.jobs_runnable}, that become stuck: {answer.jobs_stuck}")


@click.command()
@click.argument("node", metavar="SITE[/CE[/QUEUE]]")
@click.option("--reason", required=True, help="Why; users see it.")
@click.option("--for", "duration", metavar="TIME", help='How long, such as "2 h"; default: until it is taken back.')
@with_operator_client
def ban(client: Client, node: str, reason: str, duration: str | None) -> None:
    """Take a site, a CE or a queue out of use, without editing the tree."""
    until = clock.now() + parse_duration(duration, "--for") if duration else None
    client.ban(node_names(node), reason=reason, until=until)
    click.echo(f"{node} is banned" + (f" until {until.isoformat(timespec='seconds')}" if until else ""))


@click.command()
@click.argument("node", metavar="SITE[/CE[/QUEUE]]")
@with_operator_client
@click.pass_context
def unban(ctx: click.Context, client: Client, node: str) -> None:
    """Take a ban back."""
    if not client.unban(node_names(node)):
        click.echo(f"pilotage: {node} is not banned", err=True)
        ctx.exit(1)
    click.echo(f"{node} is in use again")


@click.command()
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
@with_operator_client
def bans(client: Client, as_json: bool) -> None:
    """Show the bans in force."""
    rows = []
    for each in client.bans():
        until = time_of(each, "until")
        node = "/".join(part for part in (each.site, each.ce, each.queue) if part)
        ends = until.isoformat(timespec="seconds") if until else None
        if as_json:
            echo_json({"node": node, "reason": each.reason, "until": ends, "by": each.by})
        rows.append((node, ends or "taken back", each.by, each.reason))
    if not as_json:
        echo_table(("NODE", "UNTIL", "BY", "REASON"), rows, empty="no bans")


def node_names(text: str) -> list[str]:
    """Return the one to three names of "site/ce/queue"; a queue's name may hold a slash."""
    names = text.split("/", 2)
    if not all(names):
        raise InvalidInputError(Violation(text, "names no site, CE or queue; write SITE, SITE/CE or SITE/CE/QUEUE"))
    return names


@click.command()
@with_client
def whoami(client: Client) -> None:
    """Show the identity that the server sees."""
    answer = client.who_am_i()
    click.echo(f"{answer.owner} of VO {answer.vo or '-'}, groups {', '.join(answer.groups) or '-'}")
    click.echo(f"roles {', '.join(answer.roles)}; server {answer.server_version}")


@click.command()
@click.option("--owner", required=True, help="For whom.")
@click.option("--vo", help="The owner's VO (default: yours).")
@click.option("--group", "groups", multiple=True, help="The owner's groups, the default first.")
@click.option("--role", "roles", multiple=True, required=True, help="user, operator, agent or admin.")
@click.option("--lifetime", default="30 d", show_default=True, help="How long it holds.")
@click.option("--to", "path", required=True, type=click.Path(path_type=Path, dir_okay=False), help="Write it there.")
@with_admin_client
def token(
    client: Client,
    owner: str,
    vo: str | None,
    groups: tuple[str, ...],
    roles: tuple[str, ...],
    lifetime: str,
    path: Path,
) -> None:
    """Make a token for somebody (admins of a stand-alone server)."""
    request = identity_service_pb2.IssueTokenRequest(
        owner=owner,
        vo=client.who_am_i().vo if vo is None else vo,
        groups=groups,
        roles=roles,
        lifetime_s=float(parse_time(lifetime, "--lifetime")),
    )
    write_private(path, client.issue_token(request).token + "\n")
    click.echo(f"the token of {owner} lies in {path}")


COMMANDS = (tree, ban, unban, bans, whoami, token)
