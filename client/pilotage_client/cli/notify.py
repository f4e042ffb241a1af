"""The command `notify`: makes, lists and removes subscriptions to notifications, and reads those of `submit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from pilotage.errors import Faults, InvalidInputError, Violation
from pilotage.notifications import NewSubscription, Occasion, RecipientKind
from pilotage_client.api import Client
from pilotage_client.cli.options import echo_json, time_text, with_client
from pilotage_client.cli.show.columns import Column, Listing, View, view_options
from pilotage_client.cli.show.outputs import SubscriptionJson, UnsubscribedJson
from pilotage_client.dependencies import read_parent
from pilotage_client.models.accounts import NotificationInfo, SubscriptionInfo

Returned = TypeVar("Returned")

_OCCASIONS = ", ".join(Occasion)


def with_subscriptions(command: Callable[..., Returned]) -> Callable[..., Returned]:
    """Pass the wanted subscriptions of the options of `submit` to a command as `notify`."""

    @click.option("--notify-url", metavar="URL", help="POST to this URL about all these jobs, as JSON.")
    @click.option("--notify-mail", is_flag=True, help="Mail to you about all these jobs.")
    @click.option("--notify-mail-to", metavar="ADDRESS", help="Mail to this address about all these jobs.")
    @click.option("--notify-on", default=",".join(Occasion), show_default=True, help="When to notify.")
    @wraps(command)
    def subscribing(
        *args: Any,
        notify_url: str | None,
        notify_mail: bool,
        notify_mail_to: str | None,
        notify_on: str,
        **kwargs: Any,
    ) -> Returned:
        occasions = read_occasions(notify_on, "--notify-on")
        wanted = subscriptions_of(notify_url, notify_mail_to, occasions, mails_owner=notify_mail)
        return command(*args, notify=wanted, **kwargs)

    return subscribing


def read_occasions(text: str, where: str) -> frozenset[Occasion]:
    """Return the occasions of an option such as "end,failure"; raises InvalidInputError."""
    names = [each.strip() for each in text.split(",") if each.strip()]
    unknown = [name for name in names if name not in list(Occasion)]
    if unknown or not names:
        raise InvalidInputError(Violation(where, f"{', '.join(unknown) or 'nothing'} is none of {_OCCASIONS}"))
    return frozenset(map(Occasion, names))


def subscriptions_of(
    url: str | None, mail_to: str | None, occasions: frozenset[Occasion], *, mails_owner: bool, secret: str = ""
) -> list[NewSubscription]:
    """Return the subscriptions for the recipients of options; the secret is that of the URL."""
    wanted = []
    if url is not None:
        wanted.append(NewSubscription(RecipientKind.URL, url, occasions, secret))
    if mails_owner:
        wanted.append(NewSubscription(RecipientKind.MAIL, "", occasions))
    if mail_to is not None:
        wanted.append(NewSubscription(RecipientKind.MAIL, mail_to, occasions))
    return wanted


def _secret(file: Path) -> str:
    try:
        secret = file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(Violation("--secret-file", f"cannot be read: {error}")) from error
    if not secret:
        raise InvalidInputError(Violation("--secret-file", f"{file} is empty"))
    return secret


def _rows(each: SubscriptionInfo) -> Iterator[Mapping[str, object]]:
    """Yield the rows of a subscription: the first one is of itself, the others are of its notifications."""
    yield {
        "id": each.id,
        "jobs": _jobs(each),
        "recipient": _recipient(each),
        "on": _occasions(each),
        "state": "open" if each.closed is None else "closed",
    }
    yield from ({"on": one.occasion, "state": _state(one)} for one in each.notifications)


def _jobs(each: SubscriptionInfo) -> str:
    return str(each.first_job) if each.first_job == each.last_job else f"{each.first_job}-{each.last_job}"


def _recipient(each: SubscriptionInfo) -> str:
    return each.address or each.kind


def _occasions(each: SubscriptionInfo) -> str:
    return ",".join(each.occasions)


def _state(one: NotificationInfo) -> str:
    if one.delivered is not None:
        return f"delivered {time_text(one.delivered)}"
    if one.is_given_up:
        return f"given up after {one.tries} tries: {one.error}"
    return f"waits{f', last try: {one.error}' if one.error else ''}"


SUBSCRIPTIONS = Listing(
    SubscriptionJson,
    SubscriptionInfo.as_json,
    Column("id", "NUMBER", priority=0),
    Column("jobs", priority=1, shortest=10),
    Column("recipient", priority=2, shortest=16),
    Column("on", priority=3, shortest=10),
    Column("state", priority=1, shortest=16),
    empty="no subscriptions",
    rows=_rows,
)


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--url", metavar="URL", help="POST to this URL, as JSON.")
@click.option("--mail", is_flag=True, help="Mail to you.")
@click.option("--mail-to", metavar="ADDRESS", help="Mail to this address.")
@click.option("--command", "runs_command", is_flag=True, help="Run the command that the operator has set up.")
@click.option("--on", default=",".join(Occasion), show_default=True, help="When to notify.")
@click.option("--secret-file", type=click.Path(path_type=Path, dir_okay=False), help="Sign the requests to the URL.")
@click.option("--list", "listed", is_flag=True, help="List subscriptions and their notifications, also without ID.")
@click.option("--remove", "removed", multiple=True, type=int, metavar="NUMBER", help="Remove a subscription.")
@view_options(SUBSCRIPTIONS)
@with_client
def notify(
    client: Client,
    ids: Sequence[str],
    url: str | None,
    mail: bool,
    mail_to: str | None,
    runs_command: bool,
    on: str,
    secret_file: Path | None,
    listed: bool,
    removed: Sequence[int],
    view: View,
) -> None:
    """Notify of the end, the first failure and the first hold of a job, a cluster, a part of one or a workflow (w12).

    For example: pilotage notify 12 --mail --on end,failure. Jobs that have ended already notify of the end at once.
    """
    occasions = read_occasions(on, "--on")
    if secret_file is not None and url is None:
        raise InvalidInputError(Violation("--secret-file", "signs requests to a URL; give --url"))
    secret = _secret(secret_file) if secret_file is not None else ""
    wanted = subscriptions_of(url, mail_to, occasions, mails_owner=mail, secret=secret)
    if runs_command:
        wanted.append(NewSubscription(RecipientKind.COMMAND, occasions=occasions))
    if sum((bool(wanted), listed, bool(removed))) != 1:
        recipients = "--url, --mail, --mail-to or --command"
        raise InvalidInputError(Violation("notify", f"give {recipients}, or else --list or --remove"))
    if removed:
        client.unsubscribe(removed)
        if view.as_json:
            echo_json(UnsubscribedJson(removed=list(removed)))
    elif listed:
        SUBSCRIPTIONS.echo(client.subscriptions(ids), view)
    elif not ids:
        raise InvalidInputError(Violation("ID", "name the jobs, such as 12, 12.0-99 or w12"))
    else:
        _subscribe(client, ids, wanted, as_json=view.as_json)


def _subscribe(client: Client, ids: Sequence[str], wanted: Sequence[NewSubscription], *, as_json: bool) -> None:
    """Make each wanted subscription for each of the jobs; all arguments are checked before the first one is made."""
    faults = Faults()
    for each in wanted:
        faults.unless(not each.fault, "notify", each.fault)
    for jobs in ids:
        with faults.within(""):
            read_parent(jobs)
    faults.raise_any()
    for each in wanted:
        for jobs in ids:
            made, warnings = client.subscribe(jobs, each)
            for warning in warnings:
                click.echo(f"warning: {warning}", err=True)
            if as_json:
                echo_json(made.as_json())
            else:
                click.echo(f"subscription {made.id}: jobs {_jobs(made)}, {_recipient(made)}, {_occasions(made)}")
