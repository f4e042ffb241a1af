"""The command `status`: workflows and clusters with the numbers of their jobs by state, or single jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from operator import attrgetter
from typing import Any, TypeVar

import click

from pilotage.text import count_text
from pilotage_client.api import Client
from pilotage_client.cli.options import SOME_IDS, echo_json, with_client
from pilotage_client.cli.selection.columns import AUTOFORMAT, AutoformatCommand, print_columns, read_columns
from pilotage_client.cli.selection.filters import JobFilters, explain_none, job_filters
from pilotage_client.cli.show.columns import Column, Listing, View, view_options, with_local_times
from pilotage_client.cli.show.outputs import AttemptJson, ClusterJson, JobCountJson, JobJson
from pilotage_client.models import LIVE_STATES, STATES, ClusterStatus, JobAttempt, JobCount, JobStatus

DEFAULT_LIMIT = 100
"""The number of clusters, or of jobs, that `status` shows without ids."""
MOST_LISTED = 1000
"""The server's limit of the clusters of one page."""
COUNTED = 10_000
"""The jobs that --count counts at most."""
MAX_OUTPUT_CHECKS = 20
"""The largest number of jobs whose details `status` shows, with a call for each."""

Shown = TypeVar("Shown", ClusterStatus, JobStatus)
Listed = TypeVar("Listed")


_GROUPS: Mapping[str, tuple[str, Sequence[str]]] = {
    "DONE": ("=", ["DONE"]),
    "FAILED": ("x", ["FAILED"]),
    "REMOVED": ("-", ["REMOVED"]),
    "HELD": ("!", ["HELD"]),
    "RUNNING": (">", ["MATCHED", "RUNNING", "SUSPENDED", "COMPLETING", "RACING"]),
    "WAITING": (".", ["RECEIVED", "WAITING"]),
    "BLOCKED": (":", ["BLOCKED"]),
}
"""The columns of a cluster's line: the letter in the bar, and the states that they count."""

BAR_WIDTH = 20


def bar(counts: Sequence[int], jobs: int) -> str:
    """Return the counts of the groups as parts of a bar; jobs that are in no state leave a gap."""
    ends = [round(BAR_WIDTH * end / jobs) for end in accumulate(counts)]
    parts = zip((letter for letter, _ in _GROUPS.values()), (0, *ends), ends, strict=False)
    drawn = "".join(letter * (end - begin) for letter, begin, end in parts)
    return f"[{drawn.ljust(BAR_WIDTH)}]"


def _place(at: JobStatus | JobAttempt) -> str:
    """Return where a job or an attempt runs or ran, as SITE/CE/QUEUE."""
    return "/".join(part for part in (at.site, at.ce, at.queue) if part)


JOBS = Listing(
    JobJson,
    JobStatus.as_json,
    Column("id", value=attrgetter("id"), priority=0),
    Column("job", value=lambda job: f"{job.cluster}.{job.process}", priority=3),
    Column("name", value=attrgetter("name"), priority=2, shortest=10),
    Column("state", value=attrgetter("state"), priority=1, state=True),
    Column("where", value=_place, priority=5, shortest=12),
    Column("attempt", value=attrgetter("attempt"), text=lambda attempt: str(attempt or ""), priority=7),
    Column("exit_code", "EXIT", value=attrgetter("exit_code"), priority=4),
    Column("submitted", value=attrgetter("submitted"), priority=6),
    Column("reason", value=attrgetter("reason"), text=with_local_times, priority=3, shortest=14),
    empty="no jobs",
)


def _cpu_s(attempt: JobAttempt) -> float:
    return attempt.usage.user_cpu_s + attempt.usage.system_cpu_s


ATTEMPTS = Listing(
    AttemptJson,
    JobAttempt.as_json,
    Column("job", "ID", value=attrgetter("job_id"), right=True, priority=0),
    Column("attempt", priority=0),
    Column("outcome", priority=1, state=True),
    Column("exit_code", "EXIT", priority=2),
    Column("where", value=_place, priority=3, shortest=12),
    Column("node", priority=4, shortest=10),
    Column("started", priority=7),
    Column("ended", priority=8),
    Column("run_s", "RUN s", value=attrgetter("usage.wall_s"), text="{:.1f}".format, right=True, priority=5),
    Column("cpu_s", "CPU s", value=_cpu_s, text="{:.1f}".format, right=True, priority=6),
    Column("memory", "MEMORY MiB", value=attrgetter("usage.peak_memory_mib"), right=True, priority=6),
    Column("reason", priority=2, text=with_local_times, shortest=14),
    empty="",
)


def _count(states: Sequence[str]) -> Callable[[ClusterStatus], int]:
    return lambda cluster: sum(cluster.states.get(state, 0) for state in states)


