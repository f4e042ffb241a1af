"""Calls about jobs: submission, states, events, changes and output."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from pilotage.clock import boot_time_s
from pilotage.errors import Faults, InvalidJobError, StateConflictError, Violation
from pilotage.job_description import JobDescription, render_text
from pilotage.jobs.wire import description_from_wire, description_to_wire
from pilotage.notifications import NewSubscription
from pilotage.tracing.recording import set_up_tracing, span
from pilotage.tracing.spans import SpanKind
from pilotage.v1 import (
    job_service_pb2,
    jobs_pb2,
)
from pilotage.values.dependencies import Dependency
from pilotage.values.jobs import ChangeResult, JobCondition
from pilotage.values.selections import JobSelection
from pilotage.values.wire.dependencies import dependency_to_wire
from pilotage.values.wire.jobs import change_result_from_wire, submitted_jobs_from_wire
from pilotage.values.wire.notifications import submitted_subscription_to_wire
from pilotage.values.wire.selections import selection_to_wire
from pilotage_client import files, models
from pilotage_client.connection import Connection, new_request_id
from pilotage_client.dependencies import resolve_dependencies
from pilotage_client.job_sets import Job, JobSet
from pilotage_client.models import (
    STATES,
    ClusterStatus,
    FoundJobs,
    JobAttempt,
    JobCount,
    JobEvent,
    JobFile,
    JobOutput,
    JobStatus,
    OutputPart,
    cluster_status,
    job_attempt,
    job_event,
    job_file,
    job_status,
    output_part,
    state_name,
)
from pilotage_client.models.reading import listed, moment_to_wire, one_of
from pilotage_client.notifications import resolve_subscriptions
from pilotage_client.selections import read_selections

OWN_JOBS = JobCondition()
"""The condition that all jobs of the caller meet."""

MOST_JOBS = 1_000_000
"""The most jobs of one search."""

MOST_IDS = 10_000  # the server's limit for one call
ATTEMPT_JOBS = 100  # the server's limit for one call that lists attempts
_JOBS_A_READ = 100  # the server's limit for one answer
MOST_RUNS = 1000  # the server's limit for one call
AD_SELECTIONS = 1000  # the server's limit for one call
LONGEST_POLL_S = 60.0
STANDARD_OUTPUT, STANDARD_ERROR = "stdout", "stderr"  # the names that pilots use if the job has none
_DEADLINE_MARGIN_S = 10.0  # beyond the timeout of the poll


class JobCalls(Connection):
    """Calls about jobs."""

    report_upload: Callable[[int, int], None] = staticmethod(lambda _sent, _total: None)
    """Gets, while `submit` uploads input files, the bytes that were sent, and those of all missing files."""

    def submit(
        self,
        descriptions: JobDescription | Sequence[JobDescription],
        *,
        group: str = "",
        request_id: str | None = None,
        cluster: bool = False,
        dependencies: Sequence[Dependency] = (),
        workflow: str | None = None,
        notify: Sequence[NewSubscription] = (),
    ) -> JobSet:
        """Submit one description, or all of several or none, with their input files; returns handles of the jobs.

        Input files may be paths, relative to the present folder: such a description is resolved as by `job`. A repeated
        `request_id` has one effect.

        `cluster` = their jobs are one cluster; else a description begins one, unless it is not the first and has
        `continues_cluster`.
        `dependencies` are those beside `after`, `after_ok`, `after_any` and `after_settled` of the descriptions.
        `notify` are subscriptions to all jobs, beside those of each cluster in `notify` of the descriptions.
        `workflow` = the name of the workflow that all of the jobs are; None = they are none.

        Raises
        ------
        InvalidInputError
            A description is invalid, or an input file or a parent is missing; the error lists every fault with its
            path. InvalidJobError, a kind of it, if only descriptions are at fault.
        QuotaExceededError
            The caller, or its VO, has too many jobs.
        WorldError
            An input file cannot be read.
        """
        descriptions, request = _submission(
            descriptions, group, dependencies, workflow, notify, is_cluster=cluster, request_id=request_id
        )
        set_up_tracing("pilotage")
        with span("submit", SpanKind.CLIENT, {"pilotage.request_id": request.request_id}) as attributes:
            files.upload_missing(self._jobs, descriptions, self.report_upload)
            submitted = submitted_jobs_from_wire(self._jobs.SubmitJobs(request, timeout=300))
            attributes["pilotage.jobs"] = len(submitted.job_ids)
        return JobSet(self, submitted.job_ids, submitted.warnings, submitted.workflow)

    def dry_run(
        self,
        descriptions: JobDescription | Sequence[JobDescription],
        *,
        group: str = "",
        cluster: bool = False,
        dependencies: Sequence[Dependency] = (),
        workflow: str | None = None,
        notify: Sequence[NewSubscription] = (),
    ) -> models.explanations.SubmissionDryRun:
        """Return what `submit` would do: warnings, quotas, and the explanation of the first descriptions that differ.

        Nothing is stored or uploaded. Raises InvalidInputError, InvalidJobError, QuotaExceededError, WorldError.
        """
        _, request = _submission(descriptions, group, dependencies, workflow, notify, is_cluster=cluster)
        request.validate_only = True
        return models.explanations.submission_dry_run(self._jobs.SubmitJobs(request, timeout=300))

    def job(self, job_id: int) -> Job:
        """Return the handle of a job; the server is not called."""
        return Job(self, job_id)

    def select(self, *names: str | int, states: Sequence[str] = ()) -> JobSet:
        """Return the handles of the jobs that `find_jobs` finds. Raises InvalidInputError, NotFoundError."""
        return JobSet(self, self.find_jobs([str(name) for name in names], states=states).ids)

    def jobs(self, job_ids: Sequence[int]) -> list[JobStatus]:
        """Return the present state of jobs, in the given order; raises NotFoundError."""
        requests = (job_service_pb2.GetJobsRequest(job_ids=batch) for batch in _batches(job_ids))
        return [job_status(job) for request in requests for job in self._jobs.GetJobs(request).jobs]

    def attempts(self, job_ids: Sequence[int]) -> list[JobAttempt]:
        """Return the attempts of jobs, by job and number; of each job at most the last 100. Raises NotFoundError."""
        found: list[JobAttempt] = []
        for start in range(0, len(job_ids), ATTEMPT_JOBS):
            request = job_service_pb2.ListAttemptsRequest(job_ids=job_ids[start : start + ATTEMPT_JOBS])
            found += (job_attempt(attempt) for attempt in self._jobs.ListAttempts(request).attempts)
        return found

    def list_jobs(
        self,
        condition: JobCondition = OWN_JOBS,
        *,
        states: Sequence[str] = (),
        owner: str = "",
        pool: str = "",
        newest_first: bool = False,
        copies: bool = False,
    ) -> Iterator[JobStatus]:
        """Yield the jobs that meet a condition, in the order of ids.

        `states`, `owner` and `pool` are short for those of the condition: `owner` empty = the caller, "*" = all visible
        jobs. `copies` = race copies too. Raises InvalidInputError.
        """
        for some in _conditions(_with(condition, states, owner, pool), newest_first=newest_first):
            request = job_service_pb2.ListJobsRequest(condition=some, newest_first=newest_first, copies=copies)
            while True:
                page = self._jobs.ListJobs(request)
                yield from (job_status(job) for job in page.jobs)
                if not page.next_page_token:
                    break
                request.page_token = page.next_page_token

    def find_jobs(self, names: Sequence[str], *, states: Sequence[str] = ()) -> FoundJobs:
        """Return the jobs of selections: "12" (cluster or job), "12.3", "12.0-99", "12-15" (job ids), "w12" (workflow).

        `states` restricts workflows, and whole clusters that have several jobs. Raises NotFoundError for an unknown
        selection, except for plain ranges of job ids, which are not checked. Raises InvalidInputError.
        """
        selections = read_selections(list(listed("names", names)))
        answers = self._select([each for each in selections if isinstance(each, JobSelection)], states)
        ids: dict[int, None] = {}
        in_clusters: set[int] = set()
        clusters: dict[JobSelection, ClusterStatus] = {}
        for each in selections:
            if isinstance(each, range):
                ids |= dict.fromkeys(each)
                continue
            answer = next(answers)
            found = dict.fromkeys(job for run in answer.runs for job in range(run.first, run.first + run.count))
            ids |= found
            if answer.HasField("cluster"):
                clusters[each] = cluster_status(answer.cluster)
                in_clusters |= found.keys()
        return FoundJobs(list(ids), list(clusters.values()), [job for job in ids if job not in in_clusters])

    def _select(
        self, selections: Sequence[JobSelection], states: Sequence[str]
    ) -> Iterator[job_service_pb2.SelectedJobs]:
        """Yield the jobs of each selection; an answer may cover only the first ones."""
        done = 0
        while done < len(selections):
            request = job_service_pb2.FindJobsRequest(states=map(_state_number, listed("states", states)))
            for each in selections[done : done + MOST_IDS]:
                request.selections.append(selection_to_wire(each))
            answer = self._jobs.FindJobs(request).selected
            yield from answer
            done += len(answer)

    def clusters(
        self,
        condition: JobCondition = OWN_JOBS,
        *,
        states: Sequence[str] = (),
        owner: str = "",
        pool: str = "",
        page_size: int = 0,
        workflow: int = 0,
    ) -> Iterator[ClusterStatus]:
        """Yield the clusters that have a job which meets a condition, newest first, with the numbers of jobs by state.

        `states`, `owner` and `pool` are as in `list_jobs`. A workflow takes the place of its clusters; `workflow` =
        only the clusters of this one. Raises InvalidInputError, NotFoundError.
        """
        wanted = _condition_to_wire(_with(condition, states, owner, pool))
        request = job_service_pb2.ListClustersRequest(condition=wanted, page_size=page_size, workflow=workflow)
        while True:
            page = self._jobs.ListClusters(request)
            yield from map(cluster_status, page.clusters)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def ad(self, job_id: int) -> str:
        """Return a job's ad in new ClassAd syntax, as expressions see it; raises NotFoundError."""
        return self._jobs.GetJobAd(job_service_pb2.GetJobAdRequest(job_id=job_id)).ad

    def list_ads(
        self,
        condition: JobCondition = OWN_JOBS,
        *,
        attributes: Sequence[str] = (),
        newest_first: bool = False,
    ) -> Iterator[str]:
        """Yield the ads of the jobs that meet a condition in the order of ids, in new ClassAd syntax.

        Selections of unknown jobs are left out. `attributes` = the ads have these names only. Raises InvalidInputError
        for the expression `where`.
        """
        for some in _conditions(condition, newest_first=newest_first):
            request = job_service_pb2.ListJobAdsRequest(
                condition=some, attributes=listed("attributes", attributes), newest_first=newest_first
            )
            while True:
                page = self._jobs.ListJobAds(request)
                yield from page.ads
                if not page.next_page_token:
                    break
                request.page_token = page.next_page_token

    def wait(self, job_ids: Sequence[int], timeout_s: float) -> list[JobStatus]:
        """Return the jobs when all are final, or in their present state after one poll of at most `timeout_s`.

        Raises NotFoundError.
        """
        ends_s = boot_time_s() + min(timeout_s, LONGEST_POLL_S)
        jobs: list[JobStatus] = []
        for batch in _batches(job_ids):
            poll_s = max(0.0, ends_s - boot_time_s())
            request = job_service_pb2.WaitForJobsRequest(job_ids=batch, timeout_s=poll_s)
            answer = self._jobs.WaitForJobs(request, timeout=poll_s + _DEADLINE_MARGIN_S)
            jobs += (job_status(job) for job in answer.jobs)
        return jobs

    def events(self, job_id: int) -> list[JobEvent]:
        """Return a job's events, oldest first. Raises NotFoundError."""
        answer = self._jobs.GetJobEvents(job_service_pb2.GetJobEventsRequest(job_id=job_id))
        return [job_event(event) for event in answer.events]

    def follow(self, job_ids: Sequence[int] = (), *, after: int = 0, until_now: bool = False) -> Iterator[JobEvent]:
        """Yield the events after a position as they happen; no ids = all visible events.

        Consecutive ids are cheap, such as those of one submission: there may be 1,000 runs of them.
        Raises FeedPositionLostError.
        """
        for page in self.event_pages(job_ids, after=after, until_now=until_now):
            yield from page

    def event_pages(
        self,
        job_ids: Sequence[int] = (),
        *,
        after: int = 0,
        until_now: bool = False,
        timeout_s: float = files.LONGEST_STREAM_S,
    ) -> Iterator[list[JobEvent]]:
        """Yield the events as `follow` does, page by page; a page may be empty.

        After `timeout_s` it raises ServerUnreachableError, as when the stream is interrupted.
        Raises FeedPositionLostError.
        """
        request = job_service_pb2.WatchEventsRequest(after_position=after, until_now=until_now)
        if len(runs := runs_of(job_ids)) <= MOST_RUNS:
            request.runs.extend(runs)
        else:
            request.job_ids.extend(job_ids)
        for answer in self._jobs.WatchEvents(request, timeout=min(timeout_s, files.LONGEST_STREAM_S)):
            yield [job_event(event) for event in answer.events]

    def search_jobs(self, condition: JobCondition) -> list[int]:
        """Return the ids of the jobs that meet a condition, such as all that failed on a node since a time.

        Raises
        ------
        InvalidInputError
            The condition contradicts itself.
        StateConflictError
            There are more than a million such jobs.
        """
        found = self.count_jobs(condition, MOST_JOBS)
        if found.more:
            raise StateConflictError(f"more than {MOST_JOBS:,} jobs meet the condition; narrow it")
        return list(found.ids)

    def count_jobs(self, condition: JobCondition, most: int = 10_000) -> JobCount:
        """Return the jobs that meet a condition with their numbers by owner and state; the newest `most`, or more.

        Raises InvalidInputError.
        """
        count = JobCount()
        for some in _conditions(condition):
            request = job_service_pb2.SearchJobsRequest(condition=some)
            while True:
                page = self._jobs.SearchJobs(request)
                for run in page.runs:
                    count.ids.extend(range(run.first, run.first + run.count))
                count.owners.update({f"{each.vo}/{each.owner}": each.jobs for each in page.owners})
                count.states.update({state_name(each.state): each.jobs for each in page.states})
                if not page.next_page_token:
                    break
                if len(count.ids) > most:
                    count.more = True
                    return count
                request.page_token = page.next_page_token
        count.ids.sort()
        return count

    def remove(self, job_ids: Sequence[int], reason: str = "", only: JobCondition | None = None) -> list[ChangeResult]:
        """Remove jobs; running ones are killed. `only` = those that still meet this condition; None = all.

        Raises InvalidInputError.
        """
        return self._change(job_ids, job_service_pb2.JOB_CHANGE_REMOVE, reason, only)

    def hold(self, job_ids: Sequence[int], reason: str = "", only: JobCondition | None = None) -> list[ChangeResult]:
        """Hold jobs until they are released; running ones are killed. `only` is as in `remove`.

        Raises InvalidInputError.
        """
        return self._change(job_ids, job_service_pb2.JOB_CHANGE_HOLD, reason, only)

    def release(self, job_ids: Sequence[int], reason: str = "", only: JobCondition | None = None) -> list[ChangeResult]:
        """Return held jobs to the queue; `only` is as in `remove`. Raises InvalidInputError."""
        return self._change(job_ids, job_service_pb2.JOB_CHANGE_RELEASE, reason, only)

    def reschedule(
        self, job_ids: Sequence[int], reason: str = "", only: JobCondition | None = None
    ) -> list[ChangeResult]:
        """Return jobs to the queue with a new count of attempts, in any state; `only` is as in `remove`.

        Raises InvalidInputError.
        """
        return self._change(job_ids, job_service_pb2.JOB_CHANGE_RESCHEDULE, reason, only)

    def _change(
        self,
        job_ids: Sequence[int],
        change: job_service_pb2.JobChange.ValueType,
        reason: str,
        only: JobCondition | None,
    ) -> list[ChangeResult]:
        condition = None if only is None else _condition_to_wire(only)
        requests = (
            job_service_pb2.ChangeJobsRequest(
                request_id=new_request_id(), job_ids=batch, change=change, reason=reason, only=condition
            )
            for batch in _batches(job_ids)
        )
        return [
            change_result_from_wire(result) for request in requests for result in self._jobs.ChangeJobs(request).results
        ]

    def description(self, job_id: int) -> JobDescription:
        """Return a job's present description. Raises NotFoundError."""
        request = job_service_pb2.GetJobDescriptionRequest(job_id=job_id)
        return description_from_wire(self._jobs.GetJobDescription(request).description)

    def edit(self, job_id: int, description: JobDescription) -> tuple[JobStatus, tuple[str, ...]]:
        """Replace the description of a waiting or held job; returns the job and warnings.

        Raises InvalidInputError, NotFoundError, StateConflictError.
        """
        request = job_service_pb2.EditJobRequest(
            request_id=new_request_id(), job_id=job_id, description=description_to_wire(description)
        )
        answer = self._jobs.EditJob(request)
        return job_status(answer.job), tuple(answer.warnings)

    def explain(self, job_id: int) -> models.explanations.JobExplanation:
        """Return the reasons for a job's state. Raises NotFoundError."""
        return models.explanations.job_explanation(
            self._jobs.ExplainJob(job_service_pb2.ExplainJobRequest(job_id=job_id))
        )

    def output_files(self, job_id: int, attempt: int = 0) -> list[JobFile]:
        """Return the output files of an attempt of the job, by name; 0 = of the last one that ended.

        Raises NotFoundError.
        """
        return list(self.output_listing(job_id, attempt).files)

    def output_listing(self, job_id: int, attempt: int = 0) -> JobOutput:
        """Return the output files of an attempt (0 = the last that ended), its number, and how it was stopped.

        Raises NotFoundError.
        """
        answer = self._jobs.ListOutputFiles(job_service_pb2.ListOutputFilesRequest(job_id=job_id, attempt=attempt))
        return JobOutput(job_id, answer.attempt, tuple(map(job_file, answer.files)), answer.partial)

    def outputs(
        self, job_ids: Sequence[int], names: Sequence[str] = (), *, largest_bytes: int = 65_536
    ) -> Iterator[JobOutput]:
        """Yield the output files of the last ended attempt of each job, in the given order.

        Files of at most `largest_bytes` (at most 1 MiB) come with their content, up to 1 MiB for each job. No `names` =
        all files. Raises NotFoundError.
        """
        done = 0
        while done < len(job_ids):
            request = job_service_pb2.ReadOutputFilesRequest(
                job_ids=job_ids[done : done + _JOBS_A_READ], names=listed("names", names), largest_bytes=largest_bytes
            )
            outputs = self._jobs.ReadOutputFiles(request).outputs
            for each in outputs:
                yield JobOutput(each.job_id, each.attempt, tuple(map(job_file, each.files)), each.partial)
            done += len(outputs)

    def follow_output(
        self, job_id: int, *, error: bool = False, follow: bool = True, attempt: int = 0, offset: int = 0
    ) -> Iterator[OutputPart]:
        """Yield the standard output, or with `error` the standard error, of a job as it is written.

        Without `follow` only what is there now. `attempt` and `offset` continue after an earlier message. A message
        without content shows that the call is alive; the last one says that the stream is over.
        Raises NotFoundError, StateConflictError.
        """
        request = job_service_pb2.FollowOutputRequest(
            job_id=job_id, error=error, follow=follow, attempt=attempt, offset=offset
        )
        parts = self._jobs.FollowOutput(request, timeout=files.LONGEST_STREAM_S if follow else LONGEST_POLL_S)
        yield from map(output_part, parts)

    def standard_files(self, job_id: int, *, render: bool = True) -> tuple[str, str]:
        """Return the names of the files with the job's standard output and standard error.

        Without `render` they have the macros of the description, as all jobs with the same one have them.
        Raises NotFoundError.
        """
        description = self.description(job_id)
        named = (description.stdout or STANDARD_OUTPUT, description.stderr or STANDARD_ERROR)
        if not render:
            return named
        (job,) = self.jobs([job_id])
        out, err = (render_text(name, job.cluster, job.process) for name in named)
        return out, err

    def fetch_output(self, job_id: int, folder: Path, attempt: int = 0) -> list[Path]:
        """Write the output files of an attempt, 0 = the last, below `folder` and return their paths.

        Raises NotFoundError, WorldError.
        """
        return self.fetch_files(job_id, self.output_files(job_id, attempt), folder)

    def fetch_files(self, job_id: int, chosen: Sequence[JobFile], folder: Path) -> list[Path]:
        """Write these output files of the job below `folder` and return their paths, in their order.

        Raises NotFoundError, WorldError.
        """
        return files.fetch(self._jobs, job_id, chosen, folder)

    def read_output(self, job_id: int, file: JobFile) -> bytes:
        """Return the content of one output file. Raises NotFoundError, WorldError."""
        if file.content is not None:
            return file.content
        return b"".join(self.stream_output(job_id, file))

    def stream_output(self, job_id: int, file: JobFile) -> Iterator[bytes]:
        """Yield the content of one output file piece by piece; raises WorldError at the end if it is damaged.

        Raises NotFoundError.
        """
        yield from files.download(self._jobs, job_id, file)


