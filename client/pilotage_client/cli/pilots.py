"""Commands about pilots, their slots, and the nodes that they run on."""

from __future__ import annotations

import re
import shlex
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from time import sleep
from typing import Any

import click

from pilotage import clock
from pilotage.errors import InvalidInputError, StateConflictError, Violation
from pilotage.resources.tree import QueueId
from pilotage.text import count_text, fold
from pilotage.units import parse_duration, parse_time
from pilotage_client.api import Client, NodeName
from pilotage_client.cli.options import (
    FAILED,
    ONE_JSON,
    ad_as_json,
    echo_json,
    long_form,
    node_names,
    past_time,
    queue_text,
    server_options,
    with_client,
    with_operator_client,
)
from pilotage_client.cli.selection.columns import AUTOFORMAT, AutoformatCommand, print_columns, read_columns
from pilotage_client.cli.selection.filters import read_place
from pilotage_client.cli.selection.names import NameChoice, check_place, stamps
from pilotage_client.cli.show.columns import Column, Listing, View, local_time, view_options, with_local_times
from pilotage_client.cli.show.grid_outputs import NodeJson, PilotJson, PilotLogJson, SlotJson
from pilotage_client.cli.show.operator_outputs import DrainedJson
from pilotage_client.files import write_private
from pilotage_client.models.grid import PILOT_STATES, NodeAttributeSet, PilotStatus, SlotDetails
from pilotage_client.up.processes import program

SLOT_STATES = ("Owner", "Unclaimed", "Claimed", "Preempting", "Drained")
_DAY_S = 86400
_ANSWER_TIME = "35 s"
"""Longer than the interval of heartbeats, at which every pilot answers."""
_POLL_S = 0.2
_WHOLE_STAMP = 32
_WILDCARDS = frozenset("*?[")
_STAMP = re.compile(r"[0-9a-f]{6,32}", re.ASCII)
"""A stamp, or the begin of one, which could also be the name of a site."""


def _age_s(info: SlotDetails) -> float | None:
    """Return for how long the activity has lasted."""
    return None if info.since is None else (clock.now() - info.since).total_seconds()


def _age(seconds: float | None) -> str:
    """Return a duration as condor_status prints it: days+hours:minutes:seconds."""
    if seconds is None:
        return ""
    days, rest = divmod(max(0, int(seconds)), _DAY_S)
    return f"{days}+{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"


def _memory_left(info: SlotDetails) -> int:
    """Return what a partitionable slot has left, in MiB, and what any other slot has."""
    return info.free_memory_mib if info.is_partitionable else info.memory_mib


def _cpus_left(info: SlotDetails) -> int:
    """Return what a partitionable slot has left, and what any other slot has."""
    return info.free_cpus if info.is_partitionable else info.cpus


SLOTS = Listing(
    SlotJson,
    SlotDetails.as_json,
    Column("slot", "NAME", value=lambda info: f"{info.name}@{info.node}", priority=0, shortest=16),
    Column("state", value=lambda info: info.state, priority=1, state=True),
    Column("activity", value=lambda info: info.activity, priority=3),
    Column("load", "LOADAV", value=lambda info: info.load, text="{:.3f}".format, priority=5),
    Column("memory", "MEM", value=_memory_left, right=True, priority=4),
    Column("activity_time", "ACTVTYTIME", value=_age_s, text=_age, right=True, priority=6),
    Column("cpus", value=_cpus_left, priority=3),
    Column("job", value=lambda info: info.job_id or None, priority=2),
    Column("where", "QUEUE", value=lambda info: queue_text(info), priority=7, shortest=16),
    empty="no slots",
)


