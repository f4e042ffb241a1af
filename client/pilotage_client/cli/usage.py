"""The command `usage`, and the use of single jobs as text."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from datetime import UTC, date
from typing import cast

import click

from pilotage import clock
from pilotage.errors import InvalidInputError, Violation
from pilotage.text import count_text
from pilotage.units import parse_duration
from pilotage_client.api import Client
from pilotage_client.cli.options import with_client
from pilotage_client.cli.show.columns import Column, Listing, View, view_options
from pilotage_client.cli.show.grid_outputs import UsageSumJson
from pilotage_client.models import JobUsage
from pilotage_client.models.accounts import USAGE_KEYS, UsageTotal
from pilotage_client.models.reading import one_of

_HOUR_S = 3600


@dataclass(frozen=True, slots=True)
class UsageFigures:
    """Attempts by result, core hours by result, CPU hours and GPU hours; the fields are the JSON keys and columns."""

    done: int
    failed: int
    interrupted: int
    core_h: float
    failed_core_h: float
    interrupted_core_h: float
    cpu_h: float
    efficiency: float | None
    gpu_h: float


def figures_of(sums: Sequence[UsageTotal]) -> UsageFigures:
    """Return the figures of some sums together; `efficiency` None = no core hours."""
    wasted = [sum(each.failed_core_s for each in sums), sum(each.interrupted_core_s for each in sums)]
    core_s = sum(each.done_core_s for each in sums) + sum(wasted)
    cpu_s = sum(each.cpu_s for each in sums)
    return UsageFigures(
        done=sum(each.done for each in sums),
        failed=sum(each.failed for each in sums),
        interrupted=sum(each.interrupted for each in sums),
        core_h=_hours(core_s),
        failed_core_h=_hours(wasted[0]),
        interrupted_core_h=_hours(wasted[1]),
        cpu_h=_hours(cpu_s),
        efficiency=round(cpu_s / core_s, 4) if core_s > 0 else None,
        gpu_h=_hours(sum(each.gpu_s for each in sums)),
    )


def _hours(seconds: float) -> float:
    return round(seconds / _HOUR_S, 6)


def usage_text(usage: JobUsage) -> str:
    """Return what an attempt has used, for people."""
    parts = [f"{usage.wall_s:.1f} s of run time on {count_text(usage.cpus, 'core')}"]
    parts += [count_text(usage.gpus, "GPU")] if usage.gpus else []
    parts += [f"{usage.suspended_s:.1f} s suspended"] if usage.suspended_s >= 0.1 else []
    parts += [f"{usage.user_cpu_s:.1f} s of user CPU, {usage.system_cpu_s:.1f} s of system CPU"]
    parts += [f"{usage.peak_memory_mib} MiB of memory"] if usage.peak_memory_mib else []
    parts += [f"{usage.peak_disk_mib} MiB of disk"] if usage.peak_disk_mib else []
    return f"attempt {usage.attempt} used {', '.join(parts)}"


def _sum_json(keys: Mapping[str, str], sums: Sequence[UsageTotal]) -> UsageSumJson:
    figures = figures_of(sums)
    return cast(UsageSumJson, {**keys, **{each.name: getattr(figures, each.name) for each in fields(figures)}})


def _same(row: UsageSumJson) -> UsageSumJson:
    return row


USAGE = Listing(
    UsageSumJson,
    _same,
    *(Column(key, priority=0, shortest=10) for key in USAGE_KEYS),
    Column("done", priority=2),
    Column("failed", priority=2),
    Column("interrupted", priority=4),
    Column("core_h", "CORE h", priority=1),
    Column("failed_core_h", "FAILED h", priority=3),
    Column("interrupted_core_h", "INTERRUPTED h", priority=5),
    Column("efficiency", text=lambda part: "" if part is None else f"{100 * part:.0f} %", priority=2),
    Column("gpu_h", "GPU h", priority=3),
    empty="no ended jobs",
)


@click.command()
@click.option(
    "--by", default="owner", show_default=True, metavar="KEY,...", help=f"One row for each: {', '.join(USAGE_KEYS)}."
)
@click.option("--since", default="30 d", show_default=True, metavar="DAY|TIME", help='As 2026-11-01, or "30 d" ago.')
@click.option("--until", metavar="DAY", help="The last day, included (default: today).")
@click.option("--vo", default="", help="Only this VO (default: all that you may see).")
@click.option("--group", "groups", multiple=True, help="Only this group; may be repeated.")
@click.option("--owner", "owners", multiple=True, help="Only this owner; may be repeated.")
@click.option("--site", "sites", multiple=True, help="Only this site; may be repeated.")
@click.option("--csv", "as_csv", is_flag=True, help="Comma-separated values with a header.")
@view_options(USAGE)
@with_client
def usage(
    client: Client,
    by: str,
    since: str,
    until: str | None,
    vo: str,
    groups: Sequence[str],
    owners: Sequence[str],
    sites: Sequence[str],
    as_csv: bool,
    view: View,
) -> None:
    """Sum what ended jobs have used: core hours, efficiency and failures by owner, group, site and time.

    Days are in UTC. An attempt counts on the day of its end. The server keeps these sums for ever.
    """
    if as_csv and view:
        raise InvalidInputError(Violation("--csv", "cannot be combined with --json, --columns and --sort"))
    keys = _keys(by)
    sums = client.usage(
        keys,
        since=_since(since),
        until=None if until is None else _day(until, "--until"),
        vo=vo,
        groups=groups,
        owners=owners,
        sites=sites,
    )
    rows = [_sum_json(dict(zip(keys, each.keys, strict=True)), [each]) for each in sums]
    if as_csv:
        names = [*keys, *(each.name for each in fields(UsageFigures))]
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow(names)
        writer.writerows([row[name] for name in names] for row in map(dict[str, object], rows))
        return
    if len(rows) > 1 and not view.as_json:
        rows = [*USAGE.ordered(rows, view), _sum_json({keys[0]: "total"}, sums)]
        view = replace(view, sort="")  # the total stays the last
    if not (view.columns or view.as_json):
        has_gpus = any(row["gpu_h"] for row in rows)
        figures = (column.name for column in USAGE.usual if column.name not in USAGE_KEYS)
        view = replace(view, columns=(*keys, *(name for name in figures if has_gpus or name != "gpu_h")))
    USAGE.echo(rows, view)


def _keys(text: str) -> list[str]:
    return [one_of("--by", key.strip().lower(), USAGE_KEYS) for key in text.split(",") if key.strip()]


def _since(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        pass
    try:
        return (clock.now().astimezone(UTC) - parse_duration(text)).date()
    except (InvalidInputError, OverflowError):
        why = f'{text!r} is neither a day, such as 2026-11-01, nor a time, such as "30 d"'
        raise InvalidInputError(Violation("--since", why)) from None


def _day(text: str, option: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(Violation(option, f"{text} is not a day, such as 2026-11-26")) from None
