"""Handles of jobs: `Job`, and `JobSet` for the jobs of a submission or of a selection."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from pilotage.clock import boot_time_s
from pilotage.errors import StateConflictError
from pilotage.job_description import render_text
from pilotage.values.jobs import ChangeResult
from pilotage_client.models import FINAL_STATES, STATES, JobEvent, JobOutput, JobStatus
from pilotage_client.models.tables import SHOWN_ROWS, html_table
from pilotage_client.retry import DEFAULT_RETRY_S, RetryBudget, event_pages_since, wait_until_final

if TYPE_CHECKING:
    from rich.progress import Progress

    from pilotage_client.job_calls import JobCalls

_HEADINGS = ("id", "name", "state", "place", "reason")


@dataclass(frozen=True, slots=True)
class JobResult:
    """An ended job with its output: `stdout` and `stderr` as text, and all files of the last attempt in `output`.

    Files of more than 64 KiB have no content in `output`: `Job.fetch` writes them.
    """

    status: JobStatus
    stdout: str
    stderr: str
    output: JobOutput


class Job:
    """One job; every method is a call to the server."""

    def __init__(self, client: JobCalls, job_id: int) -> None:
        self._client = client
        self.id = job_id

    @property
    def status(self) -> JobStatus:
        """The present state; raises NotFoundError."""
        return self._client.jobs([self.id])[0]

    def wait(self, timeout_s: float = math.inf) -> JobStatus:
        """Return the job when it has ended or cannot run any more, or in its present state after `timeout_s`."""
        return JobSet(self._client, [self.id]).wait(timeout_s)[0]

    def result(self, timeout_s: float = math.inf) -> JobResult:
        """Wait for the end of the job and return it with its output.

        Raises
        ------
        TimeoutError
            It has not ended.
        StateConflictError
            It cannot run any more, for example because a parent has failed.
        """
        result = next(JobSet(self._client, [self.id]).results(timeout_s), None)
        if result is None:
            raise StateConflictError(f"job {self.id} cannot run any more; see `pilotage why {self.id}`")
        return result

    def events(self) -> list[JobEvent]:
        """Return what has happened to the job, oldest first."""
        return self._client.events(self.id)

    def fetch(self, folder: Path | str) -> list[Path]:
        """Write the output files below `folder` and return their paths."""
        return self._client.fetch_output(self.id, Path(folder))

    def cancel(self, reason: str = "") -> ChangeResult:
        """Remove the job; a running payload is killed."""
        return self._client.remove([self.id], reason)[0]

    def __repr__(self) -> str:
        return f"<Job {self.id}>"

    def _repr_html_(self) -> str:
        """Return the present state as HTML, which notebooks show."""
        return html_table(_HEADINGS, [_cells(self.status)], 1)


class JobSet(Sequence[Job]):
    """Jobs in the order of their ids in `job_ids`; every method is a call to the server, or several.

    `warnings` and `workflow` are those of the submission that made them. While no server answers, calls that wait are
    repeated.
    """

    def __init__(
        self,
        client: JobCalls,
        job_ids: Iterable[int],
        warnings: tuple[str, ...] = (),
        workflow: int = 0,
    ) -> None:
        self._client = client
        self.job_ids = tuple(job_ids)
        self.warnings = warnings
        self.workflow = workflow
        self._new_retry = partial(RetryBudget, DEFAULT_RETRY_S, lambda line: None)

    @overload
    def __getitem__(self, index: int) -> Job: ...
    @overload
    def __getitem__(self, index: slice) -> JobSet: ...
    def __getitem__(self, index: int | slice) -> Job | JobSet:
        """Return the job at this place, or a set of those in a slice."""
        if isinstance(index, slice):
            return JobSet(self._client, self.job_ids[index])
        return Job(self._client, self.job_ids[index])

    def __len__(self) -> int:
        return len(self.job_ids)

    @property
    def statuses(self) -> list[JobStatus]:
        """The present states, in the order of the ids; raises NotFoundError."""
        return self._client.jobs(self.job_ids)

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of jobs in each state that some job is in."""
        return Counter(status.state for status in self.statuses)

    def wait(self, timeout_s: float = math.inf, *, progress: bool = False) -> list[JobStatus]:
        """Return the jobs when all have ended or cannot run any more, or in their present states after `timeout_s`.

        `progress` shows a bar on a terminal or in a notebook.
        """
        if not self.job_ids:
            return []
        if progress:
            self._show_progress(timeout_s)
        return wait_until_final(self._client, self.job_ids, self._new_retry(), timeout_s)

    def as_completed(self, timeout_s: float = math.inf) -> Iterator[JobStatus]:
        """Yield each job when it has ended; ends early when the others cannot run any more. Raises TimeoutError."""
        for ended in self._ended(timeout_s):
            yield from ended

    def results(self, timeout_s: float = math.inf) -> Iterator[JobResult]:
        """Yield each job with its output when it has ended; ends as `as_completed` does."""
        names: dict[int, tuple[str, str]] = {}
        for ended in self._ended(timeout_s):
            ids = [status.id for status in ended]
            outputs = self._new_retry()(lambda: list(self._client.outputs(ids)))  # noqa: B023 - called at once
            for status, output in zip(ended, outputs, strict=True):
                if status.description_id not in names:
                    names[status.description_id] = self._client.standard_files(status.id, render=False)
                out, err = (render_text(name, status.cluster, status.process) for name in names[status.description_id])
                yield JobResult(status, self._text(output, out), self._text(output, err), output)

    def cancel(self, reason: str = "") -> list[ChangeResult]:
        """Remove the jobs; running payloads are killed."""
        return self._client.remove(self.job_ids, reason)

    def hold(self, reason: str = "") -> list[ChangeResult]:
        """Hold the jobs until they are released; running payloads are killed."""
        return self._client.hold(self.job_ids, reason)

    def release(self, reason: str = "") -> list[ChangeResult]:
        """Return held jobs to the queue."""
        return self._client.release(self.job_ids, reason)

    def reschedule(self, reason: str = "") -> list[ChangeResult]:
        """Return the jobs to the queue, in whatever state they are."""
        return self._client.reschedule(self.job_ids, reason)

    def fetch(self, folder: Path | str) -> list[Path]:
        """Write the output files of each job below a folder of its own, named by its id; returns their paths."""
        return [path for job in self for path in job.fetch(Path(folder) / str(job.id))]

    def to_dataframe(self) -> Any:
        """Return the present states and the names as a pandas DataFrame, with the ids as its index.

        Raises ImportError if pandas is not installed.
        """
        import pandas

        table = pandas.DataFrame([{"id": each.id, "name": each.name, **each.as_json()} for each in self.statuses])
        return table.set_index("id") if self.job_ids else table

    def __repr__(self) -> str:
        ids = f"{self.job_ids[0]} … {self.job_ids[-1]}" if len(self) > 1 else "".join(map(str, self.job_ids))
        return f"<JobSet of {len(self)} jobs: {ids}>"

    def _repr_html_(self) -> str:
        """Return the counts and the first jobs as HTML, which notebooks show."""
        statuses = self.statuses
        counts = Counter(status.state for status in statuses)
        summary = ", ".join(f"{counts[state]} {state.lower()}" for state in STATES if counts[state])
        table = html_table(_HEADINGS, map(_cells, statuses[:SHOWN_ROWS]), len(self))
        return f"<p>{len(self)} jobs: {summary}</p>{table}"

    def _text(self, output: JobOutput, name: str) -> str:
        """Return the text of a file of the output; "" = there is none."""
        file = next((file for file in output.files if file.name == name), None)
        if file is None:
            return ""
        return self._new_retry()(partial(self._client.read_output, output.job_id, file)).decode(errors="replace")

    def _ended(self, timeout_s: float) -> Iterator[list[JobStatus]]:
        """Yield the jobs in groups as they end, first those that have ended before; ends when no other can end."""
        ends_s = boot_time_s() + timeout_s
        statuses = self._new_retry()(lambda: self.statuses)
        yield [status for status in statuses if status.is_final]
        pending = {status.id for status in statuses if not status.is_final}
        if all(status.is_final or status.futile for status in statuses):
            return
        ids = sorted(pending)
        for page in event_pages_since(self._client, ids[0], self._new_retry, ids, ends_s=ends_s):
            if ended := pending.intersection(event.job_id for event in page if event.after in FINAL_STATES):
                yield self._present(ended)
                pending -= ended
            # A job becomes futile without an event; an empty page comes first, and then twice a minute.
            elif not page and all(job.is_final or job.futile for job in self._present(pending)):
                return
            if not pending:
                return
        if pending:
            raise TimeoutError(f"{len(pending)} of {len(self)} jobs had not ended after {timeout_s:g} s")

    def _present(self, job_ids: Iterable[int]) -> list[JobStatus]:
        return self._new_retry()(partial(self._client.jobs, sorted(job_ids)))

    def _show_progress(self, timeout_s: float) -> None:
        """Show a bar of the ended jobs until all have ended, or for `timeout_s`."""
        states: Counter[str] = Counter()
        with progress_bar() as shown:
            bar = shown.add_task("", total=len(self))
            try:
                for status in self.as_completed(timeout_s):
                    states[status.state] += 1
                    text = ", ".join(f"{count} {state.lower()}" for state, count in states.items())
                    shown.update(bar, advance=1, description=text)
            except TimeoutError:
                return


def progress_bar() -> Progress:
    """Return a bar for a terminal or a notebook; elsewhere only its last state is printed."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    return Progress(BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))


def _cells(status: JobStatus) -> tuple[object, ...]:
    place = "/".join(filter(None, (status.site, status.ce, status.queue)))
    return status.id, status.name, status.state, place, status.reason
