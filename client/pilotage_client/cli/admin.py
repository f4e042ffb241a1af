"""Commands about accounts and operations: shares, bans, identities, tokens, and black holes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TextIO, TypeVar

import click

from pilotage import clock
from pilotage.accounts import Quota, read_quota
from pilotage.errors import InvalidInputError, Violation
from pilotage.rpc.channel import is_loopback, split_address
from pilotage.text import count_text
from pilotage.units import parse_duration, parse_time
from pilotage_client.api import Client
from pilotage_client.cli.options import (
    AS_JSON,
    DONE,
    FAILED,
    ONE_JSON,
    echo_json,
    node_names,
    server_options,
    time_text,
    with_admin_client,
    with_client,
    with_operator_client,
)
from pilotage_client.cli.show.columns import Column, Listing, View, local_time, view_options, with_local_times
from pilotage_client.cli.show.grid_outputs import ShareJson
from pilotage_client.cli.show.operator_outputs import (
    BanJson,
    FactorJson,
    JoinTokenJson,
    QuotaJson,
    RevocationJson,
    ThrottleJson,
    TokenJson,
)
from pilotage_client.cli.show.terminal import COLOR, colored, state_style
from pilotage_client.connection import ServerOptions, resolve_server
from pilotage_client.doctor import FAULT, WARNING, examine
from pilotage_client.files import write_private
from pilotage_client.joining import (
    JOIN_KINDS,
    JOIN_TOKEN_S,
    JOINED_S,
    JoinToken,
    is_join_token,
    new_join_token,
    with_port,
)
from pilotage_client.models.accounts import AgentLimits, GroupShareInfo, RevocationInfo, ShareReport
from pilotage_client.models.operations import BanInfo, ThrottleInfo

OptionValue = TypeVar("OptionValue")

_LONGEST_TOKEN_FILE = 64 * 1024
"""Characters of a file that are read as a token; a longer text is none."""
_UNSET = click.option("--unset", is_flag=True, help="Restore the value of the server's settings.")


def share_rows(found: ShareReport) -> Iterator[ShareJson]:
    """Yield each group with its accounts below it."""
    for group in found.groups:
        yield {
            "name": f"{group.vo}/{group.group}",
            "priority": None,
            "factor": None,
            "quota": str(group.quota),
            "entitled_cores": group.entitled_cores,
            "used_core_h": group.used_core_s / 3600,
            "cores": group.cores,
            "waiting": group.waiting,
            "is_set": group.quota_is_set,
        }
        for share in found.accounts:
            if (share.vo, share.group) == (group.vo, group.group):
                yield {
                    "name": f"{group.vo}/{group.group}/{share.owner}",
                    "priority": share.user_priority,
                    "factor": share.priority_factor,
                    "quota": None,
                    "entitled_cores": None,
                    "used_core_h": share.used_core_s / 3600,
                    "cores": share.cores,
                    "waiting": share.waiting,
                    "is_set": share.priority_factor_is_set,
                }


def _marked(text: str, is_set: bool) -> str:
    return f"{text} *" if text and is_set else text


def _factor(row: ShareJson) -> str:
    return "" if row["factor"] is None else _marked(f"{row['factor']:g}", row["is_set"])


def _row_of_share(row: ShareJson) -> ShareJson:
    return row


SHARES = Listing(
    ShareJson,
    _row_of_share,
    Column("name", "GROUP / ACCOUNT", priority=0, shortest=16),
    Column("priority", priority=2),
    Column("factor", value=_factor, priority=4),
    Column("quota", value=lambda row: _marked(row["quota"] or "", row["is_set"]), right=True, priority=3),
    Column("entitled_cores", "ENTITLED", text=lambda cores: "" if cores is None else f"{cores:.1f}", priority=3),
    Column("used_core_h", "USED h", priority=1),
    Column("cores", "IN USE", text="{:g}".format, priority=1),
    Column("waiting", priority=2),
    empty="no use, and no waiting jobs",
)


@click.command("list")
@click.option("--vo", default="", help="Only this VO (default: all that you may see).")
@view_options(SHARES)
@with_client
def shares(client: Client, vo: str, view: View) -> None:
    """Show the recent use and the entitlement of groups and accounts.

    The option --json prints one object with all of them, and with --columns one for each row.
    """
    found = client.shares(vo)
    if view.as_json and not (view.columns or view.sort):
        echo_json(found.as_json())
        return
    SHARES.echo(share_rows(found), view)
    if view.as_json:
        return
    if found.groups and found.group_sort_expression:
        click.echo(f"\ngroups go in increasing order of {found.group_sort_expression}")
        for group in found.groups:
            click.echo(f"  {group.vo}/{group.group}: {_place_in_order(group)}")
    if found.groups:
        hours = f"use halves in {found.half_life_s / 3600:g} h, weighted core hours"
        click.echo(f"\n{found.pie_cores:g} cores in all; {hours}; a higher priority is worse; * = set by an operator")


@click.command("set-factor")
@click.argument("account", metavar="VO/GROUP/OWNER")
@click.argument("factor", required=False, type=float)
@_UNSET
@ONE_JSON
@with_operator_client
def set_factor(client: Client, account: str, factor: float | None, unset: bool, as_json: bool) -> None:
    """Set an account's priority factor.

    Twice the factor, half the share.
    """
    client.set_shares(factors={account: _value_or_unset(factor, unset, "factor")})
    if as_json:
        echo_json(FactorJson(account=account, factor=factor))
        return
    click.echo(f"the priority factor of {account} is " + ("that of the settings" if unset else f"{factor:g}"))


@click.command("set-quota")
@click.argument("group", metavar="VO/GROUP")
@click.argument("quota", required=False)
@_UNSET
@ONE_JSON
@with_operator_client
def set_quota(client: Client, group: str, quota: str | None, unset: bool, as_json: bool) -> None:
    """Set the quota of a group.

    A weight against other groups (3), a number of cores ("40 cores"), or a part of all cores ("25 %").
    """
    client.set_shares(quotas={group: _value_or_unset(_read_quota(quota), unset, "quota")})
    if as_json:
        echo_json(QuotaJson(group=group, quota=None if unset else str(_read_quota(quota))))
        return
    click.echo(f"the quota of {group} is " + ("that of the settings" if unset else str(_read_quota(quota))))


def _read_quota(quota: str | None) -> Quota | None:
    return None if quota is None else read_quota(quota)


def _value_or_unset(value: OptionValue | None, unset: bool, what: str) -> OptionValue | None:
    if unset == (value is not None):
        raise InvalidInputError(Violation("", f"give a {what}, or --unset"))
    return value


def _place_in_order(group: GroupShareInfo) -> str:
    value = "" if group.sort_value is None else f"{group.sort_value:g}"
    last = f"last, because {group.goes_last}" if group.goes_last else ""
    return ", ".join(part for part in (value, last) if part)


BANS = Listing(
    BanJson,
    BanInfo.as_json,
    Column("node", "PLACE", priority=0, shortest=16),
    Column("until", text=lambda time: local_time(time) or "removed", priority=1),
    Column("by", priority=3),
    Column("reason", priority=2, shortest=16),
    empty="no bans",
)


@click.command()
@click.argument("node", metavar="SITE[/CE[/QUEUE]]")
@click.option("--reason", required=True, help="The reason; shown to users.")
@click.option("--for", "duration", metavar="TIME", help='The duration, such as "2 h"; default: until `unban`.')
@ONE_JSON
@with_operator_client
def ban(client: Client, node: str, reason: str, duration: str | None, as_json: bool) -> None:
    """Ban a site, a CE or a queue, without a change of the tree."""
    until = clock.now() + parse_duration(duration, "--for") if duration else None
    banned = client.ban(node_names(node), reason=reason, until=until)
    if as_json:
        echo_json(banned.as_json())
    else:
        click.echo(f"{node} is banned" + (f" until {time_text(until)}" if until else ""))


@click.command()
@click.argument("node", metavar="SITE[/CE[/QUEUE]]")
@AS_JSON
@with_operator_client
def unban(client: Client, node: str, as_json: bool) -> None:
    """Remove a ban."""
    removed = client.unban(node_names(node))
    if as_json:
        for each in removed:
            echo_json(each.as_json())
    else:
        click.echo(f"{node} is no longer banned")


@click.command()
@view_options(BANS)
@with_operator_client
def bans(client: Client, view: View) -> None:
    """Show the present bans."""
    BANS.echo(client.bans(), view)


@click.command()
@ONE_JSON
@with_client
def whoami(client: Client, as_json: bool) -> None:
    """Show your identity at the server."""
    answer = client.who_am_i()
    if as_json:
        identity = answer.as_json()
        release = identity.pop("server_version")
        echo_json({**identity, "server": client.server, "server_version": release})
        return
    click.echo(f"{answer.owner} of VO {answer.vo or '-'}, groups {', '.join(answer.groups) or '-'}")
    until = f", until {answer.expires.astimezone():%Y-%m-%d %H:%M}" if answer.expires else ""
    click.echo(f"roles {', '.join(answer.roles)}{until}")
    click.echo(f"server {client.server}, release {answer.server_version}")


@click.command("create")
@click.option("--owner", required=True, help="The owner of the token.")
@click.option("--vo", help="The owner's VO (default: yours).")
@click.option("--group", "groups", multiple=True, help="The owner's groups, the default first.")
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    help="user, operator, admin, director, router, drainer, cleaner, racer or notifier.",
)
@click.option("--queue", "queues", multiple=True, metavar="PATTERN", help="Bind an agent to queues, such as SITE/*/*.")
@click.option("--for-vo", "vos", multiple=True, help="Bind an agent to jobs and pilots of a VO.")
@click.option("--turn", "turns", multiple=True, help='Bind an agent to a turn, such as "job router of south".')
@click.option("--scope", "scopes", multiple=True, help="Narrow what the token may do with jobs, such as compute.read.")
@click.option("--lifetime", default="30 d", show_default=True, help="The validity of the token.")
@click.option("--to", "path", type=click.Path(path_type=Path, dir_okay=False), required=True, help="The file to write.")
@ONE_JSON
@with_admin_client
def token(
    client: Client,
    owner: str,
    vo: str | None,
    groups: tuple[str, ...],
    roles: tuple[str, ...],
    queues: tuple[str, ...],
    vos: tuple[str, ...],
    turns: tuple[str, ...],
    scopes: tuple[str, ...],
    lifetime: str,
    path: Path,
    as_json: bool,
) -> None:
    """Create a token (admins of a stand-alone server); `token revoke` revokes tokens."""
    vo = client.who_am_i().vo if vo is None else vo
    issued = client.issue_token(
        owner,
        roles,
        vo=vo,
        groups=groups,
        lifetime_s=float(parse_time(lifetime, "--lifetime")),
        bounds=AgentLimits(queues, vos, turns),
        scopes=scopes,
    )
    write_private(path, issued.token + "\n")
    if as_json:
        to = str(path.absolute())
        echo_json(TokenJson(owner=owner, vo=vo or None, groups=list(groups), roles=list(roles), token_file=to))
        return
    click.echo(f"the token of {owner} is in {path}")


@click.command("join")
@click.option(
    "--as",
    "kinds",
    type=click.Choice([*JOIN_KINDS]),
    multiple=True,
    default=("user",),
    show_default=True,
    help="What the machines may do: submit jobs as the owner, or run jobs; both if given twice.",
)
@click.option("--owner", help="The owner of jobs that they submit (default: you).")
@click.option("--vo", help="The owner's VO (default: yours).")
@click.option("--group", "groups", multiple=True, help="The owner's groups, the default first.")
@click.option("--lifetime", default=f"{JOIN_TOKEN_S / 3600:g} h", show_default=True, help="The time to join within.")
@click.option(
    "--joined-lifetime",
    default=f"{JOINED_S / 86400:g} d",
    show_default=True,
    help="How long a machine is joined, until it joins again.",
)
@click.option("--address", metavar="HOST[:PORT]", help="How the machines reach the server (default: as found).")
@ONE_JSON
@with_admin_client
def join_token(
    client: Client,
    kinds: tuple[str, ...],
    owner: str | None,
    vo: str | None,
    groups: tuple[str, ...],
    lifetime: str,
    joined_lifetime: str,
    address: str | None,
    as_json: bool,
) -> None:
    """Print the command with which other machines join the server, until its token ends."""
    reached = with_port(address) if address else client.public or client.server
    if is_loopback(split_address(reached.partition(",")[0])[0]):
        why = f"{reached} is loopback: start the server with `pilotage up --listen`, or give its address"
        raise InvalidInputError(Violation("--address", why))
    token = new_join_token(
        client,
        kinds,
        owner=owner or "",
        vo=vo,
        groups=groups,
        lifetime_s=float(parse_time(lifetime, "--lifetime")),
        joined_lifetime_s=float(parse_time(joined_lifetime, "--joined-lifetime")),
    )
    command = ["pilotage", "join", reached, "--token", str(token)]
    if as_json:
        echo_json(JoinTokenJson(server=reached, token=str(token), command=command))
    else:
        click.echo(" ".join(command))


REVOCATIONS = Listing(
    RevocationJson,
    RevocationInfo.as_json,
    Column("made", priority=4),
    Column("kind", priority=1),
    Column("subject", priority=0, shortest=16),
    Column("owner", priority=2),
    Column("vo", priority=6),
    Column("by", priority=5),
    Column("expires", priority=7),
    Column("reason", priority=3, shortest=16),
    empty="nothing is revoked",
)


@click.command("revoke")
@click.argument("file", required=False, type=click.File(encoding="utf-8", errors="replace"), metavar="[FILE|-]")
@click.option("--id", "token_id", metavar="JTI", help="The id of a token, its claim jti (operators).")
@click.option("--issuer", default="", help="With --id: the issuer of the token (default: the server).")
@click.option("--owner", help="All tokens of this owner that were issued until now.")
@click.option("--vo", default="", help="With --owner: only those of this VO (default: all VOs).")
@click.option("--mine", is_flag=True, help="All of your tokens, with the one of this call.")
@click.option("--reason", required=True, help="The reason; the holder of the token sees it.")
@ONE_JSON
@with_operator_client
def revoke_tokens(
    client: Client,
    file: TextIO | None,
    token_id: str | None,
    issuer: str,
    owner: str | None,
    vo: str,
    mine: bool,
    reason: str,
    as_json: bool,
) -> None:
    """Revoke the token in FILE (- = standard input), or tokens by their id or owner.

    All servers refuse them within seconds. Users revoke their own tokens. Pilots: `pilotage pilots revoke`.
    """
    if sum((file is not None, token_id is not None, owner is not None, mine)) != 1:
        raise click.UsageError("give one of FILE, --id, --owner and --mine")
    if (issuer and token_id is None) or (vo and owner is None):
        raise click.UsageError("--issuer belongs to --id, and --vo to --owner")
    if file is not None:
        text = file.read(_LONGEST_TOKEN_FILE).strip()
        revoked = client.revoke_token(JoinToken.parse(text).jwt if is_join_token(text) else text, reason=reason)
    elif token_id is not None:
        revoked = client.revoke_token_id(token_id, issuer=issuer, reason=reason)
    else:
        revoked = client.revoke_tokens_of(owner or "", vo=vo, reason=reason)
    if as_json:
        echo_json(revoked.as_json())
        return
    what = f"token {revoked.subject} of {revoked.owner or 'an unknown owner'}"
    if revoked.kind == "owner":
        what = f"all tokens of {revoked.owner}" + (f" of the VO {revoked.vo}" if revoked.vo else "")
    click.echo(f"{what} revoked")


@click.command("revocations")
@view_options(REVOCATIONS)
@with_operator_client
def list_revocations(client: Client, view: View) -> None:
    """Show the revocations of tokens and pilots that have not expired."""
    REVOCATIONS.echo(client.revocations(), view)


_PLACE = click.argument("name", metavar="SITE[/NODE|/CE/QUEUE]")


THROTTLES = Listing(
    ThrottleJson,
    ThrottleInfo.as_json,
    Column("place", priority=0, shortest=16),
    Column("state", priority=1, state=True),
    Column("since", priority=4),
    Column("failed", value=lambda each: f"{each.failures} of {each.attempts}", right=True, priority=3),
    Column("next_trial", text=lambda time: local_time(time) or "-", priority=5),
    Column("by", priority=6),
    Column("reason", priority=2, shortest=16),
    empty="no place is throttled",
)


@click.command("list")
@view_options(THROTTLES)
@with_operator_client
def list_throttles(client: Client, view: View) -> None:
    """Show the places that are throttled or held, or were opened recently, with the evidence."""
    THROTTLES.echo(client.throttles(), view)


@click.command()
@_PLACE
@click.option("--reason", required=True, help="The reason; shown to users.")
@click.option("--for", "duration", metavar="TIME", help='The duration, such as "2 h"; default: until `health open`.')
@ONE_JSON
@with_operator_client
def hold(client: Client, name: str, reason: str, duration: str | None, as_json: bool) -> None:
    """Stop jobs to a place; after the given time single jobs probe it."""
    until = clock.now() + parse_duration(duration, "--for") if duration else None
    held, warnings = client.hold_place(_place(name), reason=reason, until=until)
    for warning in warnings:
        click.echo(f"warning: {warning}", err=True)
    if as_json:
        echo_json(held.as_json())
    else:
        click.echo(f"{held.place} is held" + (f" until {time_text(until)}" if until else ""))


@click.command("open")
@_PLACE
@ONE_JSON
@with_operator_client
def open_place(client: Client, name: str, as_json: bool) -> None:
    """Allow jobs to a place again, without probes."""
    opened = client.open_place(_place(name))
    if as_json:
        echo_json(opened.as_json())
    else:
        click.echo(f"{opened.place} is open")


def _place(name: str) -> list[str]:
    """Return the one, two or three parts of a place; a queue's name may contain a slash."""
    parts = name.split("/", 2)
    if not all(parts):
        raise InvalidInputError(Violation(name, "is not a place; write SITE, SITE/NODE or SITE/CE/QUEUE"))
    return parts