@click.command(cls=AutoformatCommand)
@click.option("--site", default="", help="Only slots at a site.")
@click.option("--ce", default="", metavar="[SITE/]CE", help="Only slots at a CE.")
@click.option("--queue", default="", metavar="SITE/CE/QUEUE", help="Only slots in a queue.")
@click.option("--node", "on", default="", metavar="[SITE/]NODE", help="Only slots on a node.")
@click.option("--state", "states", multiple=True, type=NameChoice(SLOT_STATES), help="Only in a state, as Claimed.")
@click.option("--where", "--constraint", default="", metavar="EXPR", help="Only whose ad makes this expression true.")
@AUTOFORMAT
@click.option("--long", "long", is_flag=True, help="Print the whole ad of every slot.")
@click.option("--direct", metavar="[SITE/]NODE", help="Ask the pilots on this node, and show what they answer.")
@click.option("--timeout", metavar="TIME", help=f"How long --direct waits for the answers; default {_ANSWER_TIME}.")
@view_options(SLOTS)
@with_client
def slots(
    client: Client,
    site: str,
    ce: str,
    queue: str,
    on: str,
    states: Sequence[str],
    where: str,
    af: Sequence[str],
    long: bool,
    direct: str | None,
    timeout: str | None,
    view: View,
) -> None:
    """Show the slots of live pilots with state, activity and load, as condor_status does."""
    if timeout is not None and direct is None:
        raise click.UsageError("--timeout belongs to --direct")
    form, place = read_columns(af), read_place(site, ce, queue, on)
    if form is not None and long:
        raise click.UsageError("--af and --long cannot be combined")
    if (form is not None or long) and (view.columns or view.sort):
        raise click.UsageError("--columns and --sort belong to the table, not to --af and --long")
    node = None
    if direct is not None:
        (node,) = _nodes(client, [direct], "--direct")
        _await_answers(client, node, parse_duration(timeout or _ANSWER_TIME, "--timeout").total_seconds())
    slots_there = client.slots(where, node=node, ads_wanted=form is not None or long)
    found = [each for each in slots_there if place.has(each, each.node) and (not states or each.state in states)]
    if not found:
        check_place(client, place.site, place.ce, place.queue)
    if form is not None:
        print_columns((each.ad for each in found), form, as_json=view.as_json)
    elif long:
        _print_ads(found, as_json=view.as_json)
    else:
        SLOTS.echo(found, view)
        if not view.as_json:
            _print_notes(found)


def _await_answers(client: Client, node: NodeName, timeout_s: float) -> None:
    """Ask the pilots on a node for their slots; print the age of each answer on the standard error.

    Raises
    ------
    StateConflictError
        A pilot has not answered in time.
    """
    asked = client.request_reports(node)
    since, since_boot_s = asked.requested, clock.boot_time_s()
    while True:
        answers = {info.pilot: info for info in client.slots(node=node)}
        times = {stamp: info.answered for stamp, info in answers.items()}
        silent = [stamp for stamp in asked.pilot_stamps if (time := times.get(stamp)) is None or time < since]
        # The server's time: this machine's clock may be wrong.
        now = since + timedelta(seconds=clock.boot_time_s() - since_boot_s)
        if not silent or now >= since + timedelta(seconds=timeout_s):
            break
        sleep(_POLL_S)
    for stamp in asked.pilot_stamps:
        if stamp not in silent and (answered := times[stamp]) is not None:
            click.echo(f"pilot {stamp} on {node[1]} answered {_seconds(now - answered):.1f} s ago", err=True)
    if silent:
        last_calls = [(stamp, answers[stamp].last_seen if stamp in answers else None) for stamp in silent]
        faults = [
            f"pilot {stamp} did not answer within {timeout_s:g} s"
            + (f"; it last called {_seconds(now - last):.0f} s ago" if last is not None else "")
            for stamp, last in last_calls
        ]
        why = "a full pilot without a broker answers at its next heartbeat only; a longer --timeout may help"
        raise StateConflictError("; ".join([*faults, why]))


def _seconds(length: timedelta) -> float:
    return max(0.0, length.total_seconds())


def _print_ads(found: Sequence[SlotDetails], *, as_json: bool) -> None:
    if as_json:
        for info in found:
            echo_json(ad_as_json(info.ad))
    elif found:
        click.echo("\n\n".join(long_form(info.ad) for info in found))


def _print_notes(found: Sequence[SlotDetails]) -> None:
    if found:
        states = Counter(info.state for info in found)
        shown = ", ".join(f"{count} {state}" for state, count in sorted(states.items()))
        click.echo(f"\n{count_text(len(found), 'slot')}: {shown}")
    for info in found:
        if info.policy_fault:
            click.echo(f"{info.name}@{info.node} gets no jobs: {info.policy_fault}")


