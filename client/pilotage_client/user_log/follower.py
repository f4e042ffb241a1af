"""Follows jobs and writes their user logs, from the first event of each job to its last one.

The follower keeps no position: it reads the events of its jobs from the beginning, and the logs show which of them are
written (`user_log.file`). So it can be started late, killed, and started again, also twice at once.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path

from pilotage.errors import FeedPositionLostError, InvalidInputError, Violation, WorldError
from pilotage.job_description import JobDescription, render_text
from pilotage.text import fold
from pilotage_client.job_calls import JobCalls
from pilotage_client.models import FINAL_STATES, JobEvent, JobStatus
from pilotage_client.readers.draft import USER_LOG
from pilotage_client.retry import RetryBudget, opened
from pilotage_client.user_log.events import UserLogEvent, user_log_events
from pilotage_client.user_log.file import UserLogFile

_MOST_CLUSTERS = 100
"""The largest number of clusters whose first events are looked up; for more, the feed is read from its beginning."""
_MOST_IDS = 1000
"""The largest number of jobs by which the server filters events: long lists cost it more than other events."""
_PLAIN_STATES = frozenset({"WAITING", "MATCHED", "SUSPENDED", "COMPLETING"})
"""A transition to one of these is written without knowledge of the job, as far as it is written."""


def user_log_of(description: JobDescription) -> str | None:
    """Return the path that a description names, with the macros of an array; None = it names no log."""
    path = next((value for name, value in description.attributes.items() if fold(name) == fold(USER_LOG)), None)
    return str(path) if path not in (None, "", os.devnull) else None


def find_user_logs(client: JobCalls, jobs: Iterable[JobStatus], file: Path | None = None) -> dict[int, Path]:
    """Return the log of each job that has one, by job id; `file` = the log of all jobs, instead of their own.

    Raises
    ------
    InvalidInputError
        A log has a relative path, and the folder that it was relative to is not known.
    """
    paths: dict[int, str | None] = {}
    logs: dict[int, Path] = {}
    for job in jobs:
        if file is None and job.description_id not in paths:
            paths[job.description_id] = user_log_of(client.description(job.id))
        path = str(file.absolute()) if file is not None else paths[job.description_id]
        if path is None:
            continue
        if not os.path.isabs(path):
            raise InvalidInputError(Violation(f"job {job.id}", f"{USER_LOG} = {path} is relative; give --log FILE"))
        logs[job.id] = Path(render_text(path, job.cluster, job.process))
    return logs


def write_user_logs(
    client: JobCalls, jobs: Sequence[JobStatus], logs: Mapping[int, Path], retry: RetryBudget
) -> list[JobStatus]:
    """Write the events of the jobs that have a log until these jobs have ended or are futile, and return them.

    Raises
    ------
    WorldError
        A log cannot be written, or the server is away for longer than `retry` permits.
    """
    writer = LogWriter(client, {job.id: job for job in jobs if job.id in logs}, logs, retry)
    ids = sorted(logs)
    position = first_position(client, writer.jobs.values(), retry)
    unfinished, moving = set(ids), set(ids)
    for page in endless_pages(client, ids, position, retry):
        events = [event for event in page if event.job_id in logs]
        writer.write(events)
        for event in events:
            is_last = writer.is_last(event)
            (unfinished.discard if is_last else unfinished.add)(event.job_id)
            (moving.discard if is_last or event.after == "BLOCKED" else moving.add)(event.job_id)
        if not moving and writer.are_futile(unfinished):
            break
    return [writer.jobs[job_id] for job_id in ids]


def endless_pages(client: JobCalls, ids: Sequence[int], position: int, retry: RetryBudget) -> Iterator[list[JobEvent]]:
    """Yield for ever the pages with the events of these jobs; other events may be among them."""
    wanted = ids if len(ids) <= _MOST_IDS else ()
    while True:
        try:
            pages = retry(partial(opened, partial(client.event_pages, wanted, after=position)))
            try:
                for page in pages:
                    yield page
                    position = page[-1].position if page else position
            except WorldError as error:
                retry.pause_after(error)
        except FeedPositionLostError as error:  # a backup was restored: what came after this position is void
            position = error.resume_after


def present_pages(client: JobCalls, ids: Sequence[int], position: int, retry: RetryBudget) -> list[list[JobEvent]]:
    """Return the pages with the events that these jobs have had after a position; other events may be among them."""
    wanted = ids if len(ids) <= _MOST_IDS else ()
    return retry(lambda: list(client.event_pages(wanted, after=position, until_now=True)))


def first_position(client: JobCalls, jobs: Iterable[JobStatus], retry: RetryBudget) -> int:
    """Return a position before the first event of all these jobs.

    The events of one cluster begin in the order of ids. Those of several need not, as submissions may overlap.
    """
    first_ids: dict[int, int] = {}
    for job in jobs:
        first_ids[job.cluster] = min(job.id, first_ids.get(job.cluster, job.id))
    if len(first_ids) > _MOST_CLUSTERS:
        return 0
    histories = (retry(partial(client.events, job_id)) for job_id in first_ids.values())
    return min((events[0].position for events in histories if events), default=1) - 1


class LogWriter:
    """Writes events to the logs of their jobs; `jobs` = the jobs as last read, which are read again where needed.

    Jobs and logs may be added while it is in use.
    """

    def __init__(
        self, client: JobCalls, jobs: dict[int, JobStatus], logs: Mapping[int, Path], retry: RetryBudget
    ) -> None:
        self.jobs = jobs
        self._client = client
        self._logs = logs
        self._retry = retry
        self._submit_host = client.server.partition(",")[0]
        self._files: dict[Path, UserLogFile] = {}

    def write(self, events: Sequence[JobEvent]) -> None:
        """Write the events of one page, and wait until they are on the disk."""
        stale = sorted({event.job_id for event in events if self._is_stale(event)})
        if stale:
            self.jobs.update((job.id, job) for job in self._retry(lambda: self._client.jobs(stale)))
        by_path: defaultdict[Path, list[UserLogEvent]] = defaultdict(list)
        for event in events:
            by_path[self._logs[event.job_id]] += user_log_events(event, self.jobs[event.job_id], self._submit_host)
        for path, found in by_path.items():
            if found:
                self._files.setdefault(path, UserLogFile(path)).append(found)

    def is_last(self, event: JobEvent) -> bool:
        """Return whether the job has ended by this event; a rescheduled job has ended before, too."""
        job = self.jobs[event.job_id]
        return event.after in FINAL_STATES and job.is_final and event.attempt == job.attempt

    def are_futile(self, job_ids: Iterable[int]) -> bool:
        """Return whether all of these jobs, which are read again, are futile."""
        found = self._retry(partial(self._client.jobs, sorted(job_ids)))
        self.jobs.update((job.id, job) for job in found)
        return all(job.futile for job in found)

    def _is_stale(self, event: JobEvent) -> bool:
        """Return whether the job may have changed by this event since it was read, in what its log shows."""
        job = self.jobs[event.job_id]
        if event.after == "MATCHED":  # nothing is written
            return False
        return event.attempt > job.attempt or (event.after not in _PLAIN_STATES and not job.is_final)
