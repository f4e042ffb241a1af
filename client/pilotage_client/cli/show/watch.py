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
from pilotage.units import parse_duration
from pilotage_client.api import Client
from pilotage_client.cli.options import PATIENCE, count_text, with_client
from pilotage_client.cli.show.columns import Listing, View, view_options
from pilotage_client.cli.show.tables import Table
from pilotage_client.cli.show.terminal import console, is_terminal
from pilotage_client.cli.status import CLUSTERS, JOBS
from pilotage_client.models import LIVE_STATES, STATES, ClusterStatus, JobStatus
from pilotage_client.retry import RetryBudget

if TYPE_CHECKING:
    from rich.text import Text

INTERRUPTED = 130
"""The exit code after Ctrl-C, as shells have it."""
_MOST_SHOWN = 200
_LINES_AROUND = 4
"""Lines of a screen that are no rows: the heading, the headings of the table, a note, and the last one."""


@dataclass(slots=True)
class WatchedWork:
    """The work of a view: the given jobs, or all active jobs or clusters, and those that have ended meanwhile."""

    client: Client
    ids: Sequence[str]
    single: bool
    states: Sequence[str]
    owner: str
    seen: dict[str, int] = field(default_factory=dict)
    """The jobs or clusters that were active, as commands name them, with their ids."""

    @property
    def listing(self) -> Listing[Any]:
        """The listing of what is shown."""
        return JOBS if self.single else CLUSTERS

    def is_over(self, found: Sequence[ClusterStatus | JobStatus]) -> bool:
        """Whether all given jobs have ended; a view of all active work goes on."""
        return bool(self.ids) and all(each.is_final for each in found)

    def read(self) -> list[ClusterStatus] | list[JobStatus]:
        """Return the present states, in the order of ids."""
        if self.single:
            return self._jobs()
        return self._clusters()

    def _jobs(self) -> list[JobStatus]:
        if self.ids:
            return self.client.jobs(self.client.find_jobs(self.ids, states=self.states).ids)
        wanted = self.states or LIVE_STATES
        active = list(islice(self.client.list_jobs(states=wanted, owner=self.owner, newest_first=True), _MOST_SHOWN))
        ended = self._ended({str(job.id): job.id for job in active})
        return sorted([*active, *(self.client.jobs([self.seen[name] for name in ended]))], key=lambda job: job.id)

    def _clusters(self) -> list[ClusterStatus]:
        if self.ids:
            found = self.client.find_jobs(self.ids)
            others = self.client.find_jobs([str(job.cluster) for job in self.client.jobs(found.others)]).clusters
            return list({each.selection: each for each in (*found.clusters, *others)}.values())
        wanted = self.states or LIVE_STATES
        page = self.client.clusters(states=wanted, owner=self.owner, page_size=_MOST_SHOWN)
        active = list(islice(page, _MOST_SHOWN))
        ended = self._ended({each.selection: each.id for each in active})
        return sorted([*active, *(self.client.find_jobs(ended).clusters if ended else ())], key=lambda each: each.id)

    def _ended(self, active: dict[str, int]) -> list[str]:
        """Return the names of those that were active before, the newest, and remember the active ones."""
        ended = [name for name in self.seen if name not in active][-_MOST_SHOWN:]
        self.seen = {name: self.seen[name] for name in ended} | active
        return ended


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--jobs/--clusters", "single", default=False, help="Single jobs, or one line a cluster (the default).")
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only jobs in this state, or clusters with such a job. May be repeated.",
)
@click.option("--owner", default="", help='Only jobs of this owner; "*" = all that you may see. Default: you.')
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
    single: bool,
    states: Sequence[str],
    owner: str,
    interval_s: float,
    patience: str,
    view: View,
) -> None:
    """Show active work, and how it goes on, until Ctrl-C; or given jobs, until they have ended.

    What ends meanwhile stays in the view. Given jobs are shown once more when the view closes. --json prints an object
    for each change, and needs no terminal.
    """
    if ids and owner:
        raise click.UsageError("--owner selects among all jobs; it cannot restrict given IDs")
    work = WatchedWork(client, ids, single, states, owner)
    patience_s = parse_duration(patience, "--patience").total_seconds()
    if not view.as_json and not is_terminal():
        raise click.UsageError("a live view needs a terminal; use `status`, or `watch --json`")
    try:
        if view.as_json:
            _print_changes(work, interval_s, patience_s, view)
        else:
            _show_until_ended(work, interval_s, patience_s, view)
    except KeyboardInterrupt:
        ctx.exit(INTERRUPTED)


def _print_changes(work: WatchedWork, interval_s: float, patience_s: float, view: View) -> None:
    """Print each job or cluster, and again after each change of it."""
    retry = RetryBudget(patience_s, lambda line: click.echo(f"pilotage: {line}", err=True))
    before: dict[int, object] = {}
    while True:
        found = retry(work.read)
        for each in found:
            if before.get(each.id) != each:
                work.listing.echo([each], view)
                before[each.id] = each
        sys.stdout.flush()
        if work.is_over(found):
            return
        time.sleep(interval_s)


def _show_until_ended(work: WatchedWork, interval_s: float, patience_s: float, view: View) -> None:
    """Show the work on a screen of its own; given jobs that have ended are then printed on the former screen."""
    from rich.live import Live

    shown, found = console(), work.read()
    with Live(console=shown, screen=True, auto_refresh=False) as live:

        def show(note: str) -> None:
            table = work.listing.table(found, view)
            live.update(screen_text(table, shown.width, shown.height, note), refresh=True)

        retry = RetryBudget(patience_s, show)
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
