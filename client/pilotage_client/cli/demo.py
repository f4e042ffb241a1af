"""Commands that write to this machine: `demo` and `init` for the shipped examples, `condor-commands` for scripts.

`demo` runs `pilotage up`, the example jobs through it, and stops everything; `init` copies them.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import click

from pilotage.clock import boot_time_s
from pilotage.errors import InvalidInputError, Violation, WorldError
from pilotage.text import count_text
from pilotage_client.api import Client
from pilotage_client.cli.options import AS_JSON, FAILED, echo_json
from pilotage_client.cli.selection.bulk import ranges
from pilotage_client.cli.show.operator_outputs import WrittenJson
from pilotage_client.cli.why import show
from pilotage_client.condor.main import write_scripts
from pilotage_client.connection import UP_FILE, ServerOptions, new_request_id
from pilotage_client.models import JobEvent, JobStatus
from pilotage_client.models.explanations import JobExplanation
from pilotage_client.readers import read_jobs_with_files
from pilotage_client.retry import RetryBudget
from pilotage_client.shipped import Shipped
from pilotage_client.up.processes import Echo, program, tied_to_parent

_JOB_FILES = ("hello.toml", "array.toml", "requirements.jdl", "words.submit", "nowhere.toml")
_TREE = "tree.toml"
_START_TIMEOUT_S = 60.0
_STOP_TIMEOUT_S = 60.0
_JOBS_TIMEOUT_S = 50.0
_POLL_INTERVAL_S = 0.1


@dataclass(frozen=True, slots=True)
class DemoResult:
    """The result of the demonstration: the ended jobs, and explanations of the others.

    `scratch` is the folder with all data and logs; it is removed on success and on an interrupt.
    """

    jobs: tuple[JobStatus, ...]
    stuck: tuple[JobExplanation, ...]
    seconds: float
    scratch: Path

    @property
    def is_success(self) -> bool:
        """Whether every job that some queue can run is DONE."""
        return bool(self.jobs) and all(job.state == "DONE" for job in self.jobs)


def run_demo(examples: Path, echo: Echo) -> DemoResult:
    """Run the demonstration on the job files in `examples`, and stop everything that it started.

    Raises
    ------
    PilotageError
        The stack does not start, or a job file cannot be submitted.
    """
    missing = [name for name in (*_JOB_FILES, _TREE) if not (examples / name).is_file()]
    if missing:
        raise InvalidInputError(*(Violation(str(examples / name), "no such file") for name in missing))
    started_s = boot_time_s()
    scratch = Path(tempfile.mkdtemp(prefix="pilotage-demo-"))
    try:
        jobs, stuck = _run_examples(scratch, examples, echo)
    except KeyboardInterrupt:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    result = DemoResult(jobs, stuck, boot_time_s() - started_s, scratch)
    if result.is_success:
        shutil.rmtree(scratch, ignore_errors=True)
    return result


def _run_examples(
    scratch: Path, examples: Path, echo: Echo
) -> tuple[tuple[JobStatus, ...], tuple[JobExplanation, ...]]:
    """Run the examples through a new stack; returns the ended jobs, and explanations of the others."""
    started_s = boot_time_s()
    with _up(scratch, examples, echo) as data, Client.located(ServerOptions(data=data)) as client:
        echo(f"\n== The stack is up after {boot_time_s() - started_s:.1f} s; submitting the examples ==")
        retry = RetryBudget(_START_TIMEOUT_S, echo)  # `up` restarts a server that fails
        labels: dict[int, str] = {}
        for name in _JOB_FILES:
            descriptions = read_jobs_with_files(examples / name)
            ids = retry(partial(client.submit, descriptions, request_id=new_request_id())).job_ids
            echo(f"$ pilotage submit {name}  →  job {ranges(ids)}")
            each_label = [
                each.name or Path(each.executable).name for each in descriptions for _ in range(each.count or 1)
            ]
            labels |= zip(ids, each_label, strict=True)
        answers = [retry(partial(client.explain, job_id)) for job_id in labels]
        stuck = tuple(answer for answer in answers if not answer.eligible_queues)
        for answer in stuck:
            del labels[answer.job.id]
        echo("\n== Progress ==")
        jobs = _watch(client, labels, echo, retry)
        echo("\n== Where each job ran, and what it printed ==")
        for job in jobs:
            echo(retry(partial(_outcome, client, job, labels[job.id])))
        echo("\n== Stopping all that was started ==")
    return tuple(jobs), stuck


@contextmanager
def _up(scratch: Path, examples: Path, echo: Echo) -> Iterator[Path]:
    """Run `pilotage up` and yield its data folder."""
    data, printed = scratch / "data", scratch / "up.out"
    command = [program("pilotage"), "up", "--data", str(data), "--port", "0", "--tree", str(examples / _TREE)]
    echo(f"$ {' '.join(['pilotage', *command[1:]])}")
    with printed.open("wb") as output:
        process = subprocess.Popen(tied_to_parent(command), stdout=output, stderr=output, start_new_session=True)
    try:
        up_file = data / UP_FILE
        give_up_s = boot_time_s() + _START_TIMEOUT_S
        while not up_file.exists():
            if process.poll() is not None or boot_time_s() > give_up_s:
                raise WorldError(f"pilotage up did not start:\n{printed.read_text()}", transient=False)
            time.sleep(_POLL_INTERVAL_S)
        yield data
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _watch(client: Client, labels: Mapping[int, str], echo: Echo, retry: RetryBudget) -> list[JobStatus]:
    """Show the events of jobs as they happen, until all have ended or a timeout."""
    position, give_up_s, is_over = 0, boot_time_s() + _JOBS_TIMEOUT_S, False
    while True:
        events = retry(partial(_events_after, client, labels, position))
        jobs = retry(partial(client.wait, list(labels), _POLL_INTERVAL_S))
        places = {job.id: f"at {_where(job)}" for job in jobs}
        for event in events:
            position = event.position
            moment = f"{event.time.astimezone():%H:%M:%S.%f}"[:-3] if event.time else ""
            remark = places[event.job_id] if event.after == "MATCHED" else event.reason
            echo(f"{moment}  {event.job_id:>3} {labels[event.job_id]:<8} {event.after:<10} {remark}".rstrip())
        if is_over:  # set before these events were read, so they are the last ones
            return jobs
        is_over = all(job.is_final for job in jobs) or boot_time_s() > give_up_s


def _events_after(client: Client, job_ids: Iterable[int], position: int) -> list[JobEvent]:
    return list(client.follow(list(job_ids), after=position, until_now=True))


def _where(job: JobStatus) -> str:
    return f"{job.site}/{job.ce}/{job.queue}" if job.site else "nowhere"


def _outcome(client: Client, job: JobStatus, label: str) -> str:
    lines = [f"{job.id:>3} {label:<8} {job.state:<7} {_where(job)}  {job.reason}".rstrip()]
    for file in client.output_files(job.id):
        text = client.read_output(job.id, file).decode(errors="replace").rstrip()
        lines += [f"      {file.name}: {line}" for line in text.splitlines()]
    return "\n".join(lines)


@click.command()
@click.option(
    "--examples",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    default=Shipped.EXAMPLES.folder,
    help="The folder with the example jobs and their tree (default: those of this installation).",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object for each ended job; the rest goes to stderr.")
@click.pass_context
def demo(context: click.Context, examples: Path, as_json: bool) -> None:
    """Start everything in a scratch folder, run the example jobs, show their results, stop everything."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # stops the stack, as Ctrl-C does
    result = run_demo(examples, partial(click.echo, err=as_json))
    if as_json:
        for job in result.jobs:
            echo_json(job.as_json())
    else:
        for answer in result.stuck:
            click.echo(f"\n== Why job {answer.job.id} ({answer.job.name}) waits ==")
            show(answer)
        ended = count_text(len(result.jobs), "job")
        click.echo(f"\n{ended} in {result.seconds:.1f} s, including start and stop of the stack.")
    if not result.is_success:
        click.echo(f"Some jobs did not succeed; logs and data are in {result.scratch}", err=as_json)
        context.exit(FAILED)


