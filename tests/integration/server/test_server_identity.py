"""A real server's door: tokens, roles, health, reflection, errors."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from pilotage.errors import (
    InvalidInputError,
    InvalidJobError,
    InvalidRequirementsError,
    InvalidTreeError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from pilotage.job_description import JobDescription
from pilotage.v1 import (
    identity_service_pb2,
    identity_service_pb2_grpc,
    job_service_pb2,
    jobs_pb2,
    resource_service_pb2,
    resource_service_pb2_grpc,
    values_pb2,
)
from pilotage_server.core.identity import Role
from pilotage_server.rpc.server import SERVICES
from support.server import RunningServer, request_id
from support.wire_grid import WireGrid, a_job, submission


@pytest.fixture
def grid(shared_server: RunningServer) -> Iterator[WireGrid]:
    grid = WireGrid(shared_server)
    yield grid
    grid.close()


def who_am_i(server: RunningServer, token: str) -> identity_service_pb2.WhoAmIResponse:
    with server.channel(token) as channel:
        stub = identity_service_pb2_grpc.IdentityServiceStub(channel)
        return stub.WhoAmI(identity_service_pb2.WhoAmIRequest())


@pytest.mark.parametrize("token", ["", "not.a.token", "x" * 5000])
def test_nobody_comes_in_without_a_token(shared_server: RunningServer, token: str) -> None:
    with pytest.raises(UnauthenticatedError):
        who_am_i(shared_server, token)


def test_the_server_sees_who_the_token_was_issued_for(shared_server: RunningServer) -> None:
    token = shared_server.token(Role.USER, Role.OPERATOR, owner="zoë", vo="sky", groups=("a", "b"))

    seen = who_am_i(shared_server, token)

    assert (seen.owner, seen.vo, list(seen.groups), list(seen.roles)) == (
        "zoë",
        "sky",
        ["a", "b"],
        ["operator", "user"],
    )
    assert seen.HasField("expires")
    assert seen.server_version


def test_a_missing_role_is_named(grid: WireGrid) -> None:
    stub = resource_service_pb2_grpc.ResourceServiceStub(grid.channel(grid.server.token()))

    with pytest.raises(PermissionDeniedError, match="PutTree needs the role admin or operator; alice has user"):
        stub.PutTree(resource_service_pb2.PutTreeRequest(request_id="1", text="{}", format="json"))


def an_identity_stub(grid: WireGrid, role: Role) -> identity_service_pb2_grpc.IdentityServiceStub:
    return identity_service_pb2_grpc.IdentityServiceStub(grid.channel(grid.server.token(role)))


def a_token_for(**fields: object) -> identity_service_pb2.IssueTokenRequest:
    request = identity_service_pb2.IssueTokenRequest(owner="bob", vo="sea", groups=["g"], roles=["user"], lifetime_s=60)
    request.MergeFrom(identity_service_pb2.IssueTokenRequest(**fields))  # type: ignore[arg-type]
    return request


def test_an_administrator_issues_tokens_that_hold(grid: WireGrid) -> None:
    issued = an_identity_stub(grid, Role.ADMIN).IssueToken(a_token_for())

    seen = who_am_i(grid.server, issued.token)

    assert (seen.owner, seen.vo, list(seen.roles)) == ("bob", "sea", ["user"])
    assert seen.expires == issued.expires.__class__(seconds=issued.expires.seconds)


@pytest.mark.parametrize("role", [Role.USER, Role.OPERATOR, Role.AGENT])
def test_nobody_else_issues_tokens(grid: WireGrid, role: Role) -> None:
    with pytest.raises(PermissionDeniedError):
        an_identity_stub(grid, role).IssueToken(a_token_for())


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"roles": ["pilot"]}, "roles[1]"),
        ({"roles": ["emperor"]}, "roles[1]"),
        ({"lifetime_s": 1e9}, "lifetime_s"),
        ({"lifetime_s": -1}, "lifetime_s"),
        ({"owner": " "}, "owner"),
    ],
)
def test_a_token_that_makes_no_sense_is_not_issued(grid: WireGrid, fields: dict[str, object], where: str) -> None:
    with pytest.raises(InvalidInputError) as refused:
        an_identity_stub(grid, Role.ADMIN).IssueToken(a_token_for(**fields))

    assert where in {violation.where for violation in refused.value.violations}


@pytest.mark.parametrize("service", ["", *SERVICES])
def test_every_service_tells_its_health_to_anyone(shared_server: RunningServer, service: str) -> None:
    with grpc.insecure_channel(shared_server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = health.Check(health_pb2.HealthCheckRequest(service=service))

    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_tools_learn_the_services_by_reflection(shared_server: RunningServer) -> None:
    with grpc.insecure_channel(shared_server.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert set(SERVICES) <= set(database.get_services())
        file = database.FindFileContainingSymbol("pilotage.v1.JobService")

    assert any(service.name == "JobService" for service in file.service)


def test_every_fault_of_a_submission_comes_back_with_its_field(grid: WireGrid) -> None:
    request = job_service_pb2.SubmitJobsRequest(request_id=request_id())
    request.descriptions.add(executable="fine")
    request.descriptions.add(executable="", request_cpus=0)
    request.descriptions[1].requirements["Memory"].CopyFrom(values_pb2.Value())

    with pytest.raises(InvalidJobError) as refused:
        grid.jobs.SubmitJobs(request)

    assert {violation.where for violation in refused.value.violations} == {
        "descriptions[1].executable",
        "descriptions[1].request_cpus",
        "descriptions[1].requirements.Memory",
    }


def test_a_requirement_without_a_meaning_is_refused_at_its_place(grid: WireGrid) -> None:
    with pytest.raises((InvalidJobError, InvalidRequirementsError)) as refused:
        grid.submit(JobDescription("x", requirements={"Memory": ()}))

    assert [violation.where for violation in refused.value.violations] == ["descriptions[0].requirements.Memory"]


def test_a_broken_tree_is_refused_with_every_fault(grid: WireGrid) -> None:
    with pytest.raises(InvalidTreeError) as refused:
        grid.put_tree('{"sites": {"A": 5, "B": {"ces": 7}}}')

    assert len(refused.value.violations) == 2


def test_a_job_that_is_not_there_is_not_found(grid: WireGrid) -> None:
    with pytest.raises(NotFoundError) as missing:
        grid.jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=[10**12]))

    assert (missing.value.kind, missing.value.name) == ("job", str(10**12))


def test_anothers_job_is_as_if_absent(grid: WireGrid) -> None:
    (job_id,) = grid.submit(a_job())

    with pytest.raises(NotFoundError):
        grid.user("mallory").GetJobDescription(job_service_pb2.GetJobDescriptionRequest(job_id=job_id))


def test_owner_and_vo_come_from_the_token(grid: WireGrid) -> None:
    description = JobDescription("x", attributes={"Owner": "root", "VO": "sea", "AcctGroup": "other"})
    (job_id,) = grid.submit(description)

    job = grid.jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=[job_id])).jobs[0]

    assert (job.owner, job.vo, job.group) == ("alice", grid.vo, "grp")


def test_a_group_that_the_token_lacks_is_refused(grid: WireGrid) -> None:
    request = submission([a_job()])
    request.group = "wheel"

    with pytest.raises(PermissionDeniedError, match="wheel"):
        grid.jobs.SubmitJobs(request)


def test_a_method_that_does_not_exist_is_no_failure_of_the_server(grid: WireGrid) -> None:
    call = grid.channel(grid.server.token()).unary_unary(
        "/pilotage.v1.JobService/Abracadabra",
        request_serializer=job_service_pb2.GetJobsRequest.SerializeToString,
        response_deserializer=job_service_pb2.GetJobsResponse.FromString,
    )
    with pytest.raises(Exception, match="UNIMPLEMENTED"):
        call(job_service_pb2.GetJobsRequest())


def test_a_repeated_submission_has_one_effect_and_the_same_answer(grid: WireGrid) -> None:
    id_ = request_id()

    assert grid.submit(a_job(), a_job(), id_=id_) == grid.submit(a_job(), a_job(), id_=id_)


def test_an_id_used_for_another_request_is_refused(grid: WireGrid) -> None:
    id_ = request_id()
    grid.submit(a_job(), id_=id_)

    with pytest.raises(InvalidInputError) as refused:
        grid.submit(a_job(), a_job(), id_=id_)

    assert refused.value.violations[0].where == "request_id"


@pytest.mark.parametrize("id_", ["", "x" * 65])
def test_a_mutating_request_needs_an_id(grid: WireGrid, id_: str) -> None:
    with pytest.raises(InvalidInputError, match="request_id"):
        grid.jobs.SubmitJobs(
            job_service_pb2.SubmitJobsRequest(request_id=id_, descriptions=[jobs_pb2.JobDescription(executable="x")])
        )


def test_two_users_may_choose_the_same_request_id(grid: WireGrid) -> None:
    id_ = request_id()
    (first,) = grid.submit(a_job(), id_=id_)

    answer = grid.user("bob").SubmitJobs(submission([a_job()], id_))

    assert list(answer.job_ids) != [first]


@pytest.mark.parametrize("text", ["\udc80", "x\0y"])
def test_text_that_no_database_takes_is_refused_before(grid: WireGrid, text: str) -> None:
    request = job_service_pb2.ListJobsRequest()
    try:
        request.owner = text
    except (ValueError, UnicodeEncodeError):
        return
    with pytest.raises(InvalidInputError):
        grid.jobs.ListJobs(request)


@pytest.mark.parametrize("job_ids", [[], [0], [-4], [1] * 10_001])
def test_a_list_of_jobs_must_make_sense(grid: WireGrid, job_ids: list[int]) -> None:
    with pytest.raises(InvalidInputError, match="job_ids"):
        grid.jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=job_ids))
