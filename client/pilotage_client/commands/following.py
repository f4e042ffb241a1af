"""Commands that go on until jobs have ended: wait, logs. A server that is restarted meanwhile does not end them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import click

from pilotage.resources import parse_duration
from pilotage_client.api import Client
from pilotage_client.commands.output import tell_truncated
from pilotage_client.patience import DEFAULT_PATIENCE_S, Patience, follow_until_final, wait_until_final
from pilotage_client.running import AS_JSON, FAILED, IDS, echo_json, job_ids, moment, with_client
from pilotage_client.statuses import FINAL_STATES, JobEvent

PATIENCE = click.option(
    "--patience",
    default=f"{DEFAULT_PATIENCE_S / 60:.0f} min",
    show_default=True,
    metavar="TIME",
    help="Try again for so long while the server cannot be reached.",
)


def patience_of(text: str) -> Patience:
    """Return the patience that an option asks for; it tells people on the standard error."""
    seconds = parse_duration(text, "--patience").total_seconds()
    return Patience(seconds, lambda line: click.echo(f"pilotage: {line}", err=True))


@click.command()
@IDS
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0), help="Give up after so many seconds.")
@PATIENCE
@AS_JSON
@with_client
@click.pass_context
def wait(
    ctx: click.Context, client: Client, ids: Sequence[str], timeout_s: float | None, patience: str, as_json: bool
) -> None:
    """Wait until jobs have ended; exits 1 when one did not end as DONE, or the time is over."""
    wanted, patient = job_ids(ids), patience_of(patience)
    finished = wait_until_final(client, wanted, patient, math.inf if timeout_s is None else timeout_s)
    for job in finished:
        if as_json:
            echo_json(job.as_json())
        elif job.state != "DONE":
            click.echo(f"job {job.id} is {job.state}: {job.reason}", err=True)
    if any(job.state != "DONE" for job in finished):
        ctx.exit(FAILED)


@click.command()
@click.argument("job", metavar="ID")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
@PATIENCE
@AS_JSON
@with_client
def logs(client: Client, job: str, follow: bool, patience: str, as_json: bool) -> None:
    """Show what happened to a job, oldest first."""
    job_id, patient = job_ids([job])[0], patience_of(patience)
    events: Iterable[JobEvent] = follow_until_final(client, job_id, patient) if follow else client.events(job_id)
    last: JobEvent | None = None
    for last in events:
        _show(last, as_json=as_json)
    if last is not None and last.after in FINAL_STATES and not as_json:
        tell_truncated(patient(lambda: client.output_files(job_id)))


def _show(event: JobEvent, *, as_json: bool) -> None:
    if as_json:
        echo_json(event.as_json())
        return
    deed = f"{event.cause} by {event.actor}"
    because = f": {event.reason}" if event.reason not in ("", deed) else ""
    click.echo(f"{moment(event.time)}  {event.after:<10} {deed}{because}")


COMMANDS = (wait, logs)