def _bar_of(cluster: ClusterStatus) -> str:
    return bar([_count(states)(cluster) for _, states in _GROUPS.values()], cluster.jobs)


CLUSTERS = Listing(
    ClusterJson,
    ClusterStatus.as_json,
    Column("cluster", value=attrgetter("selection"), priority=0),
    Column("name", value=attrgetter("name"), priority=3, shortest=10),
    Column("jobs", value=attrgetter("jobs"), priority=1),
    *(
        Column(group.lower(), value=_count(states), text=lambda jobs: str(jobs or ""), right=True, priority=2)
        for group, (_, states) in _GROUPS.items()
    ),
    Column("progress", value=_bar_of, priority=3),
    Column("submitted", value=attrgetter("submitted"), priority=5),
    empty="no clusters",
)


@click.command(cls=AutoformatCommand)
@SOME_IDS
@click.option("--jobs/--clusters", "single", default=None, help="Single jobs, or one line a cluster (the default).")
@click.option("--all", "ended_too", is_flag=True, help="Also those that have ended.")
@job_filters
@click.option("--count", "counted", is_flag=True, help=f"Only the numbers of jobs by state, up to {COUNTED:,} of them.")
@click.option(
    "--limit", type=click.IntRange(min=0), help=f"Only the newest N; 0 = all. Default: {DEFAULT_LIMIT}, with --json 0."
)
@AUTOFORMAT
@view_options(JOBS, CLUSTERS)
@with_client
def status(
    client: Client,
    ids: Sequence[str],
    single: bool | None,
    ended_too: bool,
    filters: JobFilters,
    counted: bool,
    limit: int | None,
    af: Sequence[str],
    view: View,
) -> None:
    """Show your active work, one line a cluster or workflow; or the given jobs, in any state.

    A given workflow, such as w12, is shown with its clusters that have active or failed jobs. With --all all its
    clusters are shown.

    --json prints what is shown. For given jobs it prints single jobs, or all clusters with --clusters. The options
    --where, --count and --af are about single jobs. Without --owner they are yours.
    """
    form = read_columns(af)
    if form is not None and (view.columns or view.sort):
        raise click.UsageError("--columns and --sort belong to the table, not to --af")
    if ids and limit is not None:
        raise click.UsageError("--limit selects among all jobs; it cannot restrict given IDs")
    if single is False and (filters.where or form is not None):
        raise click.UsageError("--where and --af are about single jobs, not --clusters")
    if ids and not counted and form is None and filters == JobFilters(states=filters.states):
        _show_given(client, ids, single, filters.states, view, ended_too=ended_too)
        return
    named = client.find_jobs(ids).ids if ids else []
    states = () if ended_too or ids else LIVE_STATES
    condition = filters.condition(client, states, ids=named)
    most = limit if limit is not None else 0 if view.as_json or form is not None or ids else DEFAULT_LIMIT
    empty = "no {}" if condition.states != set(LIVE_STATES) else "no active {}; --all shows those that have ended"
    if counted:
        _show_count(client.count_jobs(condition, COUNTED), as_json=view.as_json)
    elif form is not None:
        ads = client.list_ads(condition, attributes=form.attributes, newest_first=most > 0)
        print_columns(_newest(ads, most, "jobs") if most else ads, form, as_json=view.as_json)
    elif single or filters.where or (ids and single is None):
        jobs = client.list_jobs(condition, newest_first=most > 0)
        found = _newest(jobs, most, "jobs") if most else jobs
        JOBS.echo(_or_explained(client, filters, found), view, empty=empty.format("jobs"))
    else:
        newest_first = client.clusters(condition, page_size=min(most + 1, MOST_LISTED) if most else 0)
        clusters = _newest(newest_first, most, "clusters") if most else [*newest_first][::-1]
        CLUSTERS.echo(_or_explained(client, filters, clusters), view, empty=empty.format("clusters"))


def _or_explained(client: Client, filters: JobFilters, found: Iterable[Shown]) -> Iterator[Shown]:
    """Yield what was found; if it is nothing, raise InvalidInputError for a name in the filters that does not exist."""
    is_empty = True
    for each in found:
        is_empty = False
        yield each
    if is_empty and filters.are_given:
        explain_none(client, filters)


def _show_count(count: JobCount, *, as_json: bool) -> None:
    if as_json:
        states, owners = {**count.states}, {**count.owners}
        echo_json(JobCountJson(jobs=len(count.ids), more=count.more, states=states, owners=owners))
        return
    total = f"more than {COUNTED:,} jobs" if count.more else count_text(len(count.ids), "job")
    of_states = ", ".join(f"{count.states[state]:,} {state}" for state in STATES if count.states[state])
    click.echo(total + (f": {of_states}" if of_states and not count.more else ""))


