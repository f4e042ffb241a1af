"""The overview of the grid: counts of jobs now and over time, and the sites with sums over their queues.

Everything comes from memory, from kept counts, and from indexes of what runs. Nothing is read for each waiting or ended
job.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from pilotage.errors import InvalidInputError, Violation
from pilotage.resources.eligibility import active_bans, ban_refusal, next_downtime
from pilotage.resources.inheritance import EffectiveQueue
from pilotage.resources.tree import QueueId
from pilotage.text import fold
from pilotage_server.core.accounting.job_counts import LONGEST_HISTORY, MINUTE, JobCounts, minute_of, start_of
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.resources.pools import visible_vo
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import accounting as stored
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.leases import LeasedJobs, leased_by_queue
from pilotage_server.storage.pilots import PilotCounts, count_pilots

MOST_HELD = 10_000
"""Up to so many held jobs are counted."""

DEFAULT_STEP = timedelta(minutes=10)
MOST_ENTRIES = 2000
"""Limit of the entries of a history."""


@dataclass(frozen=True, slots=True)
class SiteSummary:
    """A site with sums over its queues: `closed` ones are disabled, banned or in a downtime.

    The texts are reasons, "" = there is none.
    """

    site: str
    queues: int
    closed: int
    leased: LeasedJobs
    pilots: int
    banned: str
    health: str
    downtime: str


@dataclass(frozen=True, slots=True)
class GridOverview:
    """Counts of jobs, and the sites; `held` is at most `MOST_HELD`, and `more_held` = there are more.

    `history` has the counts by the starts of their times.
    """

    time: datetime
    now: JobCounts
    held: int
    more_held: bool
    history: Sequence[tuple[datetime, JobCounts]]
    sites: Sequence[SiteSummary]


def get_overview(
    transaction: Transaction,
    state: ServerState,
    identity: Identity,
    vo: str = "",
    history: timedelta = timedelta(0),
    step: timedelta = DEFAULT_STEP,
) -> GridOverview:
    """Return the overview of what a caller may see; `history` = how far it goes back, in entries of `step`.

    Raises
    ------
    InvalidInputError
        The history is longer than it is kept, or has too many entries, or its step is not whole minutes.
    PermissionDeniedError
        A user asks for another VO.
    """
    shown = visible_vo(identity, vo)
    minutes, rest = divmod(step, MINUTE)
    if minutes < 1 or rest:
        raise InvalidInputError(Violation("step_s", "is not one or more whole minutes"))
    if history > LONGEST_HISTORY or history > MOST_ENTRIES * step:
        why = f"is more than the {LONGEST_HISTORY.days} days that are kept, or than {MOST_ENTRIES} steps"
        raise InvalidInputError(Violation("history_s", why))
    with state.lock:
        waiting, running = state.waiting.count_by_vo(), state.shares.runs_by_vo()
    held = stored.count_held(transaction.session, shown, MOST_HELD + 1)
    end = minute_of(transaction.now) + 1
    first = minute_of(transaction.now - history)
    found = stored.load_history(transaction.session, shown, first, end, minutes) if history else []
    return GridOverview(
        transaction.now,
        JobCounts(_of(waiting, shown), _of(running, shown)),
        min(held, MOST_HELD),
        held > MOST_HELD,
        [(start_of(minute), counts) for minute, counts in found],
        _sites(transaction, state, shown),
    )


def _of(counts: Mapping[str, int], vo: str | None) -> int:
    return sum(count for name, count in counts.items() if vo is None or fold(name) == fold(vo))


def _sites(transaction: Transaction, state: ServerState, vo: str | None) -> list[SiteSummary]:
    """Return the sites with queues that the VO may use."""
    by_site: dict[str, list[EffectiveQueue]] = {}
    for queue in state.tree.view_for(vo).values():
        if queue.admits():
            by_site.setdefault(queue.id.site, []).append(queue)
    leased, pilots = leased_by_queue(transaction.session, vo), count_pilots(transaction.session)
    with state.lock:
        throttles = list(state.throttles.values())
    health: dict[str, list[str]] = {}
    for throttle in throttles:
        if throttle.is_tripped:
            health.setdefault(fold(throttle.location.site), []).append(str(throttle))
    return [
        _summary(transaction, state, site, queues, (leased, pilots), health.get(fold(site), []))
        for site, queues in by_site.items()
    ]


def _summary(
    transaction: Transaction,
    state: ServerState,
    site: str,
    queues: Sequence[EffectiveQueue],
    counts: tuple[Mapping[QueueId, LeasedJobs], Mapping[QueueId, PilotCounts]],
    health: Sequence[str],
) -> SiteSummary:
    leased, pilots = counts
    now = transaction.now
    own = [ban for ban in state.bans if fold(ban.site) == fold(site)]  # most sites have none
    active = {queue.id: active_bans(own, queue.id, now) for queue in queues} if own else {}
    coming = [ban for queue in queues if own and (ban := next_downtime(own, queue.id, now)) is not None]
    jobs = [leased[queue.id] for queue in queues if queue.id in leased]
    return SiteSummary(
        site,
        len(queues),
        sum(bool(active.get(queue.id)) or not queue.is_enabled() for queue in queues),
        LeasedJobs(sum(each.matched for each in jobs), sum(each.running for each in jobs)),
        sum(pilots[queue.id].alive for queue in queues if queue.id in pilots),
        _few({ban_refusal(ban).why for bans in active.values() for ban in bans}),
        _few(health),
        _few({ban_refusal(ban).why for ban in coming}),
    )


def _few(reasons: Iterable[str]) -> str:
    """Return the first reason, and how many more there are."""
    found = sorted(reasons)
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{found[0]}{more}" if found else ""


class CountedMinute(NamedTuple):
    """The counts of a minute by VO."""

    minute: int
    counts: Mapping[str, JobCounts]


def count_minute(transaction: Transaction, state: ServerState) -> CountedMinute | None:
    """Return the counts of the last whole minute; None = a server has kept them.

    The work grows with the jobs that ended in the minute, which an index has together.
    """
    minute = minute_of(transaction.now) - 1
    if stored.newest_minute(transaction.session) >= minute:
        return None
    with state.lock:
        waiting, running = state.waiting.count_by_vo(), state.shares.runs_by_vo()
    ended = stored.count_ended(transaction.session, start_of(minute), start_of(minute + 1))
    counts = {
        vo: JobCounts(
            waiting.get(vo, 0),
            running.get(vo, 0),
            ended.get((vo, JobState.DONE), 0),
            ended.get((vo, JobState.FAILED), 0),
            ended.get((vo, JobState.REMOVED), 0),
        )
        for vo in sorted({*waiting, *running, *(vo for vo, _ in ended)})
    }
    return CountedMinute(minute, counts)


def keep_counts(transaction: Transaction, _: ServerState, counted: CountedMinute) -> None:
    """Keep the counts, unless another server has kept those of the minute meanwhile; remove old ones."""
    stored.add_counts(transaction.session, counted.minute, counted.counts)
    stored.delete_counts(transaction.session, minute_of(transaction.now - LONGEST_HISTORY))
