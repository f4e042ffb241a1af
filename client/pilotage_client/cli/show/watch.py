"""The command `watch`: a live view of active work, or of given jobs until they have ended."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from pilotage import clock
from pilotage.programs import ProgramExit
from pilotage.text import count_text
from pilotage.values.jobs import JobCondition
from pilotage_client.api import Client
from pilotage_client.cli.options import PATIENCE, SOME_IDS, retry_option, with_client
from pilotage_client.cli.selection.filters import JobFilters, explain_none, job_filters, selected_jobs
from pilotage_client.cli.show.columns import Listing, View, view_options
from pilotage_client.cli.show.tables import Table
from pilotage_client.cli.show.terminal import console, is_terminal
from pilotage_client.cli.status import CLUSTERS, JOBS
from pilotage_client.job_calls import OWN_JOBS
from pilotage_client.models import LIVE_STATES, ClusterStatus, JobStatus
from pilotage_client.retry import RetryBudget

if TYPE_CHECKING:
    from rich.text import Text

Found = Sequence[ClusterStatus] | Sequence[JobStatus]

_MOST_SHOWN = 200
_LINES_AROUND = 4
"""Lines of a screen that are no rows: the heading, the headings of the table, a note, and the last one."""


@dataclass(slots=True)
class WatchedWork:
    """The work of a view: given jobs, or all jobs or clusters that meet a condition, and those that did so before.

    `names` are the given ones, () = none are given; `jobs` are their ids, if single jobs are shown.
    """

    client: Client
    single: bool
    condition: JobCondition
    names: Sequence[str] = ()
    jobs: Sequence[int] = ()
    seen: dict[str, int] = field(default_factory=dict)
    """The jobs or clusters that met the condition, as commands name them, with their ids."""

    @property
    def listing(self) -> Listing[Any]:
        """The listing of what is shown."""
        return JOBS if self.single else CLUSTERS

    def is_over(self, found: Found) -> bool:
        """Whether all given jobs have ended; a view of all work goes on."""
        return bool(self.names) and all(each.is_final for each in found)

    def read(self) -> Found:
        """Return the present states, in the order of ids."""
        if self.single:
            return self._jobs()
        return self._clusters()

    def _jobs(self) -> list[JobStatus]:
        if self.names:
            return self.client.jobs(self.jobs)
        active = list(islice(self.client.list_jobs(self.condition, newest_first=True), _MOST_SHOWN))
        ended = self._ended({str(job.id): job.id for job in active})
        return sorted([*active, *(self.client.jobs([self.seen[name] for name in ended]))], key=lambda job: job.id)

    def _clusters(self) -> list[ClusterStatus]:
        if self.names:
            found = self.client.find_jobs(self.names)
            others = self.client.find_jobs([str(job.cluster) for job in self.client.jobs(found.others)]).clusters
            return list({each.selection: each for each in (*found.clusters, *others)}.values())
        active = list(islice(self.client.clusters(self.condition, page_size=_MOST_SHOWN), _MOST_SHOWN))
        ended = self._ended({each.selection: each.id for each in active})
        return sorted([*active, *(self.client.find_jobs(ended).clusters if ended else ())], key=lambda each: each.id)

    def _ended(self, active: dict[str, int]) -> list[str]:
        """Return the names of those that were active before, the newest, and remember the active ones."""
        ended = [name for name in self.seen if name not in active][-_MOST_SHOWN:]
        self.seen = {name: self.seen[name] for name in ended} | active
        return ended


@click.command()
@SOME_IDS
@click.option("--jobs/--clusters", "single", default=None, help="Single jobs, or one line a cluster (the default).")
@job_filters
@click.option(
    "--interval", "interval_s", type=click.FloatRange(min=0.5), default=2.0, show_default=True, help="Seconds."
)
@PATIENCE
@view_options(JOBS, CLUSTERS)
@with_client
@click.pass_context
def watch(
    ctx: click.Context,
    client: Client,
    ids: Sequence[str],
    single: bool | None,
    filters: JobFilters,
    interval_s: float,
    patience: str,
    view: View,
) -> None:
    """Show active work, and how it goes on, until Ctrl-C; or given jobs, until they have ended.

    What ends meanwhile stays in the view. Given jobs are shown once more when the view closes. With filters it shows
    the single jobs that meet them at the start. With --json it prints an object for each change, and needs no terminal.
    """
    if not view.as_json and not is_terminal():
        raise click.UsageError("a live view needs a terminal; use `status`, or `watch --json`")
    retry = retry_option(patience)
    try:
        work = retry(lambda: _work(client, ids, filters, single))
        found = retry(work.read)
        if view.as_json:
            _print_changes(work, found, interval_s, retry, view)
        else:
            _show_until_ended(work, found, interval_s, patience, view)
    except KeyboardInterrupt:
        ctx.exit(ProgramExit.INTERRUPTED)


def _work(client: Client, ids: Sequence[str], filters: JobFilters, single: bool | None) -> WatchedWork:
    """Return the work that a command line asks for; raises InvalidInputError for a name that does not exist."""
    if single is False and (filters.where or (ids and filters.are_given)):
        raise click.UsageError("--where, and filters of given IDs, are about single jobs, not --clusters")
    single = bool(single or filters.where or (ids and filters.are_given))
    if ids:
        jobs = selected_jobs(client, ids, filters) if single else ()
        return WatchedWork(client, single, OWN_JOBS, ids, jobs)
    work = WatchedWork(client, single, filters.condition(client, LIVE_STATES))
    if filters.are_given and not work.read():
        explain_none(client, filters)
    return work


def _print_changes(work: WatchedWork, found: Found, interval_s: float, retry: RetryBudget, view: View) -> None:
    """Print each job or cluster, and again after each change of it."""
    before: dict[int, object] = {}
    while True:
        for each in found:
            if before.get(each.id) != each:
                work.listing.echo([each], view)
                before[each.id] = each
        sys.stdout.flush()
        if work.is_over(found):
            return
        time.sleep(interval_s)
        found = retry(work.read)


def _show_until_ended(work: WatchedWork, found: Found, interval_s: float, patience: str, view: View) -> None:
    """Show the work on a screen of its own; given jobs that have ended are then printed on the former screen."""
    from rich.live import Live

    shown = console()
    with Live(console=shown, screen=True, auto_refresh=False) as live:

        def show(note: str) -> None:
            table = work.listing.table(found, view)
            live.update(screen_text(table, shown.width, shown.height, note), refresh=True)

        retry = retry_option(patience, show)
        while not work.is_over(found):
            show(f"every {interval_s:g} s; Ctrl-C ends")
            time.sleep(interval_s)
            found = retry(work.read)
    work.listing.echo(found, view)


def screen_text(table: Table, width: int, height: int, note: str) -> Text:
    """Return what a screen of this size shows: the time, a note, and as many of the last rows as fit."""
    from rich.text import Text

    text = Text(no_wrap=True, overflow="ellipsis")
    text.append(f"pilotage watch  {clock.now().astimezone():%H:%M:%S}", "bold")
    text.append(f"  {note}\n\n", "dim")
    if not table.rows:
        return text.append("nothing is active")
    rows = table.rows[-max(1, height - _LINES_AROUND) :]
    seen = Table(table.columns, rows)
    text.append(seen.text(seen.fit(width)))
    if hidden := len(table.rows) - len(rows):
        text.append(f"\n{count_text(hidden, 'line')} above", "dim")
    return text
