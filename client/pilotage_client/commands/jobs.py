"""Commands over jobs that exist: status, wait, logs, output, and changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from itertools import islice
from pathlib import Path

import click

from pilotage import clock
from pilotage.v1 import jobs_pb2
from pilotage_client.api import Client
from pilotage_client.running import FAILED, echo_json, echo_table, job_ids, with_client
from pilotage_client.statuses import FINAL_STATES, ChangeResult, JobEvent, JobStatus, state_name

IDS = click.argument("ids", nargs=-1, required=True, metavar="ID...")
AS_JSON = click.option("--json", "as_json", is_flag=True, help="One JSON object a line.")
NEWEST = 100
"""So many jobs are shown to people who name none."""

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
    headings = ("ID", "NAME", "STATE", "WHERE", "ATTEMPT", "EXIT", "SUBMITTED", "REASON")
    echo_table(headings, (_row(job) for job in jobs), empty="no jobs")


def _newest(newest_first: Iterator[JobStatus], most: int) -> list[JobStatus]:
    """Return the first `most` jobs, oldest first; says so when there are more."""
    newest = list(islice(newest_first, most + 1))
    if len(newest) > most:
        click.echo(f"These are the newest {most} jobs; --limit 0 shows all, --state RUNNING what runs.", err=True)
    return newest[most - 1 :: -1]


def _row(job: JobStatus) -> tuple[object, ...]:
    where = "/".join(part for part in (job.site, job.ce, job.queue) if part)
    return (
        job.id,
        job.name,
        job.state,
        where,
        job.attempt or "",
        job.exit_code,
        _moment(job.submitted),
        job.reason,
    )


def _moment(time_: datetime | None) -> str:
    return time_.astimezone().strftime("%m-%d %H:%M:%S") if time_ else ""


@click.command()
@IDS
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), help="Give up after so many seconds.")
@AS_JSON
@with_client
@click.pass_context
def wait(ctx: click.Context, client: Client, ids: Sequence[str], timeout_s: float | None, as_json: bool) -> None:
    """Wait until jobs have ended; exits 1 when one did not end as DONE, or the time is over."""
    wanted = job_ids(ids)
    finished = _wait_until_final(client, wanted, timeout_s)
    for job in finished:
        if as_json:
            echo_json(job.as_json())
        elif job.state != "DONE":
            click.echo(f"job {job.id} is {job.state}: {job.reason}", err=True)
    if any(job.state != "DONE" for job in finished):
        ctx.exit(FAILED)


def _wait_until_final(client: Client, wanted: Sequence[int], timeout_s: float | None) -> list[JobStatus]:
    ends = math.inf if timeout_s is None else clock.boot_time_s() + timeout_s
    while True:
        jobs = client.wait(wanted, max(0.0, ends - clock.boot_time_s()))
        if all(job.is_final for job in jobs) or clock.boot_time_s() >= ends:
            return jobs


@click.command()
@click.argument("job", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
@AS_JSON
@with_client
def logs(client: Client, job: str, follow: bool, as_json: bool) -> None:
    """Show what happened to a job, oldest first."""
    job_id = job_ids([job])[0]
    events = client.follow([job_id]) if follow else iter(client.events(job_id))
    for event in events:
        _show_event(event, as_json=as_json)
        if follow and event.after in FINAL_STATES:
            return


def _show_event(event: JobEvent, *, as_json: bool) -> None:
    if as_json:
        echo_json(
            {
                "position": event.position,
                "job": event.job_id,
                "time": event.time.isoformat() if event.time else None,
                "from": event.before or None,
                "to": event.after,
                "cause": event.cause,
                "reason": event.reason or None,
                "attempt": event.attempt,
                "actor": event.actor,
            }
        )
        return
    deed = f"{event.cause} by {event.actor}"
    because = f": {event.reason}" if event.reason not in ("", deed) else ""
    click.echo(f"{_moment(event.time)}  {event.after:<10} {deed}{because}")


@click.command()
@click.argument("job", metavar="ID")
@click.option("--to", "folder", type=click.Path(path_type=Path, file_okay=False), help="Write the files there.")
@with_client
@click.pass_context
def output(ctx: click.Context, client: Client, job: str, folder: Path | None) -> None:
    """Fetch what a job left behind into a folder; without one, print its standard output."""
    job_id = job_ids([job])[0]
    if folder is not None:
        for path in client.fetch_output(job_id, folder):
            click.echo(path)
        return
    name = client.description(job_id).stdout or "stdout"
    found = [file for file in client.output_files(job_id) if file.name == name]
    if not found:
        click.echo(f"pilotage: job {job_id} has left no {name} yet", err=True)
        ctx.exit(FAILED)
    click.echo(client.read_output(job_id, found[0]), nl=False)


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

COMMANDS = (status, wait, logs, output, remove, hold, release, reschedule)