PILOT = "pilotage-pilot"


def _batch_job(pilot: PilotStatus) -> str:
    """Return the id of the pilot's job in its batch system, without the stamp that it ends with or begins with."""
    return pilot.glidein_id.removesuffix(f".{pilot.stamp}").removeprefix(f"{pilot.stamp}.")


def _pilot_queue(pilot: PilotStatus) -> str:
    return queue_text(pilot) if pilot.queue else f"one of {', '.join(pilot.queue_set)}"


def _pilot_reason(pilot: PilotStatus) -> str:
    return f"ALARM: {pilot.alarm}" if pilot.alarm else pilot.reason


PILOTS = Listing(
    PilotJson,
    PilotStatus.as_json,
    Column("stamp", priority=0, shortest=8),
    Column("batch_job", value=_batch_job, priority=6, shortest=8),
    Column("where", "QUEUE", value=_pilot_queue, priority=2, shortest=16),
    Column("state", priority=1, state=True),
    Column("node", priority=4, shortest=10),
    Column("isolation", priority=8),
    Column("jobs", priority=3),
    Column("jobs_ended", "DONE", priority=5),
    Column("last_seen", priority=7),
    Column("why", "REASON", value=_pilot_reason, text=with_local_times, priority=3, shortest=16),
    empty="no pilots",
)


@click.command("list")
@click.option("--ended", is_flag=True, help="Also pilots that have ended, or were lost more than an hour ago.")
@click.option("--site", default="", help="Only pilots of a site.")
@click.option("--ce", default="", metavar="[SITE/]CE", help="Only pilots of a CE.")
@click.option("--queue", default="", metavar="SITE/CE/QUEUE", help="Only pilots of a queue.")
@click.option("--node", default="", metavar="[SITE/]NODE", help="Only pilots on a node.")
@click.option("--state", "states", multiple=True, type=NameChoice(PILOT_STATES), help="Only in a state.")
@click.option("--since", metavar="TIME", help="Also ended ones, if they lived then: 2 h (ago), 02:00, ISO 8601.")
@click.option("--owner", default="", help="Only pilots that this owner of a token has registered.")
@click.option(
    "--log",
    "log_of",
    metavar="STAMP",
    help="Print the end of the output of a pilot that died; the begin of its stamp is enough.",
)
@view_options(PILOTS)
@server_options
def pilots(**options: Any) -> None:
    """Show pilots with their queue, state, node and jobs."""
    if stamp := options.pop("log_of"):
        others = ("ended", "site", "ce", "queue", "node", "states", "since", "owner")
        view: View = options.pop("view")
        if any(options.pop(name) for name in others) or view.columns or view.sort:
            raise click.UsageError("--log STAMP goes with no other option, except --json")
        _show_log(stamp=stamp, as_json=view.as_json, **options)
    else:
        _show_pilots(**options)


@with_operator_client
def _show_log(client: Client, stamp: str, as_json: bool) -> None:
    (whole,) = stamps(client, [stamp], ended=True)
    text = client.pilot_log(whole)
    if as_json:
        echo_json(PilotLogJson(stamp=whole, text=text))
    else:
        click.echo(text, nl=False)


@with_client
def _show_pilots(client: Client, view: View, **options: Any) -> None:
    PILOTS.echo(_find_pilots(client, **options), view)


def _find_pilots(
    client: Client,
    ended: bool,
    site: str,
    ce: str,
    queue: str,
    node: str,
    states: Sequence[str],
    since: str | None,
    owner: str,
) -> list[PilotStatus]:
    """Return the pilots that the options of the command select."""
    place = read_place(site, ce, queue, node)
    named = client.pilots(
        ended=ended,
        site=place.site,
        queue=QueueId.parse(queue) if queue else None,
        node=place.node,
        states=states,
        since=past_time(since, "--since"),
        registered_by=owner,
    )
    found = [pilot for pilot in named if not place.ce or fold(pilot.ce) == fold(place.ce)]
    if not found:
        check_place(client, place.site, place.ce, place.queue)
    return found