def _show_given(
    client: Client, ids: Sequence[str], single: bool | None, states: Sequence[str], view: View, *, ended_too: bool
) -> None:
    """Show whole clusters in one line each, a workflow with its clusters, and other jobs singly.

    With states, or as JSON, all jobs are shown singly.
    """
    found = client.find_jobs(ids, states=states)
    if single is False:
        of_others = client.find_jobs([str(job.cluster) for job in client.jobs(found.others)]).clusters
        by_name = {each.selection: each for each in (*found.clusters, *of_others)}
        clusters = [each for each in by_name.values() if not states or any(map(each.states.get, states))]
        others = []
    elif single or states or view.as_json:
        clusters, others = [], found.ids
    else:
        clusters = [each for each in found.clusters if each.jobs > 1 or each.workflow]
        alone = {each.id for each in found.clusters if each not in clusters}.union(found.others)
        others = [job for job in found.ids if job in alone]
    if clusters:
        shown = _with_those_of_workflows(client, clusters, states, everything=ended_too or view.as_json)
        CLUSTERS.echo(shown, view)
    if clusters and others:
        click.echo()
    if others or not clusters:
        jobs = [job for job in client.jobs(others) if not states or job.state in states] if others else []
        if view.as_json and not view.columns:
            _print_with_attempts(client, list(JOBS.ordered(jobs, view)))
            return
        JOBS.echo(jobs, view)
        if len(jobs) <= MAX_OUTPUT_CHECKS and not view.as_json:
            _print_details(client, jobs)


def _with_those_of_workflows(
    client: Client, clusters: Iterable[ClusterStatus], states: Sequence[str], *, everything: bool
) -> Iterator[ClusterStatus]:
    """Yield the clusters and workflows, and after each workflow its clusters with such jobs, the oldest first."""
    for each in clusters:
        yield each
        if each.workflow and (everything or states):
            yield from [*client.clusters(states=states, workflow=each.id, page_size=MOST_LISTED)][::-1]
        elif each.workflow:
            yield from active_of_workflow(client, each)


_ACTIVE = [state for state in (*LIVE_STATES, "FAILED") if state != "BLOCKED"]


def active_of_workflow(client: Client, workflow: ClusterStatus) -> list[ClusterStatus]:
    """Return the newest clusters with active or failed jobs, the oldest first; prints a note if others are left."""
    blocked, active = (
        list(islice(client.clusters(states=states, workflow=workflow.id, page_size=DEFAULT_LIMIT), DEFAULT_LIMIT))
        for states in (["BLOCKED"], _ACTIVE)  # in this order: a job that is freed in between is found twice, not never
    )
    found: dict[int, ClusterStatus] = {}
    for each in (*active, *blocked):
        if len(found) < DEFAULT_LIMIT:
            found.setdefault(each.id, each)
    others = sum(workflow.states.values()) - sum(sum(each.states.values()) for each in found.values())
    if others > 0:  # while a long submission is stored, the clusters, read later, may have more jobs
        click.echo(f"Jobs of {workflow.selection} in other clusters: {others}; --all shows these too.", err=True)
    return [found[id_] for id_ in sorted(found)]


def _print_with_attempts(client: Client, jobs: Sequence[JobStatus]) -> None:
    """Print jobs as JSON; those with several attempts have the key `attempts`."""
    attempts: dict[int, list[dict[str, Any]]] = {}
    for each in client.attempts([job.id for job in jobs if job.attempt > 1]):
        attempts.setdefault(each.job_id, []).append(each.as_json())
    for job in jobs:
        echo_json(job.as_json() | ({"attempts": attempts[job.id]} if job.id in attempts else {}))


def _print_details(client: Client, jobs: Sequence[JobStatus]) -> None:
    """Print the attempts of jobs that have several, sites, what the others have used, and which output was cut."""
    from pilotage_client.cli.output import warn_truncated
    from pilotage_client.cli.usage import usage_text

    _print_attempts(client, [job.id for job in jobs if job.attempt > 1])
    for job in jobs:
        if job.pool_sites:
            click.echo(f"job {job.id}: sites of its pool: {', '.join(job.pool_sites)}")
        if job.usage is not None and job.attempt == 1:
            click.echo(f"job {job.id}: {usage_text(job.usage)}")
        if job.attempt:
            warn_truncated(client.output_files(job.id), job.id)


def _print_attempts(client: Client, ids: Sequence[int]) -> None:
    if ids:
        click.echo()
        ATTEMPTS.echo(client.attempts(ids), View())


def _newest(newest_first: Iterator[Listed], limit: int, what: str) -> list[Listed]:
    """Return the first `limit`, oldest first; prints a note if there are more."""
    newest = list(islice(newest_first, limit + 1))
    if len(newest) > limit:
        click.echo(f"Showing the newest {limit} {what}; --limit 0 shows all, --state RUNNING the running.", err=True)
    return newest[:limit][::-1]
