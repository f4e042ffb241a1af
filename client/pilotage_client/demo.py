"""The demonstration: `pilotage up` in a scratch folder, the example jobs through it, and everything stopped again."""

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

from pilotage.clock import boot_time_s
from pilotage.errors import InvalidInputError, Violation, WorldError
from pilotage.v1.job_service_pb2 import ExplainJobResponse
from pilotage_client.api import Client
from pilotage_client.children import Say, program, tied_to_parent
from pilotage_client.commands.submission import ranges
from pilotage_client.connection import new_request_id
from pilotage_client.location import UP_FILE, Wishes
from pilotage_client.patience import Patience
from pilotage_client.readers import read_jobs_with_files
from pilotage_client.statuses import JobEvent, JobStatus

_JOB_FILES = ("hello.toml", "array.toml", "requirements.jdl", "words.submit", "nowhere.toml")
_TREE = "tree.toml"
_UP_WITHIN_S = 60.0
_DOWN_WITHIN_S = 60.0
_JOBS_WITHIN_S = 50.0
_LOOK_EVERY_S = 0.1


@dataclass(frozen=True, slots=True)
class DemoResult:
    """How the demonstration went: the jobs as they ended, and why others wait.

    `scratch` is the folder with everything, logs too; it is gone when all went well or the user has had enough.
    """

    jobs: tuple[JobStatus, ...]
    stuck: tuple[ExplainJobResponse, ...]
    seconds: float
    scratch: Path

    @property
    def went_well(self) -> bool:
        """Whether every job that some queue can run is done."""
        return bool(self.jobs) and all(job.state == "DONE" for job in self.jobs)


def run_demo(examples: Path, say: Say) -> DemoResult:
    """Run the demonstration on the job files in `examples`; stops everything that it started.

    Raises
    ------
    PilotageError
        When the stack does not come up or a job file cannot be submitted.
    """
    missing = [name for name in (*_JOB_FILES, _TREE) if not (examples / name).is_file()]
    if missing:
        raise InvalidInputError(*(Violation(str(examples / name), "there is no such file") for name in missing))
    started_s = boot_time_s()
    scratch = Path(tempfile.mkdtemp(prefix="pilotage-demo-"))
    try:
        jobs, stuck = _shown(scratch, examples, say)
    except KeyboardInterrupt:
        shutil.rmtree(scratch, ignore_errors=True)
        raise
    result = DemoResult(jobs, stuck, boot_time_s() - started_s, scratch)
    if result.went_well:
        shutil.rmtree(scratch, ignore_errors=True)
    return result


def _shown(scratch: Path, examples: Path, say: Say) -> tuple[tuple[JobStatus, ...], tuple[ExplainJobResponse, ...]]:
    """Run the examples through a stack of their own; returns the jobs as they ended, and why others wait."""
    started_s = boot_time_s()
    with _up(scratch, examples, say) as data, Client.located(Wishes(data=data)) as client:
        say(f"\n== The stack is up after {boot_time_s() - started_s:.1f} s; submitting the examples ==")
        patiently = Patience(_UP_WITHIN_S, say)  # `up` starts a server that dies again
        labels = _submit(client, examples, say, patiently)
        answers = [patiently(partial(client.explain, job_id)) for job_id in labels]
        stuck = tuple(answer for answer in answers if not answer.eligible_queues)
        for answer in stuck:
            del labels[answer.job.id]
        say("\n== Progress ==")
        jobs = _watch(client, labels, say, patiently)
        say("\n== Where each job ran, and what it printed ==")
        for job in jobs:
            say(patiently(partial(_outcome, client, job, labels[job.id])))
        say("\n== Stopping all that was started ==")
    return tuple(jobs), stuck


@contextmanager
def _up(scratch: Path, examples: Path, say: Say) -> Iterator[Path]:
    """Run `pilotage up` and give its data folder."""
    data, printed = scratch / "data", scratch / "up.out"
    command = [program("pilotage"), "up", "--data", str(data), "--port", "0", "--tree", str(examples / _TREE)]
    say(f"$ {' '.join(['pilotage', *command[1:]])}")
    with printed.open("wb") as output:
        process = subprocess.Popen(tied_to_parent(command), stdout=output, stderr=output, start_new_session=True)
    try:
        _wait_until_up(process, data / UP_FILE, printed)
        yield data
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_DOWN_WITHIN_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_until_up(process: subprocess.Popen[bytes], up_file: Path, printed: Path) -> None:
    give_up_s = boot_time_s() + _UP_WITHIN_S
    while not up_file.exists():
        if process.poll() is not None or boot_time_s() > give_up_s:
            raise WorldError(f"pilotage up did not start:\n{printed.read_text()}", transient=False)
        time.sleep(_LOOK_EVERY_S)


def _submit(client: Client, examples: Path, say: Say, patiently: Patience) -> dict[int, str]:
    """Submit the example jobs; returns what to call each, by its id."""
    labels: dict[int, str] = {}
    for name in _JOB_FILES:
        descriptions = read_jobs_with_files(examples / name)
        ids = patiently(partial(client.submit, descriptions, request_id=new_request_id())).job_ids
        say(f"$ pilotage submit {name}  →  job {ranges(ids)}")
        each_label = [each.name or Path(each.executable).name for each in descriptions for _ in range(each.count or 1)]
        labels |= zip(ids, each_label, strict=True)
    return labels


def _watch(client: Client, labels: Mapping[int, str], say: Say, patiently: Patience) -> list[JobStatus]:
    """Show the events of jobs as they happen, until all have ended or too much time has passed."""
    position, give_up_s, is_over = 0, boot_time_s() + _JOBS_WITHIN_S, False
    while True:
        events = patiently(partial(_events_after, client, labels, position))
        jobs = patiently(partial(client.wait, list(labels), _LOOK_EVERY_S))
        places = {job.id: f"at {_where(job)}" for job in jobs}
        for event in events:
            position = event.position
            moment = f"{event.time:%H:%M:%S.%f}"[:-3] if event.time else ""
            remark = places[event.job_id] if event.after == "MATCHED" else event.reason
            say(f"{moment}  {event.job_id:>3} {labels[event.job_id]:<8} {event.after:<10} {remark}".rstrip())
        if is_over:  # before these events were read, so that they were the last ones
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
