"""Commands about who may do what, and what is out of use: bans, identities, tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from pilotage import clock
from pilotage.errors import InvalidInputError, Violation
from pilotage.resources import parse_duration, parse_time
from pilotage.v1 import identity_service_pb2, resource_service_pb2
from pilotage_client.api import Client
from pilotage_client.private_files import write_private
from pilotage_client.running import (
    AS_JSON,
    ONE_JSON,
    echo_json,
    echo_table,
    moment,
    with_admin_client,
    with_client,
    with_operator_client,
)
from pilotage_client.statuses import iso, time_of


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
def unban(client: Client, node: str) -> None:
    """Take a ban back."""
    client.unban(node_names(node))
    click.echo(f"{node} is in use again")


@click.command()
@AS_JSON
@with_operator_client
def bans(client: Client, as_json: bool) -> None:
    """Show the bans in force."""
    found = client.bans()
    if as_json:
        for each in found:
            echo_json(_ban_json(each))
        return
    rows = [(_node_text(each), moment(time_of(each, "until")) or "taken back", each.by, each.reason) for each in found]
    echo_table(("NODE", "UNTIL", "BY", "REASON"), rows, empty="no bans")


def _node_text(ban: resource_service_pb2.BanInfo) -> str:
    return "/".join(part for part in (ban.site, ban.ce, ban.queue) if part)


def _ban_json(ban: resource_service_pb2.BanInfo) -> dict[str, Any]:
    return {
        "node": _node_text(ban),
        "site": ban.site,
        "ce": ban.ce or None,
        "queue": ban.queue or None,
        "reason": ban.reason,
        "since": iso(time_of(ban, "since")),
        "until": iso(time_of(ban, "until")),
        "by": ban.by,
    }


def node_names(text: str) -> list[str]:
    """Return the one to three names of "site/ce/queue"; a queue's name may hold a slash."""
    names = text.split("/", 2)
    if not all(names):
        raise InvalidInputError(Violation(text, "names no site, CE or queue; write SITE, SITE/CE or SITE/CE/QUEUE"))
    return names


@click.command()
@ONE_JSON
@with_client
def whoami(client: Client, as_json: bool) -> None:
    """Show the identity that the server sees."""
    answer = client.who_am_i()
    expires = time_of(answer, "expires")
    if as_json:
        echo_json(
            {
                "owner": answer.owner,
                "vo": answer.vo or None,
                "groups": list(answer.groups),
                "roles": list(answer.roles),
                "expires": iso(expires),
                "server": client.server,
                "server_version": answer.server_version,
            }
        )
        return
    click.echo(f"{answer.owner} of VO {answer.vo or '-'}, groups {', '.join(answer.groups) or '-'}")
    until = f", until {expires.astimezone():%Y-%m-%d %H:%M}" if expires else ""
    click.echo(f"roles {', '.join(answer.roles)}{until}")
    click.echo(f"server {client.server}, release {answer.server_version}")


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


COMMANDS = (ban, unban, bans, whoami, token)