@click.command()
@AS_JSON
@COLOR
@server_options
@click.pass_context
def doctor(
    ctx: click.Context,
    server: str | None,
    token_file: Path | None,
    ca_file: Path | None,
    data: Path | None,
    context: str | None,
    as_json: bool,
) -> None:
    """Examine servers, database, broker, tree, agents and pilots; say what is wrong and what to do.

    The exit code is 1 if there is a fault; warnings alone are none.
    """
    checks = []
    for check in examine(resolve_server(ServerOptions(server, token_file, data, "operator", ca_file, context))):
        checks.append(check)
        if as_json:
            echo_json({**asdict(check), "advice": check.advice or None})
            continue
        if len({each.server for each in checks}) > len({each.server for each in checks[:-1]}):
            click.echo(f"==> {check.server} <==")
        level = colored(f"{check.level:<8}", state_style(check.level))
        click.echo(f"{level} {check.check:<12} {with_local_times(check.text)}", color=True)
        if check.advice:
            click.echo(f"{'':<8} {'':<12} -> {check.advice}")
    faults, warnings = (sum(each.level == level for each in checks) for level in (FAULT, WARNING))
    if not as_json:
        click.echo(f"{count_text(faults, 'fault')}, {count_text(warnings, 'warning')}")
    ctx.exit(FAILED if faults else DONE)
