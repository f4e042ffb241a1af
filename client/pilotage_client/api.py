"""The Python API: one `Client` for everything that users and operators do."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from pilotage.channel import Endpoint, open_channel
from pilotage.description_wire import description_from_wire, description_to_wire
from pilotage.job_description import JobDescription, Value
from pilotage.resource_tree import QueueId
from pilotage.v1 import (
    identity_service_pb2,
    job_service_pb2,
    jobs_pb2,
    node_service_pb2,
    pilot_service_pb2,
    pool_service_pb2,
    resource_service_pb2,
)
from pilotage.v1.identity_service_pb2_grpc import IdentityServiceStub
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.v1.node_service_pb2_grpc import NodeServiceStub
from pilotage.v1.pilot_service_pb2_grpc import PilotServiceStub
from pilotage.v1.pool_service_pb2_grpc import PoolServiceStub
from pilotage.v1.resource_service_pb2_grpc import ResourceServiceStub
from pilotage.wire import queue_to_wire, section_to_wire, time_to_wire
from pilotage_client import files
from pilotage_client.location import Location, Wishes, locate
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


class Client:
    """A connection to a server in the name of one token; errors are `pilotage.errors`."""

    def __init__(self, server: str, token: str) -> None:
        self._channel = open_channel(Endpoint.parse(server, token=token))
        self._jobs = JobServiceStub(self._channel)
        self._pools = PoolServiceStub(self._channel)
        self._resources = ResourceServiceStub(self._channel)
        self._pilots = PilotServiceStub(self._channel)
        self._nodes = NodeServiceStub(self._channel)
        self._identity = IdentityServiceStub(self._channel)

    @classmethod
    def located(cls, wishes: Wishes | None = None) -> Self:
        """Connect to the server that the wishes, the environment or the data folder name."""
        found: Location = locate(wishes or Wishes())
        return cls(found.server, found.token)

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()

    # jobs

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
        self, *, states: Sequence[str] = (), owner: str = "", pool: str = "", newest_first: bool = False
    ) -> Iterator[JobStatus]:
        """Yield jobs in the order of ids; `owner` empty = the caller's own, "*" = all that he may see."""
        request = job_service_pb2.ListJobsRequest(owner=owner, pool=pool, newest_first=newest_first)
        request.states.extend(jobs_pb2.JobState.Value(f"JOB_STATE_{state.upper()}") for state in states)
        while True:
            page = self._jobs.ListJobs(request)
            yield from (job_status(job) for job in page.jobs)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def wait(self, job_ids: Sequence[int], timeout_s: float) -> list[JobStatus]:
        """Return the jobs as soon as all are final, or as they are after one poll of at most `timeout_s`."""
        poll_s = min(timeout_s, LONGEST_POLL_S)
        requests = (job_service_pb2.WaitForJobsRequest(job_ids=batch, timeout_s=poll_s) for batch in _batches(job_ids))
        answers = (self._jobs.WaitForJobs(request, timeout=poll_s + 10) for request in requests)
        return [job_status(job) for answer in answers for job in answer.jobs]

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

    def fetch_output(self, job_id: int, folder: Path) -> list[Path]:
        """Write the job's output files below `folder` and return their paths."""
        return files.fetch(self._jobs, job_id, self.output_files(job_id), folder)

    def read_output(self, job_id: int, file: jobs_pb2.OutputFile) -> bytes:
        """Return the content of one output file."""
        return b"".join(files.download(self._jobs, job_id, file))

    # pools, pilots, nodes

    def pools(self, vo: str = "") -> list[pool_service_pb2.Pool]:
        """Return the pools that the caller may see, most waiting first."""
        return list(self._pools.ListPools(pool_service_pb2.ListPoolsRequest(vo=vo)).pools)

    def pilots(self, *, ended: bool = False) -> list[pilot_service_pb2.Pilot]:
        """Return the pilots, newest first."""
        return list(self._pilots.ListPilots(pilot_service_pb2.ListPilotsRequest(ended=ended)).pilots)

    def register_pilot(self, queue: QueueId, *, lifetime_s: float = 0) -> pilot_service_pb2.PilotCredential:
        """Return stamp and token for one pilot that is started by hand in `queue`."""
        request = pilot_service_pb2.RegisterPilotsRequest(
            request_id=new_request_id(), queue=queue_to_wire(queue), count=1, lifetime_s=lifetime_s
        )
        return self._pilots.RegisterPilots(request).pilots[0]

    def drain_pilots(self, stamps: Sequence[str], *, reason: str, evict: bool = False) -> list[str]:
        """Let pilots end; returns the stamps that the server does not know or that have ended."""
        request = pilot_service_pb2.DrainPilotsRequest(
            request_id=new_request_id(), stamps=stamps, reason=reason, evict=evict
        )
        return list(self._pilots.DrainPilots(request).unknown_stamps)

    def slots(self) -> list[node_service_pb2.SlotInfo]:
        """Return the slots of live pilots, by node and name."""
        return list(self._nodes.ListSlots(node_service_pb2.ListSlotsRequest()).slots)

    # resources

    def queues(self, *, vo: str = "", site: str = "") -> list[resource_service_pb2.QueueInfo]:
        """Return queues with their effective values and where these come from, in the tree's order."""
        return list(self._resources.ListQueues(resource_service_pb2.ListQueuesRequest(vo=vo, site=site)).queues)

    def tree(self) -> resource_service_pb2.GetTreeResponse:
        """Return the tree in force as it was given."""
        return self._resources.GetTree(resource_service_pb2.GetTreeRequest())

    def put_tree(
        self, text: str, format_name: str, *, validate_only: bool = False
    ) -> resource_service_pb2.PutTreeResponse:
        """Bring a new version of the tree, or only see what it would change; all faults come as InvalidInputError."""
        request = resource_service_pb2.PutTreeRequest(
            request_id=new_request_id(), text=text, format=format_name, validate_only=validate_only
        )
        return self._resources.PutTree(request, timeout=300)

    def eligible_nodes(
        self, *, vo: str = "", level: str = "Queue", queue_select: Mapping[str, Value] | None = None
    ) -> dict[str, dict[str, list[str]]]:
        """Return {SITE: {CE: [QUEUE…]}} of what fits, nothing in it empty."""
        request = resource_service_pb2.GetEligibleNodesRequest(vo=vo, level=level)
        section_to_wire(queue_select or {}, request.queue_select)
        answer = self._resources.GetEligibleNodes(request)
        return {site.name: {ce.name: list(ce.queues) for ce in site.ces} for site in answer.sites}

    def ban(self, node: Sequence[str], *, reason: str, until: datetime | None = None) -> resource_service_pb2.BanInfo:
        """Take a site, CE or queue (1 to 3 names) out of use; `until` None = until it is taken back."""
        site, ce, queue = _three(node)
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
        """Take back the bans of a site, CE or queue (1 to 3 names) and return them."""
        site, ce, queue = _three(node)
        request = resource_service_pb2.UnbanRequest(request_id=new_request_id(), site=site, ce=ce, queue=queue)
        return list(self._resources.Unban(request).bans)

    def bans(self) -> list[resource_service_pb2.BanInfo]:
        """Return the bans in force."""
        return list(self._resources.ListBans(resource_service_pb2.ListBansRequest()).bans)

    # identity

    def who_am_i(self) -> identity_service_pb2.WhoAmIResponse:
        """Return the identity that the server sees."""
        return self._identity.WhoAmI(identity_service_pb2.WhoAmIRequest())

    def issue_token(self, request: identity_service_pb2.IssueTokenRequest) -> identity_service_pb2.IssueTokenResponse:
        """Make a token for somebody; admins only."""
        return self._identity.IssueToken(request)


def new_request_id() -> str:
    """Return a new id that makes a repeated request have one effect."""
    return secrets.token_hex(16)


def _batches(job_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the ids in as many pieces as the server takes in one call."""
    return (job_ids[start : start + MOST_IDS] for start in range(0, len(job_ids), MOST_IDS))


def _three(node: Sequence[str]) -> tuple[str, str, str]:
    site, ce, queue = (*node, "", "")[:3]
    return site, ce, queue
