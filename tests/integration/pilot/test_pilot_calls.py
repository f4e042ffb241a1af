"""Calls of pilots to a running server: repeated requests, checks and credentials."""

from __future__ import annotations

import asyncio
from collections import Counter

import jwt
import pytest

from pilotage.errors import InvalidInputError, PermissionDeniedError
from pilotage.v1 import job_service_pb2, jobs_pb2, matcher_service_pb2, matcher_service_pb2_grpc, pilot_service_pb2
from pilotage_server.core.identity import Role
from support.long_polls import POLL_TIMEOUT_S
from support.server import request_id
from support.wire_grid import QUEUE, WireGrid, a_job


def test_repeated_request_gets_the_same_jobs(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    job_ids = grid.submit(a_job(), a_job())
    id_ = request_id()

    first, repeated = pilot.request_jobs(id_=id_), pilot.request_jobs(id_=id_)

    assert [match.job_id for match in first.matches] == job_ids[:1]
    assert first.matches[0].lease_s > repeated.matches[0].lease_s > first.matches[0].lease_s - POLL_TIMEOUT_S
    repeated.matches[0].lease_s = first.matches[0].lease_s
    assert first == repeated
    assert grid.state_of(job_ids[1]) == "WAITING"


def test_repeated_request_grants_no_ended_lease(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    (job_id,) = grid.submit(a_job())
    id_ = request_id()
    assert pilot.request_jobs(id_=id_).matches[0].lease_s > 0
    grid.change(job_service_pb2.JOB_CHANGE_HOLD, job_id)

    assert pilot.request_jobs(id_=id_).matches[0].lease_s == 0


def test_repeated_heartbeat_renews_only_valid_leases(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    running, other = grid.submit(a_job(), a_job())
    pilot.request_jobs()
    pilot.request_jobs()
    leases = [matcher_service_pb2.HeldLease(job_id=job_id, attempt=1) for job_id in (running, other)]
    report = jobs_pb2.JobReport(job_id=running, attempt=1, state=jobs_pb2.JOB_STATE_RUNNING)
    heartbeat = {"leases": leases, "reports": [report], "request_id": request_id()}
    first = pilot.heartbeat(**heartbeat)
    grid.change(job_service_pb2.JOB_CHANGE_HOLD, other)

    repeated = pilot.heartbeat(**heartbeat)

    assert [lease.job_id for lease in first.renewed] == [running, other]
    assert [lease.job_id for lease in repeated.renewed] == [running]
    assert [lease.job_id for lease in repeated.lost] == [other]
    assert first.results == repeated.results


def test_empty_answer_is_not_stored_for_repeats(grid: WireGrid) -> None:
    pilot = grid.start_pilot()
    id_ = request_id()
    assert not pilot.request_jobs(id_=id_).matches
    (job_id,) = grid.submit(a_job())

    assert [match.job_id for match in pilot.request_jobs(id_=id_).matches] == [job_id]


def test_only_pilots_may_request_jobs(grid: WireGrid) -> None:
    stub = matcher_service_pb2_grpc.MatcherServiceStub(grid.channel(grid.server.token(Role.OPERATOR)))

    with pytest.raises(PermissionDeniedError):
        stub.RequestJobs(matcher_service_pb2.RequestJobsRequest(request_id="1"))


def test_submit_pools_of_unknown_queue_are_marked_unknown(grid: WireGrid) -> None:
    (job_id,) = grid.submit(a_job(Memory=2000))
    request = matcher_service_pb2.GetSubmitPoolsForQueueRequest()
    for queue in ("long", "short", "nowhere"):
        request.queues.add(site="SITE", ce="ce1", queue=queue)

    director = matcher_service_pb2_grpc.MatcherServiceStub(grid.channel(grid.server.token(Role.DIRECTOR)))
    answer = director.GetSubmitPoolsForQueue(request)

    (pool,) = {job.pool for job in grid.jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=[job_id])).jobs}
    assert [(pools.known, pool in pools.pool_ids) for pools in answer.queues] == [
        (True, True),
        (True, False),
        (False, False),
    ]


def test_all_faults_of_a_report_name_their_fields(grid: WireGrid) -> None:
    report = jobs_pb2.JobReport(job_id=0, attempt=1, cpu_s=-1)
    report.output_files.add(name="../up", checksum="x", size=1)
    request = matcher_service_pb2.ReportStateRequest(request_id="1", reports=[report])

    with pytest.raises(InvalidInputError) as caught:
        grid.start_pilot().matcher.ReportState(request)

    assert {violation.where for violation in caught.value.violations} == {
        "reports[0].job_id",
        "reports[0].state",
        "reports[0].cpu_s",
        "reports[0].output_files[0].name",
        "reports[0].output_files[0].checksum",
    }


def test_concurrent_requests_get_different_jobs(grid: WireGrid) -> None:
    job_ids = grid.submit(*(a_job() for _ in range(20)))
    pilots = [grid.start_pilot() for _ in range(5)]

    async def request_all() -> list[int]:
        answers = await asyncio.gather(*(asyncio.to_thread(pilot.request_jobs) for _ in range(5) for pilot in pilots))
        return [match.job_id for answer in answers for match in answer.matches]

    granted = Counter(asyncio.run(request_all()))

    assert granted == Counter(job_ids)


def test_repeated_registration_returns_the_same_pilots(grid: WireGrid) -> None:
    request = pilot_service_pb2.RegisterPilotsRequest(request_id=request_id(), count=3)
    request.queue.site, request.queue.ce, request.queue.queue = QUEUE.site, QUEUE.ce, QUEUE.queue

    first, repeated = grid.pilots.RegisterPilots(request), grid.pilots.RegisterPilots(request)

    assert [pilot.stamp for pilot in first.pilots] == [pilot.stamp for pilot in repeated.pilots]
    assert all(pilot.token for pilot in repeated.pilots)


def test_renewed_credential_keeps_the_pilots_claims(grid: WireGrid) -> None:
    request = pilot_service_pb2.RegisterPilotsRequest(request_id=request_id(), count=1, vos=["lhcb"])
    request.queue.site, request.queue.ce, request.queue.queue = QUEUE.site, QUEUE.ce, QUEUE.queue
    (pilot,) = grid.pilots.RegisterPilots(request).pilots
    renew = pilot_service_pb2.RenewCredentialsRequest(stamps=[pilot.stamp], lifetime_s=9000)
    (renewed,) = grid.pilots.RenewCredentials(renew).pilots
    old, new = (jwt.decode(credential.token, options={"verify_signature": False}) for credential in (pilot, renewed))
    changed = {"iat", "nbf", "exp", "jti"}
    assert {name: old[name] for name in old.keys() - changed} == {name: new[name] for name in new.keys() - changed}
    assert new["exp"] - new["iat"] == pytest.approx(9000, abs=1)


@pytest.mark.parametrize("stamps", [[], ["stamp"] * 1001])
def test_credential_renewal_needs_1_to_1000_stamps(grid: WireGrid, stamps: list[str]) -> None:
    with pytest.raises(InvalidInputError, match="stamps"):
        grid.pilots.RenewCredentials(pilot_service_pb2.RenewCredentialsRequest(stamps=stamps))
