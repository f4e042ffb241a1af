"""The command that shows slots, as condor_status does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any

import click

from pilotage import clock
from pilotage.classad_evaluation import Ad, CompiledExpression, NoValue, compile_expression, evaluate
from pilotage.classads import Expression
from pilotage.faults import Faults
from pilotage.v1 import node_service_pb2
from pilotage_client.api import Client
from pilotage_client.running import AS_JSON, echo_json, echo_table, queue_text, with_client
from pilotage_client.shown_ads import ad_as_json, long_form
from pilotage_client.statuses import iso, time_of

_HEAD = ("NAME", "STATE", "ACTIVITY", "LOADAV", "MEM", "ACTVTYTIME", "CPUS", "JOB", "QUEUE")
_DAY_S = 86400


@click.command()
@click.argument("attributes", nargs=-1, metavar="[ATTR...]")
@click.option(
    "--constraint", default="", metavar="EXPR", help="Only slots of whose ad this ClassAd expression is true."
)
@click.option("--af", is_flag=True, help="Print only the values of ATTR..., attributes or expressions, a line a slot.")
@click.option("--long", "long", is_flag=True, help="Print the whole ad of every slot.")
@AS_JSON
@with_client
def slots(client: Client, attributes: tuple[str, ...], constraint: str, af: bool, long: bool, as_json: bool) -> None:
    """Show the slots of live pilots, with state, activity, load and the time in it."""
    if bool(attributes) != af:
        raise click.UsageError(
            "--af takes the attributes to print: slots --af Name State" if af else "what for? see --af"
        )
    if af and long:
        raise click.UsageError("--af and --long print other things of a slot; take one of them")
    columns = _compiled(attributes)
    found = client.slots(constraint, ads_wanted=af or long)
    if af:
        _print_values(found, columns, as_json=as_json)
    elif long:
        _print_ads(found, as_json=as_json)
    elif as_json:
        for info in found:
            echo_json(_slot_json(info))
    else:
        _print_table(found)


def _compiled(attributes: Sequence[str]) -> list[tuple[str, CompiledExpression]]:
    faults, columns = Faults(), []
    for text in attributes:
        with faults.within(f"--af {text}"):
            columns.append((text, compile_expression(text)))
    faults.raise_any()
    return columns


def _print_values(
    found: Sequence[node_service_pb2.SlotInfo], columns: Sequence[tuple[str, CompiledExpression]], *, as_json: bool
) -> None:
    for info in found:
        ad = Ad.read(info.ad)
        values = [(text, _plain(evaluate(expression, ad))) for text, expression in columns]
        if as_json:
            echo_json(dict(values))
        else:
            click.echo(" ".join(_text(value) for _, value in values))


def _plain(value: Any) -> Any:
    match value:
        case NoValue():
            return value.value
        case Expression(text):
            return text
        case _:
            return value


def _text(value: Any) -> str:
    """Return a value as condor_status prints it: true, not True, and a text without its quotes."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _print_ads(found: Sequence[node_service_pb2.SlotInfo], *, as_json: bool) -> None:
    if as_json:
        for info in found:
            echo_json(ad_as_json(info.ad))
    elif found:
        click.echo("\n\n".join(long_form(info.ad) for info in found))


def _print_table(found: Sequence[node_service_pb2.SlotInfo]) -> None:
    now = clock.now()
    echo_table(_HEAD, [_row(info, now) for info in found], empty="no slots")
    if found:
        states = Counter(info.slot.state for info in found)
        shown = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        click.echo(f"\n{len(found)} slot{'s' if len(found) > 1 else ''}: {shown}")


def _row(info: node_service_pb2.SlotInfo, now: datetime) -> tuple[Any, ...]:
    slot = info.slot
    shown = slot.free if slot.partitionable else slot.amounts
    since = time_of(slot, "since")
    return (
        f"{slot.name}@{info.node}",
        slot.state,
        slot.activity,
        f"{slot.load:.3f}",
        shown.memory_mib,
        _age((now - since).total_seconds()) if since is not None else "",
        shown.cpus,
        slot.job_id or "",
        queue_text(info.queue),
    )


def _age(seconds: float) -> str:
    """Return a length of time as condor_status shows it: days+hours:minutes:seconds."""
    days, rest = divmod(max(0, int(seconds)), _DAY_S)
    return f"{days}+{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def _slot_json(info: node_service_pb2.SlotInfo) -> dict[str, Any]:
    return {
        "name": info.slot.name,
        "node": info.node,
        "pilot": info.pilot_stamp,
        "site": info.queue.site,
        "ce": info.queue.ce,
        "queue": info.queue.queue,
        "state": info.slot.state,
        "activity": info.slot.activity,
        "cpus": info.slot.amounts.cpus,
        "memory_mib": info.slot.amounts.memory_mib,
        "disk_mib": info.slot.amounts.disk_mib,
        "gpus": info.slot.amounts.gpus,
        "free_cpus": info.slot.free.cpus,
        "load": info.slot.load,
        "job": info.slot.job_id or None,
        "since": iso(time_of(info.slot, "since")),
        "since_state": iso(time_of(info.slot, "since_state")),
        "last_seen": iso(time_of(info, "last_seen")),
    }
