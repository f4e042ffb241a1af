"""The Python API: `Client` has all calls of users and operators, over jobs, the grid, races, routes and the tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, overload

from pilotage.accounts import Quota, split_account, split_group
from pilotage.clock import boot_time_s
from pilotage.errors import Faults, InvalidJobError, StateConflictError
from pilotage.job_description import JobDescription, render_text
from pilotage.jobs.wire import description_from_wire, description_to_wire
from pilotage.notifications import NewSubscription
from pilotage.resources.selection import EligibleCEs, EligibleNodes, EligibleQueues, NodeType, down_to, node_type
from pilotage.resources.tree import QueueId
from pilotage.rpc.wire import queue_to_wire, quota_to_wire, section_to_wire, time_to_wire
from pilotage.tracing.recording import set_up_tracing, span
from pilotage.tracing.spans import SpanKind
from pilotage.v1 import (
    diagnosis_service_pb2,
    identity_service_pb2,
    job_service_pb2,
    jobs_pb2,
    matcher_service_pb2,
    node_service_pb2,
    pilot_service_pb2,
    pool_service_pb2,
    race_service_pb2,
    resource_service_pb2,
    route_service_pb2,
    share_service_pb2,
)
from pilotage.values.dependencies import Dependency
from pilotage.values.jobs import ChangeResult, JobCondition, SubmittedJobs
from pilotage.values.selections import JobSelection
from pilotage.values.wire.dependencies import dependency_to_wire
from pilotage.values.wire.jobs import change_result_from_wire, submitted_jobs_from_wire
from pilotage.values.wire.notifications import submitted_subscription_to_wire
from pilotage.values.wire.selections import selection_to_wire
from pilotage_client import files
from pilotage_client.connection import Connection, new_request_id
from pilotage_client.dependencies import resolve_dependencies
from pilotage_client.models import (
    ClusterStatus,
    FoundJobs,
    JobAttempt,
    JobEvent,
    JobStatus,
    cluster_status,
    job_attempt,
    job_event,
    job_status,
)
from pilotage_client.notifications import NotificationCalls, resolve_subscriptions
from pilotage_client.operations import OperationsCalls, node_parts
from pilotage_client.selections import read_selections

MOST_IDS = 10_000  # the server's limit for one call
ATTEMPT_JOBS = 100  # the server's limit for one call that lists attempts
LONGEST_POLL_S = 60.0
STANDARD_OUTPUT, STANDARD_ERROR = "stdout", "stderr"  # the names that pilots use if the job has none
_DEADLINE_MARGIN_S = 10.0  # beyond the timeout of the poll


class JobCalls(Connection):
    """Calls about jobs."""

    def submit(
        self,
        descriptions: Sequence[JobDescription],
        *,
        group: str = "",
        validate_only: bool = False,
        request_id: str | None = None,
        cluster: bool = False,
        dependencies: Sequence[Dependency] = (),
        workflow: str | None = None,
        notify: Sequence[NewSubscription] = (),
    ) -> SubmittedJobs:
        """Submit all descriptions or none, with their input files; a repeated `request_id` has one effect.

        `cluster` = their jobs are one cluster; else a description begins one, unless it is not the first and has
        `continues_cluster`.
        `dependencies` are those beside `after`, `after_ok`, `after_any` and `after_settled` of the descriptions.
        `notify` are subscriptions to all jobs, beside those of each cluster in `notify` of the descriptions.
        `workflow` = the name of the workflow that all of the jobs are; None = they are none.

        Raises
        ------
        InvalidInputError
            A description is invalid; the error lists every fault with its path.
        """
        continues = [place > 0 and (cluster or each.continues_cluster) for place, each in enumerate(descriptions)]
        descriptions = [
            each if each.continues_cluster == flag else replace(each, continues_cluster=flag)
            for each, flag in zip(descriptions, continues, strict=True)
        ]
        descriptions, named = resolve_dependencies(descriptions)
        descriptions, subscriptions = resolve_subscriptions(descriptions, notify)
        messages = _messages(descriptions)
        request = job_service_pb2.SubmitJobsRequest(
            request_id=request_id or new_request_id(),
            descriptions=messages,
            group=group,
            validate_only=validate_only,
            dependencies=[dependency_to_wire(each) for each in (*named, *dependencies)],
            workflow=None if workflow is None else job_service_pb2.Workflow(name=workflow),
            subscriptions=map(submitted_subscription_to_wire, subscriptions),
        )
        set_up_tracing("pilotage")
        with span("submit", SpanKind.CLIENT, {"pilotage.request_id": request.request_id}) as attributes:
            if not validate_only:
                files.upload_missing(self._jobs, descriptions)
            submitted = submitted_jobs_from_wire(self._jobs.SubmitJobs(request, timeout=300))
            attributes["pilotage.jobs"] = len(submitted.job_ids)
        return submitted

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
        *,
        states: Sequence[str] = (),
        owner: str = "",
        pool: str = "",
        newest_first: bool = False,
        copies: bool = False,
    ) -> Iterator[JobStatus]:
        """Yield jobs in the order of ids; `owner` empty = the caller, "*" = all visible jobs.

        `copies` = race copies too.
        """
        request = job_service_pb2.ListJobsRequest(owner=owner, pool=pool, newest_first=newest_first, copies=copies)
        request.states.extend(map(_state_number, states))
        while True:
            page = self._jobs.ListJobs(request)
            yield from (job_status(job) for job in page.jobs)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def find_jobs(self, names: Sequence[str], *, states: Sequence[str] = ()) -> FoundJobs:
        """Return the jobs of selections: "12" (cluster or job), "12.3", "12.0-99", "12-15" (job ids), "w12" (workflow).

        `states` restricts workflows, and whole clusters that have several jobs. Raises NotFoundError for an unknown
        selection, except for plain ranges of job ids, which are not checked.
        """
        selections = read_selections(names)
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
            request = job_service_pb2.FindJobsRequest(states=map(_state_number, states))
            for each in selections[done : done + MOST_IDS]:
                request.selections.append(selection_to_wire(each))
            answer = self._jobs.FindJobs(request).selected
            yield from answer
            done += len(answer)

    def clusters(
        self, *, states: Sequence[str] = (), owner: str = "", pool: str = "", page_size: int = 0, workflow: int = 0
    ) -> Iterator[ClusterStatus]:
        """Yield the clusters that have a job in one of `states`, newest first, with the numbers of jobs by state.

        `owner` is as in `list_jobs`. A workflow takes the place of its clusters; `workflow` = only the clusters of this
        one.
        """
        request = job_service_pb2.ListClustersRequest(owner=owner, pool=pool, page_size=page_size, workflow=workflow)
        request.states.extend(map(_state_number, states))
        while True:
            page = self._jobs.ListClusters(request)
            yield from map(cluster_status, page.clusters)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def ad(self, job_id: int) -> str:
        """Return a job's ad in new ClassAd syntax, as expressions see it; raises NotFoundError."""
        return self._jobs.GetJobAd(job_service_pb2.GetJobAdRequest(job_id=job_id)).ad

    def wait(self, job_ids: Sequence[int], timeout_s: float) -> list[JobStatus]:
        """Return the jobs when all are final, or in their present state after one poll of at most `timeout_s`."""
        ends_s = boot_time_s() + min(timeout_s, LONGEST_POLL_S)
        jobs: list[JobStatus] = []
        for batch in _batches(job_ids):
            poll_s = max(0.0, ends_s - boot_time_s())
            request = job_service_pb2.WaitForJobsRequest(job_ids=batch, timeout_s=poll_s)
            answer = self._jobs.WaitForJobs(request, timeout=poll_s + _DEADLINE_MARGIN_S)
            jobs += (job_status(job) for job in answer.jobs)
        return jobs

    def events(self, job_id: int) -> list[JobEvent]:
        """Return a job's events, oldest first."""
        answer = self._jobs.GetJobEvents(job_service_pb2.GetJobEventsRequest(job_id=job_id))
        return [job_event(event) for event in answer.events]

    def follow(self, job_ids: Sequence[int] = (), *, after: int = 0, until_now: bool = False) -> Iterator[JobEvent]:
        """Yield the events after a position as they happen; no ids = all visible events."""
        for page in self.event_pages(job_ids, after=after, until_now=until_now):
            yield from page

    def event_pages(
        self, job_ids: Sequence[int] = (), *, after: int = 0, until_now: bool = False
    ) -> Iterator[list[JobEvent]]:
        """Yield the events as `follow` does, page by page; a page may be empty."""
        request = job_service_pb2.WatchEventsRequest(job_ids=job_ids, after_position=after, until_now=until_now)
        for answer in self._jobs.WatchEvents(request, timeout=files.LONGEST_STREAM_S):
            yield [job_event(event) for event in answer.events]

    def search_jobs(self, condition: JobCondition) -> list[int]:
        """Return the ids of the jobs that meet a condition, such as all that failed on a node since a time.

        Raises
        ------
        InvalidInputError
            The condition contradicts itself, or would need all jobs to be read.
        StateConflictError
            There are more than a million such jobs.
        """
        request = job_service_pb2.SearchJobsRequest(condition=_condition_to_wire(condition))
        found = self._jobs.SearchJobs(request, timeout=files.LONGEST_STREAM_S)
        if found.more:
            raise StateConflictError("more than 1,000,000 jobs meet the condition; narrow it")
        return [job for run in found.runs for job in range(run.first, run.first + run.count)]

    def remove(self, job_ids: Sequence[int], reason: str = "", only: JobCondition | None = None) -> list[ChangeResult]:
        """Remove jobs; running ones are killed. `only` = those that still meet this condition; None = all."""
        return self._change(job_ids, job_service_pb2.JOB_CHANGE_REMOVE, reason, only)

    def hold(self, job_ids: Sequence[int], reason: str = "", only: JobCondition | None = None) -> list[ChangeResult]:
        """Hold jobs until they are released; running ones are killed. `only` is as in `remove`."""
        return self._change(job_ids, job_service_pb2.JOB_CHANGE_HOLD, reason, only)

    def release(self, job_ids: Sequence[int], reason: str = "", only: JobCondition | None = None) -> list[ChangeResult]:
        """Return held jobs to the queue; `only` is as in `remove`."""
        return self._change(job_ids, job_service_pb2.JOB_CHANGE_RELEASE, reason, only)

    def reschedule(
        self, job_ids: Sequence[int], reason: str = "", only: JobCondition | None = None
    ) -> list[ChangeResult]:
        """Return jobs to the queue with a new count of attempts, in any state; `only` is as in `remove`."""
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
        """Return a job's present description."""
        request = job_service_pb2.GetJobDescriptionRequest(job_id=job_id)
        return description_from_wire(self._jobs.GetJobDescription(request).description)

    def edit(self, job_id: int, description: JobDescription) -> tuple[JobStatus, tuple[str, ...]]:
        """Replace the description of a waiting or held job; returns the job and warnings."""
        request = job_service_pb2.EditJobRequest(
            request_id=new_request_id(), job_id=job_id, description=description_to_wire(description)
        )
        answer = self._jobs.EditJob(request)
        return job_status(answer.job), tuple(answer.warnings)

    def explain(self, job_id: int) -> job_service_pb2.ExplainJobResponse:
        """Return the reasons for a job's state."""
        return self._jobs.ExplainJob(job_service_pb2.ExplainJobRequest(job_id=job_id))

    def output_files(self, job_id: int, attempt: int = 0) -> list[jobs_pb2.OutputFile]:
        """Return the output files of an attempt of the job, by name; 0 = of the last one that ended."""
        return list(self.output_listing(job_id, attempt).files)

    def output_listing(self, job_id: int, attempt: int = 0) -> job_service_pb2.ListOutputFilesResponse:
        """Return the output files of an attempt (0 = the last that ended), its number, and how it was stopped."""
        return self._jobs.ListOutputFiles(job_service_pb2.ListOutputFilesRequest(job_id=job_id, attempt=attempt))

    def follow_output(
        self, job_id: int, *, error: bool = False, follow: bool = True, attempt: int = 0, offset: int = 0
    ) -> Iterator[job_service_pb2.FollowOutputResponse]:
        """Yield the standard output, or with `error` the standard error, of a job as it is written.

        Without `follow` only what is there now. `attempt` and `offset` continue after an earlier message. A message
        without content shows that the call is alive; the last one says that the stream is over.
        """
        request = job_service_pb2.FollowOutputRequest(
            job_id=job_id, error=error, follow=follow, attempt=attempt, offset=offset
        )
        yield from self._jobs.FollowOutput(request, timeout=files.LONGEST_STREAM_S if follow else LONGEST_POLL_S)

    def standard_files(self, job_id: int) -> tuple[str, str]:
        """Return the names of the files with the job's standard output and standard error."""
        (job,), description = self.jobs([job_id]), self.description(job_id)
        named = (description.stdout or STANDARD_OUTPUT, description.stderr or STANDARD_ERROR)
        out, err = (render_text(name, job.cluster, job.process) for name in named)
        return out, err

    def fetch_output(self, job_id: int, folder: Path, attempt: int = 0) -> list[Path]:
        """Write the output files of an attempt, 0 = the last, below `folder` and return their paths."""
        return self.fetch_files(job_id, self.output_files(job_id, attempt), folder)

    def fetch_files(self, job_id: int, chosen: Sequence[jobs_pb2.OutputFile], folder: Path) -> list[Path]:
        """Write these output files of the job below `folder` and return their paths, in their order."""
        return files.fetch(self._jobs, job_id, chosen, folder)

    def read_output(self, job_id: int, file: jobs_pb2.OutputFile) -> bytes:
        """Return the content of one output file."""
        return b"".join(self.stream_output(job_id, file))

    def stream_output(self, job_id: int, file: jobs_pb2.OutputFile) -> Iterator[bytes]:
        """Yield the content of one output file piece by piece; raises WorldError at the end if it is damaged."""
        return files.download(self._jobs, job_id, file)


