"""Commands over jobs that exist: status and changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import click

from pilotage.v1 import jobs_pb2
from pilotage_client.api import Client
from pilotage_client.commands.output import tell_truncated
from pilotage_client.running import AS_JSON, FAILED, IDS, echo_json, echo_table, job_ids, moment, with_client
from pilotage_client.shown_ads import ad_as_json, long_form
from pilotage_client.statuses import ChangeResult, JobStatus, state_name

NEWEST = 100
"""So many jobs are shown to people who name none."""
FEW = 20
"""Of so many named jobs the output is looked at, too: a call for each."""

STATES = tuple(state_name(number) for number in jobs_pb2.JobState.values() if number)


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--state", "states", multiple=True, type=click.Choice(STATES, case_sensitive=False), help="Only these.")
@click.option("--owner", default="", help='Only this owner\'s; "*" = all that you may see. Default: your own.')
@click.option("--pool", default="", help="Only jobs of this pool (its whole id).")
@click.option("--limit", type=click.IntRange(min=0), help=f"The newest N alone; 0 = all. Default: {NEWEST}; --json: 0.")
@AS_JSON
@with_client
def status(
    client: Client, ids: Sequence[str], states: Sequence[str], owner: str, pool: str, limit: int | None, as_json: bool
) -> None:
    """Show where jobs are: the named ones, or yours."""
    most = limit if limit is not None else 0 if as_json else NEWEST
    jobs: Iterable[JobStatus]
    if ids:
        jobs = client.jobs(job_ids(ids))
    elif most:
        jobs = _newest(client.list_jobs(states=states, owner=owner, pool=pool, newest_first=True), most)
    else:
        jobs = client.list_jobs(states=states, owner=owner, pool=pool)
    if as_json:
        for job in jobs:
            echo_json(job.as_json())
        return
    shown = list(jobs)
    headings = ("ID", "NAME", "STATE", "WHERE", "ATTEMPT", "EXIT", "SUBMITTED", "REASON")
    echo_table(headings, (_row(job) for job in shown), empty="no jobs")
    if ids and len(shown) <= FEW:
        _tell_of_outputs(client, shown)


def _newest(newest_first: Iterator[JobStatus], most: int) -> list[JobStatus]:
    """Return the first `most` jobs, oldest first; says so when there are more."""
    newest = list(islice(newest_first, most + 1))
    if len(newest) > most:
        click.echo(f"These are the newest {most} jobs; --limit 0 shows all, --state RUNNING what runs.", err=True)
    return newest[most - 1 :: -1]


def _tell_of_outputs(client: Client, jobs: Iterable[JobStatus]) -> None:
    for job in jobs:
        if job.attempt:
            tell_truncated(client.output_files(job.id), job.id)


def _row(job: JobStatus) -> tuple[object, ...]:
    where = "/".join(part for part in (job.site, job.ce, job.queue) if part)
    return (
        job.id,
        job.name,
        job.state,
        where,
        job.attempt or "",
        job.exit_code,
        moment(job.submitted),
        job.reason,
    )


@click.command()
@click.argument("job", metavar="ID")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, by attribute; expressions as their text.")
@with_client
def ad(client: Client, job: str, as_json: bool) -> None:
    """Print a job's ClassAd, as policies look at it: what `condor_q -long` prints."""
    text = client.ad(job_ids([job])[0])
    if as_json:
        echo_json(ad_as_json(text))
    else:
        click.echo(long_form(text))


def _change(
    name: str, help_text: str, act: Callable[[Client, Sequence[int], str], list[ChangeResult]]
) -> click.Command:
    @click.command(name=name, help=help_text)
    @IDS
    @click.option("--reason", default="", help="Why; kept with the job.")
    @AS_JSON
    @with_client
    @click.pass_context
    def command(ctx: click.Context, client: Client, ids: Sequence[str], reason: str, as_json: bool) -> None:
        results = act(client, job_ids(ids), reason)
        for result in results:
            if as_json:
                echo_json({"id": result.job_id, "state": result.state, "refusal": result.refusal or None})
            elif result.refusal:
                click.echo(f"pilotage: {result.refusal}", err=True)
            else:
                click.echo(f"job {result.job_id} is {result.state}")
        if any(result.refusal for result in results):
            ctx.exit(FAILED)

    return command


remove = _change("remove", "Take jobs out; running ones are killed.", Client.remove)
hold = _change("hold", "Keep jobs back until they are released; running ones are killed.", Client.hold)
release = _change("release", "Let held jobs wait again.", Client.release)
reschedule = _change("reschedule", "Put jobs back to waiting with fresh attempts.", Client.reschedule)

COMMANDS = (status, ad, remove, hold, release, reschedule)