def _submission(
    descriptions: JobDescription | Sequence[JobDescription],
    group: str,
    dependencies: Sequence[Dependency],
    workflow: str | None,
    notify: Sequence[NewSubscription],
    *,
    is_cluster: bool,
    request_id: str | None = None,
) -> tuple[Sequence[JobDescription], job_service_pb2.SubmitJobsRequest]:
    """Return the descriptions as they are submitted, and the request; raises InvalidInputError."""
    if isinstance(descriptions, JobDescription | str | Path):
        descriptions = [descriptions]
    _check_kinds(descriptions)
    descriptions = _with_files(_clusters(descriptions, one=is_cluster))
    descriptions, named = resolve_dependencies(descriptions)
    descriptions, subscriptions = resolve_subscriptions(descriptions, notify)
    request = job_service_pb2.SubmitJobsRequest(
        request_id=request_id or new_request_id(),
        descriptions=_messages(descriptions),
        group=group,
        dependencies=[dependency_to_wire(each) for each in (*named, *dependencies)],
        workflow=None if workflow is None else job_service_pb2.Workflow(name=workflow),
        subscriptions=map(submitted_subscription_to_wire, subscriptions),
    )
    return descriptions, request


def _check_kinds(descriptions: Sequence[object]) -> None:
    """Raise InvalidJobError for what is no description, such as the path of a job file."""
    faults = [
        Violation(f"descriptions[{index}]", f"is {each!r}; `job` and `read_jobs_with_files` return descriptions")
        for index, each in enumerate(descriptions)
        if not isinstance(each, JobDescription)
    ]
    if faults:
        raise InvalidJobError(*faults)


