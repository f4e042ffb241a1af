"""Commands about shares: who has used how much, priority factors, group quotas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from pilotage.errors import InvalidInputError, Violation
from pilotage.quotas import Quota, read_quota
from pilotage.v1 import share_service_pb2
from pilotage.wire import quota_from_wire
from pilotage_client.api import Client
from pilotage_client.running import (
    ONE_JSON,
    CommandGroup,
    echo_json,
    echo_table,
    server_options,
    with_client,
    with_operator_client,
)
from pilotage_client.statuses import iso, time_of

Wanted = TypeVar("Wanted")

_HEADINGS = ("GROUP / ACCOUNT", "PRIORITY", "FACTOR", "QUOTA", "ENTITLED", "USED h", "IN USE", "WAITING")
_UNSET = click.option("--unset", is_flag=True, help="Let it be as the server's settings say again.")


@click.group(cls=CommandGroup, invoke_without_command=True)
@click.option("--vo", default="", help="Only those of this VO (default: all that you may see).")
@ONE_JSON
@server_options
@click.pass_context
def shares(
    context: click.Context, vo: str, as_json: bool, server: str | None, token_file: Path | None, data: Path | None
) -> None:
    """Show what groups and accounts have used of late, and what they are entitled to."""
    if context.invoked_subcommand is None:
        _show(server=server, token_file=token_file, data=data, vo=vo, as_json=as_json)
    elif any((vo, as_json, server, token_file, data)):  # else a change would be made on another server than was named
        path = f"{context.command_path} {context.invoked_subcommand}"
        raise click.UsageError(f"options for {context.invoked_subcommand} stand behind it: {path} --help")


@with_client
def _show(client: Client, vo: str, as_json: bool) -> None:
    found = client.shares(vo)
    if as_json:
        echo_json(_json(found))
        return
    echo_table(_HEADINGS, _rows(found), empty="nobody has used anything, and nobody waits")
    if found.groups:
        hours = f"use halves in {found.half_life_s / 3600:g} h, weighted core hours"
        click.echo(f"\n{found.pie_cores:g} cores in all; {hours}; a greater priority is worse; * = set by an operator")


@shares.command("set-factor")
@click.argument("account", metavar="VO/GROUP/OWNER")
@click.argument("factor", required=False, type=float)
@_UNSET
@with_operator_client
def set_factor(client: Client, account: str, factor: float | None, unset: bool) -> None:
    """Set an account's priority factor.

    Twice the factor, half the share.
    """
    client.set_shares(factors={account: _wanted(factor, unset, "factor")})
    click.echo(f"the priority factor of {account} is " + ("as the settings say" if unset else f"{factor:g}"))


@shares.command("set-quota")
@click.argument("group", metavar="VO/GROUP")
@click.argument("quota", required=False)
@_UNSET
@with_operator_client
def set_quota(client: Client, group: str, quota: str | None, unset: bool) -> None:
    """Set the quota of a group.

    A weight against other groups (3), a number of cores ("40 cores"), or a part of all cores ("25 %").
    """
    client.set_shares(quotas={group: _wanted(_read(quota), unset, "quota")})
    click.echo(f"the quota of {group} is " + ("as the settings say" if unset else str(_read(quota))))


def _read(quota: str | None) -> Quota | None:
    return None if quota is None else read_quota(quota)


def _wanted(value: Wanted | None, unset: bool, what: str) -> Wanted | None:
    if unset == (value is not None):
        raise InvalidInputError(Violation("", f"give a {what}, or --unset"))
    return value


def _rows(found: share_service_pb2.ListSharesResponse) -> Iterator[Sequence[str]]:
    for group in found.groups:
        quota = str(quota_from_wire(group.quota))
        yield (
            f"{group.vo}/{group.group}",
            "",
            "",
            _marked(quota, group.quota_is_set),
            f"{group.entitled_cores:.1f}",
            f"{group.used_core_s / 3600:.2f}",
            f"{group.cores:g}",
            str(group.waiting),
        )
        for each in found.accounts:
            if (each.account.vo, each.account.group) == (group.vo, group.group):
                yield _account_row(each)


def _account_row(share: share_service_pb2.AccountShare) -> Sequence[str]:
    return (
        f"  {share.account.owner}",
        f"{share.user_priority:.2f}",
        _marked(f"{share.priority_factor:g}", share.priority_factor_is_set),
        "",
        "",
        f"{share.used_core_s / 3600:.2f}",
        f"{share.cores:g}",
        str(share.waiting),
    )


def _marked(text: str, is_set: bool) -> str:
    return f"{text} *" if is_set else text


def _json(found: share_service_pb2.ListSharesResponse) -> dict[str, Any]:
    return {
        "time": iso(time_of(found, "time")),
        "half_life_s": found.half_life_s,
        "pie_cores": found.pie_cores,
        "surplus_accepted": found.surplus_accepted,
        "groups": [_group_json(group) for group in found.groups],
        "accounts": [_account_json(account) for account in found.accounts],
    }


def _group_json(group: share_service_pb2.GroupShare) -> dict[str, Any]:
    return {
        "vo": group.vo,
        "group": group.group,
        "quota": str(quota_from_wire(group.quota)),
        "quota_is_set": group.quota_is_set,
        "entitled_cores": group.entitled_cores,
        "entitled_part": group.entitled_part,
        "used_core_s": group.used_core_s,
        "used_part": group.used_part,
        "cores": group.cores,
        "waiting": group.waiting,
    }


def _account_json(share: share_service_pb2.AccountShare) -> dict[str, Any]:
    return {
        "vo": share.account.vo,
        "group": share.account.group,
        "owner": share.account.owner,
        "user_priority": share.user_priority,
        "priority_factor": share.priority_factor,
        "priority_factor_is_set": share.priority_factor_is_set,
        "used_core_s": share.used_core_s,
        "cores": share.cores,
        "waiting": share.waiting,
    }
