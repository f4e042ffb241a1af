"""Authentication, roles, health, reflection and request checks of a running server."""

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
    """Return a grid without a tree."""
    grid = WireGrid(shared_server)
    yield grid
    grid.close()


def who_am_i(server: RunningServer, token: str) -> identity_service_pb2.WhoAmIResponse:
    with server.channel(token) as channel:
        stub = identity_service_pb2_grpc.IdentityServiceStub(channel)
        return stub.WhoAmI(identity_service_pb2.WhoAmIRequest())


@pytest.mark.parametrize("token", ["", "not.a.token", "x" * 5000])
def test_invalid_token_is_unauthenticated(shared_server: RunningServer, token: str) -> None:
    with pytest.raises(UnauthenticatedError):
        who_am_i(shared_server, token)


def test_who_am_i_returns_the_claims_of_the_token(shared_server: RunningServer) -> None:
    token = shared_server.token(Role.USER, Role.OPERATOR, owner="zoë", vo="sky", groups=("a", "b"))

    identity = who_am_i(shared_server, token)

    assert (identity.owner, identity.vo, list(identity.groups), list(identity.roles)) == (
        "zoë",
        "sky",
        ["a", "b"],
        ["operator", "user"],
    )
    assert identity.HasField("expires")
    assert identity.server_version


def test_missing_role_is_named_in_the_error(grid: WireGrid) -> None:
    stub = resource_service_pb2_grpc.ResourceServiceStub(grid.channel(grid.server.token()))

    with pytest.raises(PermissionDeniedError, match="PutTree needs the role admin or operator; alice has user"):
        stub.PutTree(resource_service_pb2.PutTreeRequest(request_id="1", text="{}", format="json"))


def identity_stub(grid: WireGrid, role: Role) -> identity_service_pb2_grpc.IdentityServiceStub:
    return identity_service_pb2_grpc.IdentityServiceStub(grid.channel(grid.server.token(role)))


def token_request(**fields: object) -> identity_service_pb2.IssueTokenRequest:
    request = identity_service_pb2.IssueTokenRequest(owner="bob", vo="sea", groups=["g"], roles=["user"], lifetime_s=60)
    request.MergeFrom(identity_service_pb2.IssueTokenRequest(**fields))  # type: ignore[arg-type]
    return request


def test_admin_issues_valid_tokens(grid: WireGrid) -> None:
    issued = identity_stub(grid, Role.ADMIN).IssueToken(token_request())

    identity = who_am_i(grid.server, issued.token)

    assert (identity.owner, identity.vo, list(identity.roles)) == ("bob", "sea", ["user"])
    assert identity.expires == issued.expires.__class__(seconds=issued.expires.seconds)


@pytest.mark.parametrize("role", [Role.USER, Role.OPERATOR, Role.DIRECTOR])
def test_other_roles_issue_no_tokens(grid: WireGrid, role: Role) -> None:
    with pytest.raises(PermissionDeniedError):
        identity_stub(grid, role).IssueToken(token_request())


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
def test_invalid_token_request_names_the_field(grid: WireGrid, fields: dict[str, object], where: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        identity_stub(grid, Role.ADMIN).IssueToken(token_request(**fields))

    assert where in {violation.where for violation in caught.value.violations}


@pytest.mark.parametrize("service", ["", *SERVICES])
def test_health_of_every_service_needs_no_token(shared_server: RunningServer, service: str) -> None:
    with grpc.insecure_channel(shared_server.address) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        answer = health.Check(health_pb2.HealthCheckRequest(service=service))

    assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_lists_the_services(shared_server: RunningServer) -> None:
    with grpc.insecure_channel(shared_server.address) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert set(SERVICES) <= set(database.get_services())
        file = database.FindFileContainingSymbol("pilotage.v1.JobService")

    assert any(service.name == "JobService" for service in file.service)


def test_all_faults_of_a_submission_are_reported_with_their_fields(grid: WireGrid) -> None:
    request = job_service_pb2.SubmitJobsRequest(request_id=request_id())
    request.descriptions.add(executable="fine")
    request.descriptions.add(executable="", request_cpus=0)
    request.descriptions[1].requirements["Memory"].CopyFrom(values_pb2.Value())

    with pytest.raises(InvalidJobError) as caught:
        grid.jobs.SubmitJobs(request)

    assert {violation.where for violation in caught.value.violations} == {
        "descriptions[1].executable",
        "descriptions[1].request_cpus",
        "descriptions[1].requirements.Memory",
    }


def test_empty_requirement_is_rejected_with_its_field(grid: WireGrid) -> None:
    with pytest.raises((InvalidJobError, InvalidRequirementsError)) as caught:
        grid.submit(JobDescription("x", requirements={"Memory": ()}))

    assert [violation.where for violation in caught.value.violations] == ["descriptions[0].requirements.Memory"]


def test_invalid_tree_is_rejected_with_all_faults(grid: WireGrid) -> None:
    with pytest.raises(InvalidTreeError) as caught:
        grid.put_tree('{"sites": {"A": 5, "B": {"ces": 7}}}')

    assert len(caught.value.violations) == 2


def test_unknown_job_is_not_found(grid: WireGrid) -> None:
    with pytest.raises(NotFoundError) as caught:
        grid.jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=[10**12]))

    assert (caught.value.kind, caught.value.name) == ("job", str(10**12))