@click.command("revoke")
@click.argument("targets", nargs=-1, required=True, metavar="STAMP...|SITE[/CE[/QUEUE]]")
@click.option("--reason", required=True, help="The reason; shown with the pilots.")
@ONE_JSON
@with_operator_client
@click.pass_context
def revoke_pilots(context: click.Context, client: Client, targets: tuple[str, ...], reason: str, as_json: bool) -> None:
    """End the credentials of pilots, or of all that are registered at a site, a CE or a queue now.

    All servers refuse their calls within seconds, and their enrolment secrets. Their jobs return to the queue when the
    leases run out. Pilots that are registered later work: `pilotage ban` stops jobs to the place.
    """
    named = _stamps_of(client, targets)
    if len(named) < len(targets) > 1:
        raise click.UsageError("give stamps, or one site, CE or queue")
    node = () if named else node_names(targets[0])
    done = client.revoke_pilots(named, node=node, reason=reason)
    if as_json:
        echo_json({"revoked": done.count, "unknown": list(done.unknown_stamps)})
    else:
        click.echo(f"{count_text(done.count, 'pilot')} revoked")
        for stamp in done.unknown_stamps:
            click.echo(f"no live pilot {stamp}", err=True)
    if done.unknown_stamps:
        context.exit(FAILED)


def _stamps_of(client: Client, targets: Sequence[str]) -> list[str]:
    """Return the stamps that targets name, also by their begins; the name of a site is none."""
    texts = [target for target in targets if _STAMP.fullmatch(target)]
    if len(texts) == 1 and len(texts[0]) < _WHOLE_STAMP and texts[0] in {each.site for each in client.queues()}:
        return []
    return stamps(client, texts)


@click.command(name="pilot-token")
@click.argument("queues", nargs=-1, required=True, metavar="SITE/CE/QUEUE...")
@click.option("--to", "path", required=True, type=click.Path(path_type=Path, dir_okay=False), help="The file to write.")
@click.option(
    "--lifetime",
    metavar="TIME",
    help="How long the secret may wait for its use, such as '2 d' (default: the server's).",
)
@ONE_JSON
@with_operator_client
def pilot_token(client: Client, queues: tuple[str, ...], path: Path, lifetime: str | None, as_json: bool) -> None:
    """Create the enrolment secret of one pilot in a queue, and print the command that starts it.

    Several queues, or a pattern with "*", are a set. The pilot's settings queue_name or queue_command say at
    its start in which of them it is. Then it is bound to that one.
    """
    lifetime_s = float(parse_time(lifetime, "--lifetime")) if lifetime else 0.0
    is_set = len(queues) > 1 or not _WILDCARDS.isdisjoint(queues[0])
    queue = None if is_set else QueueId.parse(queues[0])
    credential = client.register_pilot(queue, lifetime_s=lifetime_s, queue_set=queues if is_set else ())
    write_private(path, credential.token + "\n")
    command = pilot_command(client.server, path.absolute())
    if as_json:
        echo_json({"stamp": credential.stamp, "token_file": str(path.absolute()), "command": command})
        return
    place = " or ".join(queues)
    click.echo(
        f"pilot {credential.stamp} for {place}: its enrolment secret, which works once, is in {path}; start it with",
        err=True,
    )
    click.echo(shlex.join(command))


def pilot_command(server: str, token_file: Path) -> list[str]:
    """Return the command that starts a pilot: its name if it is on PATH, else its path."""
    start = PILOT if shutil.which(PILOT) else program(PILOT)
    addresses = [option for address in server.split(",") for option in ("--server", address.strip())]
    return [start, "run", *addresses, "--token-file", str(token_file)]


