"""What the screen shows: each pane reads values by the client, has their columns, and explains one of them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any

from pilotage.text import count_text
from pilotage_client.api import Client
from pilotage_client.cli.admin import SHARES, share_rows
from pilotage_client.cli.operations.sites import SITES, SiteQueues, sites_of
from pilotage_client.cli.options import queue_text, section_text, time_text
from pilotage_client.cli.pilots import PILOTS, SLOTS
from pilotage_client.cli.resources import POOLS, QUEUES
from pilotage_client.cli.show.columns import Column, Listing, View, local_time
from pilotage_client.cli.show.tables import Table
from pilotage_client.cli.status import JOBS
from pilotage_client.cli.why import show
from pilotage_client.models import LIVE_STATES
from pilotage_client.models.grid import PoolInfo, SlotDetails

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


def _site_details(_: Client, site: SiteQueues) -> str:
    table = QUEUES.table(site.queues, View(columns=("where", "enabled", "pilots", "waiting", "running", "problem")))
    return f"{site.name}: {count_text(len(site.queues), 'queue')}\n\n{_plain(table)}"


def _plain(table: Table) -> str:
    return "\n".join(table.plain(table.fit(None)))


@dataclass(frozen=True, slots=True)
class _Pool:
    """A pool, and when its oldest waiting job was submitted, as far as it was read."""

    pool: PoolInfo
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
        f"Requirements: {section_text(pool.requirements) or 'none'}",
        f"Mapped {local_time(pool.mapped) or 'not yet'} with tree version {pool.tree_version}",
        f"Eligible queues: {len(pool.queues)}",
        queues,
    ]
    oldest = next(client.list_jobs(states=["WAITING"], owner="*", pool=pool.id), None)
    if oldest is not None:
        lines += ["", f"The oldest waiting job is {oldest.id}, since {time_text(oldest.submitted)}.", ""]
        lines += [_why(client, oldest.id)]
    return "\n".join(lines)


def _slot_details(client: Client, info: SlotDetails) -> str:
    facts = _as_lines(SLOTS.to_json(info))
    return f"{facts}\n\n{_why(client, info.job_id)}" if info.job_id else facts


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
    Pane("Sites", SITES, sites_of, _site_details, sort="running", descending=True),
    Pane("Pools", POOLS_BY_AGE, _pools, _pool_details),
    Pane("Slots", SLOTS, lambda client: client.slots(), _slot_details),
    Pane("Pilots", PILOTS, lambda client: client.pilots(), lambda _, each: _as_lines(PILOTS.to_json(each))),
    Pane("Owners", SHARES, lambda client: share_rows(client.shares()), lambda _, row: _as_lines(row)),
)