def _messages(descriptions: Sequence[JobDescription]) -> list[jobs_pb2.JobDescription]:
    """Return the messages of a submission; raises InvalidJobError with the faults of all descriptions."""
    faults, messages = Faults(), []
    for index, description in enumerate(descriptions):
        with faults.within(f"descriptions[{index}]"):
            messages.append(description_to_wire(description))
    faults.raise_any(InvalidJobError)
    return messages


def _state_number(state: str) -> jobs_pb2.JobState.ValueType:
    return jobs_pb2.JobState.Value(f"JOB_STATE_{state.upper()}")


def _batches(job_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the ids in batches that the server accepts in one call."""
    return (job_ids[start : start + MOST_IDS] for start in range(0, len(job_ids), MOST_IDS))


NodeName: TypeAlias = tuple[str, str]
"""A node's site and its host name."""


class OperatorCalls(Connection):
    """Calls of operators: tree, bans, black holes, pilots, nodes, shares; and identities."""

    def tree(self) -> resource_service_pb2.GetTreeResponse:
        """Return the active tree as it was given."""
        return self._resources.GetTree(resource_service_pb2.GetTreeRequest())

    def put_tree(
        self, text: str, format_name: str, *, validate_only: bool = False
    ) -> resource_service_pb2.PutTreeResponse:
        """Activate a new version of the tree, or only return its changes; raises InvalidInputError with all faults."""
        request = resource_service_pb2.PutTreeRequest(
            request_id=new_request_id(), text=text, format=format_name, validate_only=validate_only
        )
        return self._resources.PutTree(request, timeout=300)

    def ban(self, node: Sequence[str], *, reason: str, until: datetime | None = None) -> resource_service_pb2.BanInfo:
        """Ban a site, CE or queue (1 to 3 names); `until` None = until the ban is removed."""
        site, ce, queue = node_parts(node)
        request = resource_service_pb2.BanRequest(
            request_id=new_request_id(),
            site=site,
            ce=ce,
            queue=queue,
            reason=reason,
            until=time_to_wire(until),
        )
        return self._resources.Ban(request).ban

    def unban(self, node: Sequence[str]) -> list[resource_service_pb2.BanInfo]:
        """Remove the bans of a site, CE or queue (1 to 3 names) and return them."""
        site, ce, queue = node_parts(node)
        request = resource_service_pb2.UnbanRequest(request_id=new_request_id(), site=site, ce=ce, queue=queue)
        return list(self._resources.Unban(request).bans)

    def bans(self) -> list[resource_service_pb2.BanInfo]:
        """Return the present bans."""
        return list(self._resources.ListBans(resource_service_pb2.ListBansRequest()).bans)

    def throttles(self) -> list[resource_service_pb2.Throttle]:
        """Return the circuit breakers that are not closed, and those that were closed recently."""
        return list(self._resources.ListThrottles(resource_service_pb2.ListThrottlesRequest()).throttles)

    def hold_place(
        self, place: resource_service_pb2.Place, *, reason: str, until: datetime | None = None
    ) -> tuple[resource_service_pb2.Throttle, list[str]]:
        """Stop jobs to a site, a queue or a node; returns its circuit breaker and warnings.

        `until` None = until `open_place`.
        """
        request = resource_service_pb2.HoldPlaceRequest(
            request_id=new_request_id(), place=place, reason=reason, until=time_to_wire(until)
        )
        held = self._resources.HoldPlace(request)
        return held.throttle, list(held.warnings)

    def open_place(self, place: resource_service_pb2.Place) -> resource_service_pb2.Throttle:
        """Allow jobs to a throttled or held place again."""
        request = resource_service_pb2.OpenPlaceRequest(request_id=new_request_id(), place=place)
        return self._resources.OpenPlace(request).throttle

    def register_pilot(
        self, queue: QueueId | None, *, lifetime_s: float = 0, queue_set: Sequence[str] = ()
    ) -> pilot_service_pb2.PilotCredential:
        """Return stamp and token of one pilot that is started by hand in `queue`; None = in one of `queue_set`."""
        request = pilot_service_pb2.RegisterPilotsRequest(
            request_id=new_request_id(),
            queue=queue_to_wire(queue) if queue is not None else None,
            count=1,
            lifetime_s=lifetime_s,
            queue_set=queue_set,
        )
        return self._pilots.RegisterPilots(request).pilots[0]

    def drain_pilots(
        self,
        stamps: Sequence[str] = (),
        *,
        place: Sequence[str] = (),
        node: NodeName | None = None,
        reason: str,
        evict: bool = False,
    ) -> pilot_service_pb2.DrainPilotsResponse:
        """Drain pilots by stamps, all of a site, CE or queue (`place`, 1 to 3 names), or all on a node.

        Returns their number, and the stamps that are unknown or have ended.
        """
        site, ce, queue = node_parts(place)
        request = pilot_service_pb2.DrainPilotsRequest(
            request_id=new_request_id(),
            stamps=stamps,
            site=node[0] if node else site,
            ce=ce,
            queue=queue,
            node=node[1] if node else "",
            reason=reason,
            evict=evict,
        )
        return self._pilots.DrainPilots(request)

    def revoke_pilots(
        self, stamps: Sequence[str] = (), *, node: Sequence[str] = (), reason: str
    ) -> pilot_service_pb2.RevokePilotsResponse:
        """End the credentials of pilots by stamps, or of all pilots of a site, CE or queue (`node`, 1 to 3 names)."""
        site, ce, queue = node_parts(node)
        request = pilot_service_pb2.RevokePilotsRequest(
            request_id=new_request_id(), stamps=stamps, site=site, ce=ce, queue=queue, reason=reason
        )
        return self._pilots.RevokePilots(request)

    def set_node_attributes(
        self, nodes: Sequence[NodeName], new: Mapping[str, str], unset: Sequence[str] = ()
    ) -> list[node_service_pb2.NodeSettings]:
        """Set ClassAd expressions as attributes of nodes, and unset others; returns the attributes of each."""
        request = node_service_pb2.SetNodeAttributesRequest(
            request_id=new_request_id(), nodes=map(_node_id, nodes), set=new, unset=unset
        )
        return list(self._nodes.SetNodeAttributes(request).nodes)

    def node_attributes(self, nodes: Sequence[NodeName] = ()) -> list[node_service_pb2.NodeSettings]:
        """Return the attributes set on these nodes; empty = on all."""
        request = node_service_pb2.ListNodeAttributesRequest(nodes=map(_node_id, nodes))
        return list(self._nodes.ListNodeAttributes(request).nodes)

    def set_shares(
        self,
        *,
        factors: Mapping[str, float | None] = MappingProxyType({}),
        quotas: Mapping[str, Quota | None] = MappingProxyType({}),
    ) -> None:
        """Set priority factors by VO/GROUP/OWNER and quotas by VO/GROUP; None restores the server's settings."""
        request = share_service_pb2.SetSharesRequest(request_id=new_request_id())
        for name, factor in factors.items():
            vo, group, owner = split_account(name)
            account = matcher_service_pb2.Account(vo=vo, group=group, owner=owner)
            request.priority_factors.add(account=account, factor=factor)
        for name, quota in quotas.items():
            vo, group = split_group(name)
            request.group_quotas.add(vo=vo, group=group, quota=None if quota is None else quota_to_wire(quota))
        self._shares.SetShares(request)

    def diagnose(self) -> diagnosis_service_pb2.DiagnoseResponse:
        """Return what the server finds on itself, its database, agents, queues and pilots; operators only."""
        return self._diagnosis.Diagnose(diagnosis_service_pb2.DiagnoseRequest())

    def who_am_i(self) -> identity_service_pb2.WhoAmIResponse:
        """Return the identity that the server sees."""
        return self._identity.WhoAmI(identity_service_pb2.WhoAmIRequest())

    def issue_token(self, request: identity_service_pb2.IssueTokenRequest) -> identity_service_pb2.IssueTokenResponse:
        """Create a token; admins only."""
        return self._identity.IssueToken(request)

    def join(self, machine: identity_service_pb2.JoinRequest) -> identity_service_pb2.JoinResponse:
        """Exchange the join token of this connection for the tokens of a machine."""
        return self._identity.Join(machine)

    def revoke_token(self, token: str, *, reason: str) -> identity_service_pb2.Revocation:
        """Revoke a valid token; users may revoke their own."""
        return self._revoke(reason, token=token)

    def revoke_token_id(self, token_id: str, *, issuer: str = "", reason: str) -> identity_service_pb2.Revocation:
        """Revoke a token by its id (jti); `issuer` empty = the server."""
        return self._revoke(reason, token_id=identity_service_pb2.TokenId(id=token_id, issuer=issuer))

    def revoke_tokens_of(self, owner: str = "", *, vo: str = "", reason: str) -> identity_service_pb2.Revocation:
        """Revoke all tokens of an owner that were issued until now.

        `owner` empty = the caller; `vo` empty = all VOs.
        """
        return self._revoke(reason, owner=identity_service_pb2.OwnerTokens(owner=owner, vo=vo))

    def _revoke(self, reason: str, **tokens: Any) -> identity_service_pb2.Revocation:
        request = identity_service_pb2.RevokeTokensRequest(request_id=new_request_id(), reason=reason, **tokens)
        return self._identity.RevokeTokens(request).revocation

    def revocations(self) -> list[identity_service_pb2.Revocation]:
        """Return the revocations that have not expired, the newest first; users see those of their own tokens."""
        return list(self._identity.ListRevocations(identity_service_pb2.ListRevocationsRequest()).revocations)


def _condition_to_wire(condition: JobCondition) -> job_service_pb2.JobCondition:
    return job_service_pb2.JobCondition(
        states=sorted(map(_state_number, condition.states)),
        site=condition.site,
        ce=condition.ce,
        queue=condition.queue,
        node=condition.node,
        owner=condition.owner,
        since=time_to_wire(condition.since),
        until=time_to_wire(condition.until),
    )


def _node_id(name: NodeName) -> node_service_pb2.NodeId:
    site, node = name
    return node_service_pb2.NodeId(site=site, node=node)


class GridCalls(Connection):
    """Read-only calls about the grid."""

    def pools(self, vo: str = "") -> list[pool_service_pb2.Pool]:
        """Return the visible pools, those with most waiting jobs first."""
        return list(self._pools.ListPools(pool_service_pb2.ListPoolsRequest(vo=vo)).pools)

    def pilots(
        self,
        *,
        ended: bool = False,
        site: str = "",
        queue: QueueId | None = None,
        node: str = "",
        states: Sequence[str] = (),
        since: datetime | None = None,
        registered_by: str = "",
    ) -> list[pilot_service_pb2.Pilot]:
        """Return the pilots that meet all of the conditions, newest first.

        `since` = that lived then or later. Ended ones are included with `ended`, `states` and `since`.
        """
        request = pilot_service_pb2.ListPilotsRequest(
            ended=ended,
            site=site,
            queue=None if queue is None else queue_to_wire(queue),
            node=node,
            states=[pilot_service_pb2.PilotState.Value(f"PILOT_STATE_{state}") for state in states],
            since=time_to_wire(since),
            registered_by=registered_by,
        )
        return list(self._pilots.ListPilots(request).pilots)

    def slots(
        self, constraint: str = "", *, node: NodeName | None = None, ads_wanted: bool = False
    ) -> list[node_service_pb2.SlotInfo]:
        """Return the slots of live pilots on a node (None = on all), by node and name.

        With a constraint only those whose ad satisfies it.
        """
        on = None if node is None else _node_id(node)
        request = node_service_pb2.ListSlotsRequest(constraint=constraint, ads_wanted=ads_wanted, node=on)
        return list(self._nodes.ListSlots(request).slots)

    def request_reports(self, node: NodeName) -> node_service_pb2.RequestReportsResponse:
        """Make the pilots on a node report their slots at once; `slots` shows as `answered` when each has done so."""
        request = node_service_pb2.RequestReportsRequest(request_id=new_request_id(), node=_node_id(node))
        return self._nodes.RequestReports(request)

    def shares(self, vo: str = "") -> share_service_pb2.ListSharesResponse:
        """Return the visible shares: groups by name, or by group_sort_expression; accounts in the order of matching."""
        return self._shares.ListShares(share_service_pb2.ListSharesRequest(vo=vo))

    def usage(
        self,
        by: Sequence[str] = (),
        *,
        since: date | None = None,
        until: date | None = None,
        vo: str = "",
        groups: Sequence[str] = (),
        owners: Sequence[str] = (),
        sites: Sequence[str] = (),
    ) -> list[share_service_pb2.UsageSum]:
        """Return sums of what ended attempts have used, one for each combination of the keys `by`, ordered by them.

        Keys are "day", "month", "vo", "group", "owner" and "site". Days are in UTC, both included. Empty = all.
        """
        request = share_service_pb2.ListUsageRequest(
            since=since.isoformat() if since else "",
            until=until.isoformat() if until else "",
            vo=vo,
            groups=groups,
            owners=owners,
            sites=sites,
            by=[share_service_pb2.UsageKey.Value(f"USAGE_KEY_{key.upper()}") for key in by],
        )
        return list(self._shares.ListUsage(request).sums)

    def queues(self, *, vo: str = "", site: str = "") -> list[resource_service_pb2.QueueInfo]:
        """Return queues with their effective values and the origins of these, in the tree's order."""
        return list(self._resources.ListQueues(resource_service_pb2.ListQueuesRequest(vo=vo, site=site)).queues)

    @overload
    def eligible_nodes(
        self,
        *,
        vo: str = ...,
        level: Literal["Queue"] = ...,
        ce_select: Mapping[str, object] | None = ...,
        queue_select: Mapping[str, object] | None = ...,
    ) -> EligibleQueues: ...

    @overload
    def eligible_nodes(
        self,
        *,
        vo: str = ...,
        level: Literal["CE"],
        ce_select: Mapping[str, object] | None = ...,
        queue_select: Mapping[str, object] | None = ...,
    ) -> EligibleCEs: ...

    @overload
    def eligible_nodes(
        self,
        *,
        vo: str = ...,
        level: Literal["Site"],
        ce_select: Mapping[str, object] | None = ...,
        queue_select: Mapping[str, object] | None = ...,
    ) -> list[str]: ...

    @overload
    def eligible_nodes(
        self,
        *,
        vo: str = ...,
        level: str,
        ce_select: Mapping[str, object] | None = ...,
        queue_select: Mapping[str, object] | None = ...,
    ) -> EligibleNodes: ...

    def eligible_nodes(
        self,
        *,
        vo: str = "",
        level: str = NodeType.QUEUE,
        ce_select: Mapping[str, object] | None = None,
        queue_select: Mapping[str, object] | None = None,
    ) -> EligibleNodes:
        """Return the eligible part of the tree without banned and empty parts; `vo` empty = the caller's VO.

        `ce_select` and `queue_select` are compared with the values of computing elements and queues, as a Requirements
        section. Level "Queue" gives {SITE: {CE: [QUEUE…]}}, "CE" {SITE: [CE…]}, "Site" [SITE…].

        Raises
        ------
        InvalidInputError
            The level is unknown, or a selection is invalid.
        """
        lowest, faults = node_type(level), Faults()
        request = resource_service_pb2.GetEligibleNodesRequest(vo=vo, level=lowest)
        with faults.within("ce_select"):
            section_to_wire(ce_select or {}, request.ce_select)
        with faults.within("queue_select"):
            section_to_wire(queue_select or {}, request.queue_select)
        faults.raise_any()
        answer = self._resources.GetEligibleNodes(request)
        return down_to(lowest, {site.name: {ce.name: list(ce.queues) for ce in site.ces} for site in answer.sites})


class RaceCalls(Connection):
    """Read-only calls about races."""

    def races(
        self, job_ids: Sequence[int] = (), *, owner: str = "", open_only: bool = False
    ) -> Iterator[race_service_pb2.Race]:
        """Yield the races of these original jobs (empty = of any), the newest original first.

        `owner` empty = the caller, "*" = all visible races; `open_only` = without ended ones.
        """
        request = race_service_pb2.ListRacesRequest(job_ids=job_ids, owner=owner, open=open_only)
        while True:
            page = self._races.ListRaces(request)
            yield from page.races
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def race_costs(self, *, owner: str = "") -> list[race_service_pb2.RaceCost]:
        """Return the costs of ended races, by account."""
        return list(self._races.ListRaces(race_service_pb2.ListRacesRequest(owner=owner, page_size=1)).costs)


class RouteCalls(Connection):
    """Calls about job routers."""

    def routers(self) -> list[route_service_pb2.Router]:
        """Return the job routers by name, with the routes of their last reports."""
        return list(self._routes.ListRoutes(route_service_pb2.ListRoutesRequest()).routers)

    def explain_routes(self, job_id: int) -> route_service_pb2.ExplainRoutesResponse:
        """Return the verdict of every route on a job."""
        return self._routes.ExplainRoutes(route_service_pb2.ExplainRoutesRequest(job_id=job_id))

    def give_up_router(self, name: str) -> list[route_service_pb2.JobCopy]:
        """Free all jobs of a router that is lost for good; returns its routed jobs, which may still run."""
        copies: list[route_service_pb2.JobCopy] = []
        more = True
        while more:
            request = route_service_pb2.GiveUpCopiesRequest(request_id=new_request_id(), router=name)
            given_up = self._routes.GiveUpCopies(request)
            copies += given_up.copies
            more = given_up.more
        return copies


class Client(JobCalls, NotificationCalls, GridCalls, RaceCalls, RouteCalls, OperatorCalls, OperationsCalls):
    """A connection to a server with one token; raises the errors of `pilotage.errors`."""