@click.command()
@click.argument("targets", nargs=-1, metavar="[STAMP...|SITE[/CE[/QUEUE]]]")
@click.option("--node", metavar="[SITE/]NODE", help="The pilots on a node.")
@click.option("--reason", default="drained by an operator", help="The reason; shown with the pilot.")
@click.option("--evict", is_flag=True, help="Evict running jobs, which return to the queue.")
@ONE_JSON
@with_operator_client
@click.pass_context
def drain(
    ctx: click.Context,
    client: Client,
    targets: tuple[str, ...],
    node: str | None,
    reason: str,
    evict: bool,
    as_json: bool,
) -> None:
    """Drain pilots, also all of a site, a CE, a queue or a node: they take no new jobs, and end.

    Pilots that are sent later take jobs: `pilotage ban` and `pilotage downtime` close the place itself.
    """
    named = _stamps_of(client, targets)
    if (node is None) is not bool(targets) or len(named) < len(targets) > 1:
        raise click.UsageError("give stamps, one site, CE or queue, or --node")
    place = node_names(targets[0]) if targets and not named else ()
    on = _nodes(client, [node])[0] if node is not None else None
    done = client.drain_pilots(named, place=place, node=on, reason=reason, evict=evict)
    if as_json:
        echo_json(DrainedJson(drained=done.count, unknown=list(done.unknown_stamps)))
    elif not named:
        click.echo("1 pilot drains" if done.count == 1 else f"{done.count} pilots drain")
    for stamp in done.unknown_stamps:
        click.echo(f"no live pilot {stamp}", err=True)
    if done.unknown_stamps:
        ctx.exit(FAILED)


_NODES = click.option("--node", "names", multiple=True, metavar="SITE/NODE", help="A node; may be repeated.")


def _node_rows(of: NodeAttributeSet) -> Iterator[Mapping[str, object]]:
    """Yield a row for each attribute."""
    for each in of.settings:
        yield {
            "node": f"{of.site}/{of.node}",
            "attribute": each.name,
            "expression": each.expression,
            "set": each.set,
            "by": each.set_by,
        }


NODES = Listing(
    NodeJson,
    NodeAttributeSet.as_json,
    Column("node", priority=0, shortest=12),
    Column("attribute", priority=0),
    Column("expression", priority=1, shortest=16),
    Column("set", text=local_time, priority=3),
    Column("by", priority=2),
    empty="no attributes are set",
    rows=_node_rows,
)


@click.command("set")
@_NODES
@click.argument("settings", nargs=-1, required=True, metavar="ATTR=EXPR...")
@view_options(NODES)
@with_operator_client
def set_attributes(client: Client, names: tuple[str, ...], settings: tuple[str, ...], view: View) -> None:
    """Set attributes of nodes; they outlive the pilots on them."""
    found: dict[str, str] = {}
    for setting in settings:
        name, equals, expression = setting.partition("=")
        if not (equals and name.strip() and expression.strip()):
            raise InvalidInputError(Violation(setting, "is not ATTR=EXPR, such as OnlyMulticore=True"))
        found[name.strip()] = expression.strip()
    NODES.echo(client.set_node_attributes(_nodes(client, names), found), view)


@click.command("unset")
@_NODES
@click.argument("attributes", nargs=-1, required=True, metavar="ATTR...")
@view_options(NODES)
@with_operator_client
def unset_attributes(client: Client, names: tuple[str, ...], attributes: tuple[str, ...], view: View) -> None:
    """Restore the policies' values of attributes."""
    NODES.echo(client.set_node_attributes(_nodes(client, names), {}, attributes), view)


@click.command("list")
@_NODES
@view_options(NODES)
@with_operator_client
def list_attributes(client: Client, names: tuple[str, ...], view: View) -> None:
    """Show the attributes set on nodes, with time and author."""
    NODES.echo(client.node_attributes(_nodes(client, names) if names else ()), view)


def _nodes(client: Client, names: Sequence[str], option: str = "--node") -> list[NodeName]:
    """Return the nodes of these names; a name without a site is searched among the nodes with live pilots."""
    if not names:
        raise InvalidInputError(Violation(option, f"is missing; for example {option} CERN/node17"))
    split = [name.rpartition("/") for name in names]
    bare = {host for site, _, host in split if not site}
    sites: dict[str, set[str]] = {}
    for info in client.slots() if bare else ():
        sites.setdefault(info.node, set()).add(info.site)
    return [(site or _site_of(host, sites.get(host, set()), option), host) for site, _, host in split]


def _site_of(host: str, sites: set[str], option: str) -> str:
    if len(sites) == 1:
        return next(iter(sites))
    why = f"nodes of this name are at {', '.join(sorted(sites))}" if sites else "it has no live pilot"
    raise InvalidInputError(Violation(option, f"{host}: {why}; give SITE/{host}"))
