"""condor_wait: waits until the jobs of a user log have ended.

It reads the log alone, as HTCondor's does. The commands of the submitter write it (`condor.returns`, `submit
--follow`, `userlog`), on this machine or on another one.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from pilotage.clock import boot_time_s
from pilotage.errors import InvalidInputError, Violation
from pilotage.values.selections import JobSelection
from pilotage_client.condor.arguments import CondorOption, done, read_arguments, refused, silent
from pilotage_client.condor.returns import ensure_returner
from pilotage_client.condor.selection import read_job_id
from pilotage_client.user_log.file import jobs_of_log

WAIT_OPTIONS: tuple[CondorOption, ...] = (
    *done("wait:1 num:1", 1),
    *done("status:1"),
    *silent("debug:1 allevents:1"),
    *refused("echo:1", "read the log itself, for example by `tail -f`"),
)

_POLL_S = 1.0
"""As often as HTCondor's condor_wait looks."""


def condor_wait(words: Sequence[str], note: Callable[[str], None]) -> int:
    """Wait until the jobs of a log have ended; exits with 1 at the time-out of -wait."""
    arguments = read_arguments(words, WAIT_OPTIONS, note)
    if not 1 <= len(arguments.others) <= 2:
        raise InvalidInputError(Violation("condor_wait", "needs a user log, and perhaps a job: condor_wait LOG [ID]"))
    log = Path(arguments.others[0])
    selection = None
    if len(arguments.others) > 1 and (selection := read_job_id(arguments.others[1])) is None:
        raise InvalidInputError(Violation(arguments.others[1], "is neither a cluster nor a job, such as 12 or 12.3"))
    most, ends_s = arguments.number("num", 0), None
    if arguments.has("wait"):
        ends_s = boot_time_s() + arguments.number("wait", 0)
    ensure_returner()
    shown: dict[tuple[int, int], bool] = {}
    jobs: dict[tuple[int, int], bool] = {}
    size = -1
    while True:
        if (present := _size(log)) != size:
            size = present
            jobs = {job: ended for job, ended in jobs_of_log(log).items() if _is_selected(job, selection)}
        if arguments.has("status"):
            _show_status(jobs, shown)
        ended = sum(jobs.values())
        if jobs and (ended == len(jobs) or (most and ended >= most)):
            click.echo("All jobs done." if ended == len(jobs) else f"{ended} jobs done.")
            return 0
        if ends_s is not None and boot_time_s() >= ends_s:
            click.echo("Time expired.")
            return 1
        sys.stdout.flush()
        time.sleep(_POLL_S if ends_s is None else max(0.0, min(_POLL_S, ends_s - boot_time_s())))


def _size(log: Path) -> int:
    """Return the size of a log; 0 = it cannot be read, as its reader will say."""
    try:
        return log.stat().st_size
    except OSError:
        return 0


def _is_selected(job: tuple[int, int], selection: JobSelection | None) -> bool:
    if selection is None:
        return True
    return job[0] == selection.id and (selection.processes is None or job[1] == selection.processes[0])


def _show_status(jobs: dict[tuple[int, int], bool], shown: dict[tuple[int, int], bool]) -> None:
    for (cluster, process), ended in jobs.items():
        if shown.get((cluster, process)) is not ended:
            click.echo(f"{cluster}.{process}.0 {'completed' if ended else 'submitted'}")
    shown |= jobs
