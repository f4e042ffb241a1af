"""What a client does with jobs: submit, see, follow, change, explain, fetch what they left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pilotage.clock import boot_time_s
from pilotage.description_wire import description_from_wire, description_to_wire
from pilotage.job_description import JobDescription
from pilotage.job_macros import render_text
from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage_client import files
from pilotage_client.connection import Connection, new_request_id
from pilotage_client.statuses import (
    ChangeResult,
    JobEvent,
    JobStatus,
    Submitted,
    change_result,
    job_event,
    job_status,
)

MOST_IDS = 10_000  # the server takes no more in one call
LONGEST_POLL_S = 60.0
STANDARD_OUTPUT, STANDARD_ERROR = "stdout", "stderr"  # what pilots call the files where the job names none
_ANSWER_WITHIN_S = 10.0  # beyond what a poll may take


class JobCalls(Connection):
    """The calls over jobs."""

    def submit(
        self,
        descriptions: Sequence[JobDescription],
        *,
        group: str = "",
        validate_only: bool = False,
        request_id: str | None = None,
    ) -> Submitted:
        """Submit descriptions whole, or not at all, with their input files; a repeated `request_id` has one effect.

        Raises
        ------
        InvalidInputError
            A description cannot be taken; every fault is named with its path.
        """
        if not validate_only:
            files.upload_missing(self._jobs, descriptions)
        request = job_service_pb2.SubmitJobsRequest(
            request_id=request_id or new_request_id(),
            descriptions=[description_to_wire(description) for description in descriptions],
            group=group,
            validate_only=validate_only,
        )
        answer = self._jobs.SubmitJobs(request, timeout=300)
        return Submitted(tuple(answer.job_ids), tuple(answer.warnings))

    def jobs(self, job_ids: Sequence[int]) -> list[JobStatus]:
        """Return the present state of jobs, in the order asked; raises NotFoundError for one that is not there."""
        requests = (job_service_pb2.GetJobsRequest(job_ids=batch) for batch in _batches(job_ids))
        return [job_status(job) for request in requests for job in self._jobs.GetJobs(request).jobs]

    def list_jobs(
        self,
        *,
        states: Sequence[str] = (),
        owner: str = "",
        pool: str = "",
        newest_first: bool = False,
        copies: bool = False,
    ) -> Iterator[JobStatus]:
        """Yield jobs in the order of ids; `owner` empty = the caller's own, "*" = all that he may see.

        `copies` = also those that race or have raced as copies of others.
        """
        request = job_service_pb2.ListJobsRequest(owner=owner, pool=pool, newest_first=newest_first, copies=copies)
        request.states.extend(jobs_pb2.JobState.Value(f"JOB_STATE_{state.upper()}") for state in states)
        while True:
            page = self._jobs.ListJobs(request)
            yield from (job_status(job) for job in page.jobs)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def ad(self, job_id: int) -> str:
        """Return a job as a ClassAd in the new syntax, as expressions look at it; raises NotFoundError."""
        return self._jobs.GetJobAd(job_service_pb2.GetJobAdRequest(job_id=job_id)).ad

    def wait(self, job_ids: Sequence[int], timeout_s: float) -> list[JobStatus]:
        """Return the jobs as soon as all are final, or as they are after one poll of at most `timeout_s`."""
        ends_s = boot_time_s() + min(timeout_s, LONGEST_POLL_S)
        return [job for batch in _batches(job_ids) for job in self._poll(batch, max(0.0, ends_s - boot_time_s()))]

    def _poll(self, job_ids: Sequence[int], poll_s: float) -> list[JobStatus]:
        request = job_service_pb2.WaitForJobsRequest(job_ids=job_ids, timeout_s=poll_s)
        return [job_status(job) for job in self._jobs.WaitForJobs(request, timeout=poll_s + _ANSWER_WITHIN_S).jobs]

    def events(self, job_id: int) -> list[JobEvent]:
        """Return a job's events, oldest first."""
        answer = self._jobs.GetJobEvents(job_service_pb2.GetJobEventsRequest(job_id=job_id))
        return [job_event(event) for event in answer.events]

    def follow(self, job_ids: Sequence[int] = (), *, after: int = 0, until_now: bool = False) -> Iterator[JobEvent]:
        """Yield the events after a position as they happen; no ids = all that the caller may see."""
        request = job_service_pb2.WatchEventsRequest(job_ids=job_ids, after_position=after, until_now=until_now)
        for answer in self._jobs.WatchEvents(request, timeout=files.LONGEST_STREAM_S):
            yield from (job_event(event) for event in answer.events)

    def remove(self, job_ids: Sequence[int], reason: str = "") -> list[ChangeResult]:
        """Take jobs out; running ones are killed."""
        return self._change(job_ids, job_service_pb2.JOB_CHANGE_REMOVE, reason)

    def hold(self, job_ids: Sequence[int], reason: str = "") -> list[ChangeResult]:
        """Keep jobs back until they are released; running ones are killed."""
        return self._change(job_ids, job_service_pb2.JOB_CHANGE_HOLD, reason)

    def release(self, job_ids: Sequence[int], reason: str = "") -> list[ChangeResult]:
        """Let held jobs wait again."""
        return self._change(job_ids, job_service_pb2.JOB_CHANGE_RELEASE, reason)

    def reschedule(self, job_ids: Sequence[int], reason: str = "") -> list[ChangeResult]:
        """Put jobs back to waiting with fresh attempts, wherever they are."""
        return self._change(job_ids, job_service_pb2.JOB_CHANGE_RESCHEDULE, reason)

    def _change(
        self, job_ids: Sequence[int], change: job_service_pb2.JobChange.ValueType, reason: str
    ) -> list[ChangeResult]:
        requests = (
            job_service_pb2.ChangeJobsRequest(request_id=new_request_id(), job_ids=batch, change=change, reason=reason)
            for batch in _batches(job_ids)
        )
        return [change_result(result) for request in requests for result in self._jobs.ChangeJobs(request).results]

    def description(self, job_id: int) -> JobDescription:
        """Return a job's description as it stands now."""
        request = job_service_pb2.GetJobDescriptionRequest(job_id=job_id)
        return description_from_wire(self._jobs.GetJobDescription(request).description)

    def edit(self, job_id: int, description: JobDescription) -> tuple[JobStatus, tuple[str, ...]]:
        """Give a waiting or held job another description; returns the job and what its owner should know."""
        request = job_service_pb2.EditJobRequest(
            request_id=new_request_id(), job_id=job_id, description=description_to_wire(description)
        )
        answer = self._jobs.EditJob(request)
        return job_status(answer.job), tuple(answer.warnings)

    def explain(self, job_id: int) -> job_service_pb2.ExplainJobResponse:
        """Return why a job is where it is."""
        return self._jobs.ExplainJob(job_service_pb2.ExplainJobRequest(job_id=job_id))

    def output_files(self, job_id: int) -> list[jobs_pb2.OutputFile]:
        """Return the files that the job's last ended attempt left behind, by name."""
        return list(self._jobs.ListOutputFiles(job_service_pb2.ListOutputFilesRequest(job_id=job_id)).files)

    def standard_files(self, job_id: int) -> tuple[str, str]:
        """Return what the files with the job's standard output and standard error are called."""
        (job,), description = self.jobs([job_id]), self.description(job_id)
        named = (description.stdout or STANDARD_OUTPUT, description.stderr or STANDARD_ERROR)
        out, err = (render_text(name, job.cluster, job.process) for name in named)
        return out, err

    def fetch_output(self, job_id: int, folder: Path) -> list[Path]:
        """Write the job's output files below `folder` and return their paths."""
        return self.fetch_files(job_id, self.output_files(job_id), folder)

    def fetch_files(self, job_id: int, chosen: Sequence[jobs_pb2.OutputFile], folder: Path) -> list[Path]:
        """Write these output files of the job below `folder` and return their paths, in their order."""
        return files.fetch(self._jobs, job_id, chosen, folder)

    def read_output(self, job_id: int, file: jobs_pb2.OutputFile) -> bytes:
        """Return the content of one output file."""
        return b"".join(self.stream_output(job_id, file))

    def stream_output(self, job_id: int, file: jobs_pb2.OutputFile) -> Iterator[bytes]:
        """Yield the content of one output file piece by piece; raises WorldError at its end if it came damaged."""
        return files.download(self._jobs, job_id, file)


def _batches(job_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the ids in as many pieces as the server takes in one call."""
    return (job_ids[start : start + MOST_IDS] for start in range(0, len(job_ids), MOST_IDS))