def test_job_of_another_user_is_not_found(grid: WireGrid) -> None:
    (job_id,) = grid.submit(a_job())

    with pytest.raises(NotFoundError):
        grid.user("mallory").GetJobDescription(job_service_pb2.GetJobDescriptionRequest(job_id=job_id))


def test_owner_and_vo_come_from_the_token(grid: WireGrid) -> None:
    description = JobDescription("x", attributes={"Owner": "root", "VO": "sea", "AcctGroup": "other"})
    (job_id,) = grid.submit(description)

    job = grid.jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=[job_id])).jobs[0]

    assert (job.owner, job.vo, job.group) == ("alice", grid.vo, "grp")


def test_group_that_the_token_lacks_is_rejected(grid: WireGrid) -> None:
    request = submission([a_job()])
    request.group = "wheel"

    with pytest.raises(PermissionDeniedError, match="wheel"):
        grid.jobs.SubmitJobs(request)


def test_unknown_method_is_unimplemented(grid: WireGrid) -> None:
    call = grid.channel(grid.server.token()).unary_unary(
        "/pilotage.v1.JobService/Abracadabra",
        request_serializer=job_service_pb2.GetJobsRequest.SerializeToString,
        response_deserializer=job_service_pb2.GetJobsResponse.FromString,
    )
    with pytest.raises(Exception, match="UNIMPLEMENTED"):
        call(job_service_pb2.GetJobsRequest())


def test_repeated_submission_has_one_effect(grid: WireGrid) -> None:
    id_ = request_id()

    assert grid.submit(a_job(), a_job(), id_=id_) == grid.submit(a_job(), a_job(), id_=id_)


def test_request_id_of_another_request_is_rejected(grid: WireGrid) -> None:
    id_ = request_id()
    grid.submit(a_job(), id_=id_)

    with pytest.raises(InvalidInputError) as caught:
        grid.submit(a_job(), a_job(), id_=id_)

    assert caught.value.violations[0].where == "request_id"


@pytest.mark.parametrize("id_", ["", "x" * 65])
def test_submission_needs_a_valid_request_id(grid: WireGrid, id_: str) -> None:
    with pytest.raises(InvalidInputError, match="request_id"):
        grid.jobs.SubmitJobs(
            job_service_pb2.SubmitJobsRequest(request_id=id_, descriptions=[jobs_pb2.JobDescription(executable="x")])
        )


def test_request_ids_are_per_user(grid: WireGrid) -> None:
    id_ = request_id()
    (first,) = grid.submit(a_job(), id_=id_)

    answer = grid.user("bob").SubmitJobs(submission([a_job()], id_))

    assert list(answer.job_ids) != [first]


def test_nul_character_in_text_is_rejected(grid: WireGrid) -> None:
    with pytest.raises(InvalidInputError):
        grid.jobs.ListJobs(job_service_pb2.ListJobsRequest(condition=job_service_pb2.JobCondition(owner="x\0y")))


@pytest.mark.parametrize("job_ids", [[], [0], [-4], [1] * 10_001])
def test_invalid_list_of_job_ids_is_rejected(grid: WireGrid, job_ids: list[int]) -> None:
    with pytest.raises(InvalidInputError, match="job_ids"):
        grid.jobs.GetJobs(job_service_pb2.GetJobsRequest(job_ids=job_ids))
