"""What the screen shows: each pane reads values by the client, has their columns, and explains one of them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from datetime import datetime
from itertools import groupby, islice
from typing import Any, TypedDict

from pilotage.v1 import pool_service_pb2, resource_service_pb2
from pilotage_client.api import Client
from pilotage_client.cli.admin import SHARES, share_rows
from pilotage_client.cli.options import count_text, queue_text, section_text, time_text
from pilotage_client.cli.pilots import PILOTS, SLOTS
from pilotage_client.cli.resources import POOLS, QUEUES
from pilotage_client.cli.show.columns import Column, Listing, View, local_time, with_local_times
from pilotage_client.cli.show.tables import Table
from pilotage_client.cli.status import JOBS
from pilotage_client.cli.why import show
from pilotage_client.models import LIVE_STATES

_MOST_JOBS = 500
_MOST_OLDEST = 10
"""The number of pools whose oldest waiting job is read, with a call for each."""


@dataclass(frozen=True, slots=True)
class Pane:
    """A part of the screen: `read` calls the server for its values, `details` for what one of them is about.

    `columns` empty = the usual ones of the listing. `sort` is the column that it is sorted by at first.
    """

    title: str
    listing: Listing[Any]
    read: Callable[[Client], Iterable[Any]]
    details: Callable[[Client, Any], str]
    columns: tuple[str, ...] = ()
    sort: str = ""
    descending: bool = False


def _active_jobs(client: Client) -> Iterable[Any]:
    return islice(client.list_jobs(states=LIVE_STATES, owner="*", newest_first=True), _MOST_JOBS)


def _why(client: Client, job_id: int) -> str:
    """Return what `why` prints about a job."""
    answer = client.explain(job_id)
    with redirect_stdout(io.StringIO()) as printed:
        show(answer)
    return printed.getvalue()


class SiteJson(TypedDict):
    """A site with the sums of its queues; `waiting` = the jobs that could go to one of them."""

    site: str
    queues: int
    open: int
    waiting: int
    matched: int
    running: int
    pilots: int
    problem: str


@dataclass(frozen=True, slots=True)
class _Site:
    """A site with its queues."""

    name: str
    queues: Sequence[resource_service_pb2.QueueInfo] = field(default=())

    def as_row(self) -> SiteJson:
        closed = [each for each in self.queues if each.banned or not each.enabled]
        reasons = (reason for each in self.queues for reason in (each.banned, each.health, each.downtime))
        return {
            "site": self.name,
            "queues": len(self.queues),
            "open": len(self.queues) - len(closed),
            "waiting": max((each.waiting for each in self.queues), default=0),
            "matched": sum(each.matched for each in self.queues),
            "running": sum(each.running for each in self.queues),
            "pilots": sum(each.pilots for each in self.queues),
            "problem": "; ".join(dict.fromkeys(filter(None, reasons))),
        }


SITES = Listing(
    SiteJson,
    _Site.as_row,
    Column("site", priority=0, shortest=12),
    Column("running", priority=1),
    Column("matched", priority=4),
    Column("waiting", priority=1),
    Column("pilots", priority=2),
    Column("queues", priority=3),
    Column("open", priority=3),
    Column("problem", text=with_local_times, priority=2, shortest=16),
    empty="no sites",
)


def _sites(client: Client) -> Iterable[_Site]:
    ordered = sorted(client.queues(), key=lambda each: each.queue.site)
    return [_Site(name, list(queues)) for name, queues in groupby(ordered, key=lambda each: each.queue.site)]


def _site_details(_: Client, site: _Site) -> str:
    table = QUEUES.table(site.queues, View(columns=("where", "enabled", "pilots", "waiting", "running", "problem")))
    return f"{site.name}: {count_text(len(site.queues), 'queue')}\n\n{_plain(table)}"


def _plain(table: Table) -> str:
    return "\n".join(table.plain(table.fit(None)))


@dataclass(frozen=True, slots=True)
class _Pool:
    """A pool, and when its oldest waiting job was submitted, as far as it was read."""

    pool: pool_service_pb2.Pool
    oldest: datetime | None = None


def _pool_json(each: _Pool) -> Mapping[str, Any]:
    return POOLS.to_json(each.pool)


POOLS_BY_AGE = Listing(
    POOLS.output,
    _pool_json,
    *POOLS.usual[:-1],
    Column("oldest", "OLDEST JOB", value=lambda each: each.oldest, text=local_time, priority=3),
    POOLS.usual[-1],
    empty=POOLS.empty,
)


def _pools(client: Client) -> Iterable[_Pool]:
    """Return the pools; those with most waiting jobs, which come first, with the time of the oldest one."""
    found = []
    for place, pool in enumerate(client.pools()):
        is_read = pool.waiting and place < _MOST_OLDEST
        first = next(client.list_jobs(states=["WAITING"], owner="*", pool=pool.id), None) if is_read else None
        found.append(_Pool(pool, first.submitted if first else None))
    return found


def _pool_details(client: Client, each: _Pool) -> str:
    pool = each.pool
    queues = "\n".join(f"  {queue_text(queue)}" for queue in pool.queues) or "  none: no queue can run its jobs"
    lines = [
        pool.id,
        f"VO {pool.vo}: {count_text(pool.waiting, 'waiting job')}, {pool.running} running",
        f"Requirements: {section_text(POOLS.to_json(pool)['requirements']) or 'none'}",
        f"Mapped {local_time(POOLS.to_json(pool)['mapped']) or 'not yet'} with tree version {pool.tree_version}",
        f"Eligible queues: {len(pool.queues)}",
        queues,
    ]
    oldest = next(client.list_jobs(states=["WAITING"], owner="*", pool=pool.id), None)
    if oldest is not None:
        lines += ["", f"The oldest waiting job is {oldest.id}, since {time_text(oldest.submitted)}.", ""]
        lines += [_why(client, oldest.id)]
    return "\n".join(lines)


def _slot_details(client: Client, info: Any) -> str:
    facts = _as_lines(SLOTS.to_json(info))
    return f"{facts}\n\n{_why(client, info.slot.job_id)}" if info.slot.job_id else facts


def _as_lines(values: Mapping[str, Any]) -> str:
    """Return the values of a JSON object, a line each; those that are missing are left out."""
    known = {name: value for name, value in values.items() if value not in (None, "", [])}
    width = max(map(len, known), default=0)
    return "\n".join(
        f"{name:<{width}}  {value if isinstance(value, str) else json.dumps(value)}" for name, value in known.items()
    )


PANES: Sequence[Pane] = (
    Pane(
        "Jobs",
        JOBS,
        _active_jobs,
        lambda client, job: _why(client, job.id),
        ("id", "name", "state", "owner", "where", "submitted", "reason"),
    ),
    Pane("Sites", SITES, _sites, _site_details, sort="running", descending=True),
    Pane("Pools", POOLS_BY_AGE, _pools, _pool_details),
    Pane("Slots", SLOTS, lambda client: client.slots(), _slot_details),
    Pane("Pilots", PILOTS, lambda client: client.pilots(), lambda _, each: _as_lines(PILOTS.to_json(each))),
    Pane("Owners", SHARES, lambda client: share_rows(client.shares()), lambda _, row: _as_lines(row)),
)
