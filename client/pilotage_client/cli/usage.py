"""The command `usage`, and the use of single jobs as text."""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, date

import click

from pilotage import clock
from pilotage.errors import InvalidInputError, Violation
from pilotage.units import parse_duration
from pilotage_client.api import Client
from pilotage_client.cli.options import AS_JSON, echo_json, echo_table, with_client
from pilotage_client.models import JobUsage
from pilotage_client.models.accounts import USAGE_KEYS, UsageTotal

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
    parts = [f"{usage.wall_s:.1f} s of run time on {usage.cpus} core{'s' if usage.cpus != 1 else ''}"]
    parts += [f"{usage.gpus} GPU{'s' if usage.gpus != 1 else ''}"] if usage.gpus else []
    parts += [f"{usage.suspended_s:.1f} s suspended"] if usage.suspended_s >= 0.1 else []
    parts += [f"{usage.user_cpu_s:.1f} s of user CPU, {usage.system_cpu_s:.1f} s of system CPU"]
    parts += [f"{usage.peak_memory_mib} MiB of memory"] if usage.peak_memory_mib else []
    parts += [f"{usage.peak_disk_mib} MiB of disk"] if usage.peak_disk_mib else []
    return f"attempt {usage.attempt} used {', '.join(parts)}"


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
@AS_JSON
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
    as_json: bool,
) -> None:
    """Sum what ended jobs have used: core hours, efficiency and failures by owner, group, site and time.

    Days are in UTC. An attempt counts on the day of its end. The server keeps these sums for ever.
    """
    if as_csv and as_json:
        raise InvalidInputError(Violation("--csv", "cannot be combined with --json"))
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
    rows = [(each.keys, figures_of([each])) for each in sums]
    names = [each.name for each in fields(UsageFigures)]
    if as_json:
        for values, figures in rows:
            shown = {name: getattr(figures, name) for name in names}
            echo_json({**dict(zip(keys, values, strict=True)), **shown})
    elif as_csv:
        writer = csv.writer(sys.stdout, lineterminator="\n")
        writer.writerow([*keys, *names])
        writer.writerows([*values, *(getattr(figures, name) for name in names)] for values, figures in rows)
    else:
        _echo_usage(keys, rows, figures_of(sums))


def _echo_usage(keys: Sequence[str], rows: list[tuple[tuple[str, ...], UsageFigures]], total: UsageFigures) -> None:
    headings = ("DONE", "FAILED", "INTERRUPTED", "CORE h", "FAILED h", "INTERRUPTED h", "EFFICIENCY")
    has_gpus = total.gpu_h > 0
    if len(rows) > 1:
        rows = [*rows, (("total", *[""] * (len(keys) - 1)), total)]
    echo_table(
        (*(key.upper() for key in keys), *headings, *(["GPU h"] if has_gpus else [])),
        [(*values, *_cells(figures), *([f"{figures.gpu_h:.2f}"] if has_gpus else [])) for values, figures in rows],
        empty="no ended jobs",
    )


def _cells(figures: UsageFigures) -> tuple[object, ...]:
    return (
        figures.done,
        figures.failed,
        figures.interrupted,
        f"{figures.core_h:.2f}",
        f"{figures.failed_core_h:.2f}",
        f"{figures.interrupted_core_h:.2f}",
        "" if figures.efficiency is None else f"{100 * figures.efficiency:.0f} %",
    )


def _keys(text: str) -> list[str]:
    keys = [key.strip().lower() for key in text.split(",") if key.strip()]
    for key in keys:
        if key not in USAGE_KEYS:
            raise InvalidInputError(Violation("--by", f"{key} is not one of {', '.join(USAGE_KEYS)}"))
    return keys


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