_FIRST_STEPS = {
    Shipped.EXAMPLES: ("job files and a resource tree", "try pilotage submit {}/hello.toml"),
    Shipped.MONITORING: ("alert rules and a dashboard", "name {}/alerts.yml in the rule_files of Prometheus"),
    Shipped.POLICIES: ("HTCondor policies for nodes", "try pilotage up --policy {}/whole-machine.conf"),
    Shipped.TEMPLATES: ("additions of a site to jobs", "try pilotage submit --template {}/bologna-short.toml JOB"),
}


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@AS_JSON
def init(folder: Path, as_json: bool) -> None:
    """Copy the example jobs, policies, job templates and monitoring files to FOLDER, to try and to change them."""
    present = [folder / name for name in Shipped if (folder / name).exists()]
    if present:
        raise InvalidInputError(*(Violation(str(path), "exists; name another folder") for path in present))
    for name, (what, step) in _FIRST_STEPS.items():
        target = folder / name
        shutil.copytree(name.folder, target)
        if as_json:
            echo_json(WrittenJson(path=str(target), what=what))
        else:
            click.echo(f"{target}: {what}; {step.format(target)}")


@click.command("condor-commands")
@click.argument("folder", type=click.Path(path_type=Path, file_okay=False))
@AS_JSON
def condor_commands(folder: Path, as_json: bool) -> None:
    """Write condor_submit, condor_q and other commands of HTCondor to FOLDER, which you put on PATH."""
    scripts = write_scripts(folder)
    if as_json:
        for path in scripts:
            echo_json(WrittenJson(path=str(path), what=path.name))
        return
    names = ", ".join(path.name for path in scripts)
    click.echo(f'{folder}: {names}; try export PATH="{folder.absolute()}:$PATH"')
