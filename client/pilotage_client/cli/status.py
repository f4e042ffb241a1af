"""The command `status`: workflows and clusters with the numbers of their jobs by state, or single jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, islice
from typing import Any, TypeVar

import click

from pilotage_client.api import Client
from pilotage_client.cli.options import AS_JSON, SOME_IDS, echo_json, echo_table, time_text, with_client
from pilotage_client.cli.output import warn_truncated
from pilotage_client.cli.selection.columns import AUTOFORMAT, AutoformatCommand, print_columns, read_columns
from pilotage_client.cli.selection.filters import JobFilters, explain_none, job_filters
from pilotage_client.cli.usage import usage_text
from pilotage_client.models import LIVE_STATES, STATES, ClusterStatus, JobCount, JobStatus

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
@AS_JSON
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
    as_json: bool,
) -> None:
    """Show your active work, one line a cluster or workflow; or the given jobs, in any state.

    Of a given workflow, such as w12, its clusters with active or failed jobs are shown too, and with --all all of them.
    --json prints what is shown; for given jobs it prints single jobs, unless --clusters is given: then all clusters.
    --where, --count and --af are about single jobs. Without --owner they are yours.
    """
    form = read_columns(af)
    if ids and limit is not None:
        raise click.UsageError("--limit selects among all jobs; it cannot restrict given IDs")
    if single is False and (filters.where or form is not None):
        raise click.UsageError("--where and --af are about single jobs, not --clusters")
    if ids and not counted and form is None and filters == JobFilters(states=filters.states):
        _show_given(client, ids, single, filters.states, ended_too=ended_too, as_json=as_json)
        return
    named = client.find_jobs(ids).ids if ids else []
    states = () if ended_too or ids else LIVE_STATES
    condition = filters.condition(client, states, ids=named)
    most = limit if limit is not None else 0 if as_json or form is not None or ids else DEFAULT_LIMIT
    empty = "no {}" if condition.states != set(LIVE_STATES) else "no active {}; --all shows those that have ended"
    if counted:
        _show_count(client.count_jobs(condition, COUNTED), as_json=as_json)
    elif form is not None:
        ads = client.list_ads(condition, attributes=form.attributes, newest_first=most > 0)
        print_columns(_newest(ads, most, "jobs") if most else ads, form, as_json=as_json)
    elif single or filters.where or ids:
        jobs = client.list_jobs(condition, newest_first=most > 0)
        found = _newest(jobs, most, "jobs") if most else jobs
        _show(_or_explained(client, filters, found), _job_table, empty.format("jobs"), as_json=as_json)
    else:
        newest_first = client.clusters(condition, page_size=min(most + 1, MOST_LISTED) if most else 0)
        clusters = _newest(newest_first, most, "clusters") if most else [*newest_first][::-1]
        _show(_or_explained(client, filters, clusters), _cluster_table, empty.format("clusters"), as_json=as_json)


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
        shown = {"jobs": len(count.ids), "more": count.more, "states": {**count.states}, "owners": {**count.owners}}
        echo_json(shown)
        return
    total = f"more than {COUNTED:,}" if count.more else f"{len(count.ids):,}"
    states = ", ".join(f"{count.states[state]:,} {state}" for state in STATES if count.states[state])
    click.echo(f"{total} jobs" + (f": {states}" if states and not count.more else ""))


def _show_given(
    client: Client, ids: Sequence[str], single: bool | None, states: Sequence[str], *, ended_too: bool, as_json: bool
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
    elif single or states or as_json:
        clusters, others = [], found.ids
    else:
        clusters = [each for each in found.clusters if each.jobs > 1 or each.workflow]
        alone = {each.id for each in found.clusters if each not in clusters}.union(found.others)
        others = [job for job in found.ids if job in alone]
    if clusters:
        shown = _with_those_of_workflows(client, clusters, states, everything=ended_too or as_json)
        _show(shown, _cluster_table, "", as_json=as_json)
    if clusters and others:
        click.echo()
    if others or not clusters:
        jobs = [job for job in client.jobs(others) if not states or job.state in states] if others else []
        if as_json:
            _print_with_attempts(client, jobs)
            return
        _job_table(jobs, "no jobs")
        if len(jobs) <= MAX_OUTPUT_CHECKS:
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
    _print_attempts(client, [job.id for job in jobs if job.attempt > 1])
    for job in jobs:
        if job.pool_sites:
            click.echo(f"job {job.id}: sites of its pool: {', '.join(job.pool_sites)}")
        if job.usage is not None and job.attempt == 1:
            click.echo(f"job {job.id}: {usage_text(job.usage)}")
        if job.attempt:
            warn_truncated(client.output_files(job.id), job.id)


def _print_attempts(client: Client, ids: Sequence[int]) -> None:
    if not ids:
        return
    click.echo()
    headings = (
        "ID",
        "ATTEMPT",
        "OUTCOME",
        "EXIT",
        "WHERE",
        "NODE",
        "STARTED",
        "ENDED",
        "RUN s",
        "CPU s",
        "MEMORY MiB",
        "REASON",
    )
    rows = (
        (
            each.job_id,
            each.attempt,
            each.outcome,
            each.exit_code,
            "/".join(part for part in (each.site, each.ce, each.queue) if part),
            each.node,
            time_text(each.started),
            time_text(each.ended),
            f"{each.usage.wall_s:.1f}",
            f"{each.usage.user_cpu_s + each.usage.system_cpu_s:.1f}",
            each.usage.peak_memory_mib or "",
            each.reason,
        )
        for each in client.attempts(ids)
    )
    echo_table(headings, rows, empty="")


def _show(shown: Iterable[Shown], table: Callable[[Iterable[Shown], str], None], empty: str, *, as_json: bool) -> None:
    if not as_json:
        table(shown, empty)
        return
    for each in shown:
        echo_json(each.as_json())


def _newest(newest_first: Iterator[Listed], limit: int, what: str) -> list[Listed]:
    """Return the first `limit`, oldest first; prints a note if there are more."""
    newest = list(islice(newest_first, limit + 1))
    if len(newest) > limit:
        click.echo(f"Showing the newest {limit} {what}; --limit 0 shows all, --state RUNNING the running.", err=True)
    return newest[:limit][::-1]


def _job_table(jobs: Iterable[JobStatus], empty: str) -> None:
    headings = ("ID", "JOB", "NAME", "STATE", "WHERE", "ATTEMPT", "EXIT", "SUBMITTED", "REASON")
    echo_table(headings, map(_job_row, jobs), empty=empty)


def _job_row(job: JobStatus) -> tuple[object, ...]:
    where = "/".join(part for part in (job.site, job.ce, job.queue) if part)
    return (
        job.id,
        f"{job.cluster}.{job.process}",
        job.name,
        job.state,
        where,
        job.attempt or "",
        job.exit_code,
        time_text(job.submitted),
        job.reason,
    )


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


def _cluster_table(clusters: Iterable[ClusterStatus], empty: str) -> None:
    headings = ("CLUSTER", "NAME", "JOBS", *_GROUPS, "", "SUBMITTED")
    echo_table(headings, map(_cluster_row, clusters), empty=empty)


def _cluster_row(cluster: ClusterStatus) -> tuple[object, ...]:
    counts = [sum(cluster.states.get(state, 0) for state in states) for _, states in _GROUPS.values()]
    numbers = (number or "" for number in counts)
    return (
        cluster.selection,
        cluster.name,
        cluster.jobs,
        *numbers,
        bar(counts, cluster.jobs),
        time_text(cluster.submitted),
    )


def bar(counts: Sequence[int], jobs: int) -> str:
    """Return the counts of the groups as parts of a bar; jobs that are in no state leave a gap."""
    ends = [round(BAR_WIDTH * end / jobs) for end in accumulate(counts)]
    parts = zip((letter for letter, _ in _GROUPS.values()), (0, *ends), ends, strict=False)
    drawn = "".join(letter * (end - begin) for letter, begin, end in parts)
    return f"[{drawn.ljust(BAR_WIDTH)}]"
