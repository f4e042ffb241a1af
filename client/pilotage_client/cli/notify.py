"""The command `notify`: makes, lists and removes subscriptions to notifications, and reads those of `submit`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from pilotage.errors import InvalidInputError, Violation
from pilotage.notifications import NewSubscription, Occasion, RecipientKind
from pilotage.rpc.wire import time_from_wire
from pilotage.v1 import notification_service_pb2
from pilotage.values.wire.notifications import occasions_from_wire, recipient_kind_from_wire
from pilotage_client.api import Client
from pilotage_client.cli.options import AS_JSON, echo_json, echo_table, time_text, with_client

Returned = TypeVar("Returned")

_OCCASIONS = ", ".join(Occasion)


def with_subscriptions(command: Callable[..., Returned]) -> Callable[..., Returned]:
    """Pass the wanted subscriptions of the options of `submit` to a command as `notify`."""

    @click.option("--notify-url", metavar="URL", help="POST to this URL about all these jobs, as JSON.")
    @click.option("--notify-mail", is_flag=False, flag_value="", metavar="[ADDRESS]", help="Mail about all these jobs.")
    @click.option("--notify-on", default=",".join(Occasion), show_default=True, help="When to notify.")
    @wraps(command)
    def subscribing(
        *args: Any, notify_url: str | None, notify_mail: str | None, notify_on: str, **kwargs: Any
    ) -> Returned:
        wanted = subscriptions_of(notify_url, notify_mail, notify_on, "--notify-on")
        return command(*args, notify=wanted, **kwargs)

    return subscribing


def read_occasions(text: str, where: str) -> frozenset[Occasion]:
    """Return the occasions of an option such as "end,failure"; raises InvalidInputError."""
    names = [each.strip() for each in text.split(",") if each.strip()]
    unknown = [name for name in names if name not in list(Occasion)]
    if unknown or not names:
        raise InvalidInputError(Violation(where, f"{', '.join(unknown) or 'nothing'} is none of {_OCCASIONS}"))
    return frozenset(map(Occasion, names))


def subscriptions_of(url: str | None, mail: str | None, on: str, where: str) -> list[NewSubscription]:
    """Return the subscriptions for the recipients of options; raises InvalidInputError."""
    occasions = read_occasions(on, where)
    wanted = [(RecipientKind.URL, url), (RecipientKind.MAIL, mail)]
    return [NewSubscription(kind, address, occasions) for kind, address in wanted if address is not None]


def _secret(file: Path | None) -> str:
    try:
        return file.read_text().strip() if file is not None else ""
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(Violation("--secret-file", f"cannot be read: {error}")) from error


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--url", metavar="URL", help="POST to this URL, as JSON.")
@click.option("--mail", is_flag=False, flag_value="", metavar="[ADDRESS]", help="Mail; without address to your own.")
@click.option("--command", "runs_command", is_flag=True, help="Run the command that the operator has set up.")
@click.option("--on", default=",".join(Occasion), show_default=True, help="When to notify.")
@click.option("--secret-file", type=click.Path(path_type=Path, dir_okay=False), help="Sign requests by this secret.")
@click.option("--list", "listed", is_flag=True, help="List subscriptions and their notifications, also without ID.")
@click.option("--remove", "removed", multiple=True, type=int, metavar="NUMBER", help="Remove a subscription.")
@AS_JSON
@with_client
def notify(
    client: Client,
    ids: Sequence[str],
    url: str | None,
    mail: str | None,
    runs_command: bool,
    on: str,
    secret_file: Path | None,
    listed: bool,
    removed: Sequence[int],
    as_json: bool,
) -> None:
    """Notify of the end, the first failure and the first hold of a job, a cluster or a part of one.

    For example: pilotage notify 12 --mail --on end,failure. Jobs that have ended already notify of the end at once.
    """
    wanted = subscriptions_of(url, mail, on, "--on")
    if runs_command:
        wanted.append(NewSubscription(RecipientKind.COMMAND, occasions=read_occasions(on, "--on")))
    if sum((bool(wanted), listed, bool(removed))) != 1:
        raise InvalidInputError(Violation("notify", "give --url, --mail or --command, or else --list or --remove"))
    if removed:
        client.unsubscribe(removed)
    elif listed:
        _show(client.subscriptions(ids), as_json=as_json)
    elif not ids:
        raise InvalidInputError(Violation("ID", "name the jobs, such as 12 or 12.0-99"))
    else:
        secret = _secret(secret_file)
        made: list[notification_service_pb2.Subscription] = []
        for each in wanted:
            signed = NewSubscription(each.kind, each.address, each.occasions, secret)
            for jobs in ids:
                subscription, warnings = client.subscribe(jobs, signed)
                made.append(subscription)
                for warning in warnings:
                    click.echo(f"warning: {warning}", err=True)
        _show(made, as_json=as_json)


def _show(subscriptions: Sequence[notification_service_pb2.Subscription], *, as_json: bool) -> None:
    if as_json:
        for each in subscriptions:
            echo_json(_json(each))
        return
    rows = [row for each in subscriptions for row in _rows(each)]
    echo_table(("NUMBER", "JOBS", "RECIPIENT", "ON", "STATE"), rows, empty="no subscriptions")


def _rows(each: notification_service_pb2.Subscription) -> list[tuple[object, ...]]:
    """Return the lines of a subscription: the first one is of itself, the others are of its notifications."""
    occasions = occasions_from_wire(each.occasions)
    on = ",".join(occasion for occasion in Occasion if occasion in occasions)
    state = "closed" if each.HasField("closed") else "open"
    first = (each.id, _jobs(each), each.address or recipient_kind_from_wire(each.kind), on, state)
    return [first, *(("", "", "", _occasion(one), _state(one)) for one in each.notifications)]


def _jobs(each: notification_service_pb2.Subscription) -> str:
    return str(each.first_job) if each.first_job == each.last_job else f"{each.first_job}-{each.last_job}"


def _occasion(one: notification_service_pb2.Notification) -> str:
    (occasion,) = occasions_from_wire([one.occasion])
    return occasion


def _state(one: notification_service_pb2.Notification) -> str:
    if one.HasField("delivered"):
        return f"delivered {time_text(time_from_wire(one.delivered))}"
    if not one.HasField("due"):
        return f"given up after {one.tries} tries: {one.error}"
    return f"waits{f', last try: {one.error}' if one.error else ''}"


def _json(each: notification_service_pb2.Subscription) -> dict[str, Any]:
    occasions = occasions_from_wire(each.occasions)
    return {
        "id": each.id,
        "owner": each.owner,
        "vo": each.vo,
        "first_job": each.first_job,
        "last_job": each.last_job,
        "kind": recipient_kind_from_wire(each.kind).value,
        "address": each.address or None,
        "on": [occasion.value for occasion in Occasion if occasion in occasions],
        "created": _time(each, "created"),
        "closed": _time(each, "closed"),
        "notifications": [
            {
                "id": one.id,
                "occasion": _occasion(one),
                "text": one.text,
                "made": _time(one, "made"),
                "tries": one.tries,
                "error": one.error or None,
                "delivered": _time(one, "delivered"),
                "due": _time(one, "due"),
            }
            for one in each.notifications
        ],
    }


def _time(message: Any, field: str) -> str | None:
    return time_from_wire(getattr(message, field)).isoformat() if message.HasField(field) else None


COMMANDS = (notify,)