def _messages(descriptions: Sequence[JobDescription]) -> list[jobs_pb2.JobDescription]:
    """Return the messages of a submission; raises InvalidJobError with the faults of all descriptions."""
    faults, messages = Faults(), []
    for index, description in enumerate(descriptions):
        with faults.within(f"descriptions[{index}]"):
            messages.append(description_to_wire(description))
    faults.raise_any(InvalidJobError)
    return messages


def _clusters(descriptions: Sequence[JobDescription], *, one: bool) -> list[JobDescription]:
    """Return the descriptions as clusters: all as one, or as they say; the first one always begins one."""
    continues = [place > 0 and (one or each.continues_cluster) for place, each in enumerate(descriptions)]
    return [
        each if each.continues_cluster == flag else replace(each, continues_cluster=flag)
        for each, flag in zip(descriptions, continues, strict=True)
    ]


def _with_files(descriptions: list[JobDescription]) -> list[JobDescription]:
    """Resolve the input files that are paths; raises InvalidJobError for missing ones."""
    if not any(map(_has_paths, descriptions)):
        return descriptions
    from pilotage_client.readers.files import resolve_input_paths  # with readers of all languages

    return resolve_input_paths(descriptions, Path())


def _has_paths(description: JobDescription) -> bool:
    """Whether an input file is not resolved yet: it is a path, or has no checksum."""
    return any(getattr(file, "checksum", None) is None for file in description.input_files)


