"""The command that shows everything once, on this machine."""

from __future__ import annotations

import signal
from pathlib import Path

import click

from pilotage_client.commands.why import show
from pilotage_client.demo import run_demo
from pilotage_client.running import FAILED


@click.command()
@click.option(
    "--examples",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Path("deploy/examples"),
    show_default=True,
    help="The folder of the example jobs and their tree.",
)
@click.pass_context
def demo(context: click.Context, examples: Path) -> None:
    """Start everything in a scratch folder, run the example jobs, show what became of them, stop everything."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was started is stopped, as by Ctrl-C
    result = run_demo(examples, click.echo)
    for answer in result.stuck:
        click.echo(f"\n== Why job {answer.job.id} ({answer.job.name}) waits ==")
        show(answer)
    click.echo(f"\n{len(result.jobs)} jobs in {result.seconds:.1f} s, start and stop of the stack included.")
    if not result.went_well:
        click.echo(f"Not all went well; what is left to look at is in {result.scratch}")
        context.exit(FAILED)