def _state_number(state: str) -> jobs_pb2.JobState.ValueType:
    return jobs_pb2.JobState.Value(f"JOB_STATE_{one_of('states', state.upper(), STATES)}")


def runs_of(job_ids: Iterable[int]) -> list[job_service_pb2.IdRun]:
    """Return the runs of consecutive ids."""
    runs: list[job_service_pb2.IdRun] = []
    for job_id in sorted(set(job_ids)):
        if runs and runs[-1].first + runs[-1].count == job_id:
            runs[-1].count += 1
        else:
            runs.append(job_service_pb2.IdRun(first=job_id, count=1))
    return runs


def _batches(job_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the ids in batches that the server accepts in one call."""
    return (job_ids[start : start + MOST_IDS] for start in range(0, len(job_ids), MOST_IDS))


def _with(condition: JobCondition, states: Sequence[str], owner: str, pool: str) -> JobCondition:
    """Return the condition with these states, this owner and this pool where they are given."""
    return replace(
        condition,
        states=frozenset(listed("states", states)) or condition.states,
        owner=owner or condition.owner,
        pool=pool or condition.pool,
    )


def _conditions(condition: JobCondition, *, newest_first: bool = False) -> Iterator[job_service_pb2.JobCondition]:
    """Yield the condition for each part of its selections and runs of ids that the server accepts in one call."""
    if not condition.selections and not condition.runs:
        yield _condition_to_wire(condition)
        return
    parts = [
        replace(condition, selections=condition.selections[start : start + AD_SELECTIONS], runs=())
        for start in range(0, len(condition.selections), AD_SELECTIONS)
    ]
    parts += (
        replace(condition, selections=(), runs=condition.runs[start : start + MOST_RUNS])
        for start in range(0, len(condition.runs), MOST_RUNS)
    )
    yield from map(_condition_to_wire, reversed(parts) if newest_first else parts)


def _condition_to_wire(condition: JobCondition) -> job_service_pb2.JobCondition:
    return job_service_pb2.JobCondition(
        states=sorted(map(_state_number, listed("states", condition.states))),
        site=condition.site,
        ce=condition.ce,
        queue=condition.queue,
        node=condition.node,
        owner=condition.owner,
        since=moment_to_wire("since", condition.since),
        until=moment_to_wire("until", condition.until),
        vo=condition.vo,
        group=condition.group,
        name=condition.name,
        pool=condition.pool,
        where=condition.where,
        selections=map(selection_to_wire, condition.selections),
        runs=[job_service_pb2.IdRun(first=run.start, count=len(run)) for run in condition.runs],
    )
