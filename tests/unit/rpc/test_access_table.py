"""The table of required roles covers every method of the protocol, and nothing else."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import FileDescriptor

from pilotage.errors import PermissionDeniedError
from pilotage.v1 import (
    agent_service_pb2,
    audit_service_pb2,
    diagnosis_service_pb2,
    identity_service_pb2,
    job_service_pb2,
    matcher_service_pb2,
    node_service_pb2,
    notification_service_pb2,
    overview_service_pb2,
    pilot_service_pb2,
    pool_service_pb2,
    race_service_pb2,
    resource_service_pb2,
    route_service_pb2,
    share_service_pb2,
)
from pilotage_server.core.identity import AGENT_NAMES, Identity, Role
from pilotage_server.rpc.framework.access import REQUIRED_ROLES, check_access, is_open
from pilotage_server.rpc.server import SERVICES

FILES: list[FileDescriptor] = [
    module.DESCRIPTOR
    for module in (
        agent_service_pb2,
        audit_service_pb2,
        diagnosis_service_pb2,
        identity_service_pb2,
        job_service_pb2,
        matcher_service_pb2,
        node_service_pb2,
        notification_service_pb2,
        overview_service_pb2,
        pilot_service_pb2,
        pool_service_pb2,
        race_service_pb2,
        resource_service_pb2,
        route_service_pb2,
        share_service_pb2,
    )
]
METHODS = {
    f"/{service.full_name}/{method.name}"
    for file in FILES
    for service in file.services_by_name.values()
    for method in service.methods
}


AGENT_METHODS = {
    Role.DIRECTOR: {
        "MatcherService/GetSubmitPoolsForQueue",
        "PoolService/GetDemand",
        "ResourceService/ListQueues",
        "PilotService/RegisterPilots",
        "PilotService/RenewCredentials",
        "PilotService/PutPilotLogs",
        "PilotService/ReportGlideins",
    },
    Role.ROUTER: {
        "JobService/WatchEvents",
        "JobService/FindMissingFiles",
        "JobService/UploadFile",
        "JobService/DownloadFile",
        "ResourceService/ListQueues",
        "RouteService/LookAtJobs",
        "RouteService/RouteJobs",
        "RouteService/ReportCopies",
        "RouteService/ListCopies",
        "RouteService/PutRoutes",
    },
    Role.DRAINER: {"ResourceService/ListQueues", "NodeService/GetNodeUse", "NodeService/SetNodeAttributes"},
    Role.CLEANER: {"PoolService/ListPools", "PoolService/RefreshPools", "PoolService/CleanPools"},
    Role.RACER: {"RaceService/FindStragglers", "RaceService/StartCopies"},
    Role.NOTIFIER: {"NotificationService/TakeNotifications", "NotificationService/ReportDeliveries"},
}
OF_ALL_AGENTS = {"AgentService/TakeTurn", "AgentService/GiveBackTurn", "IdentityService/WhoAmI"}


@pytest.mark.parametrize("role", AGENT_NAMES)
def test_agent_has_only_the_methods_that_it_needs(role: Role) -> None:
    allowed = {name.removeprefix("/pilotage.v1.") for name, roles in REQUIRED_ROLES.items() if role in roles}
    assert allowed == AGENT_METHODS[role] | OF_ALL_AGENTS


def test_every_method_of_the_protocol_requires_a_role() -> None:
    assert REQUIRED_ROLES.keys() == METHODS
    assert all(REQUIRED_ROLES[method] for method in METHODS)


def test_every_service_of_the_protocol_is_served() -> None:
    assert set(SERVICES) == {service.full_name for file in FILES for service in file.services_by_name.values()}


def test_no_protocol_method_is_open() -> None:
    assert not [method for method in METHODS if is_open(method)]


def test_health_and_reflection_are_open() -> None:
    assert is_open("/grpc.health.v1.Health/Check")
    assert is_open("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo")


@pytest.mark.parametrize("method", sorted(METHODS))
def test_role_allows_exactly_its_methods(method: str) -> None:
    for role in Role:
        identity = Identity("someone", "sky", (), frozenset({role}))
        if role in REQUIRED_ROLES[method]:
            check_access(method, identity)
        else:
            with pytest.raises(PermissionDeniedError, match="needs the role"):
                check_access(method, identity)


def test_unknown_method_is_denied_to_all_roles() -> None:
    every_role = Identity("root", "", (), frozenset(Role))
    with pytest.raises(PermissionDeniedError):
        check_access("/pilotage.v1.JobService/Abracadabra", every_role)


def test_users_cannot_call_operator_methods() -> None:
    for name in (
        "ResourceService/PutTree",
        "ResourceService/Ban",
        "PoolService/CleanPools",
        "PilotService/RegisterPilots",
        "ShareService/SetShares",
    ):
        assert Role.USER not in REQUIRED_ROLES[f"/pilotage.v1.{name}"]


def test_pilot_and_administrator_methods_require_one_role() -> None:
    assert REQUIRED_ROLES["/pilotage.v1.MatcherService/RequestJobs"] == {Role.PILOT}
    assert REQUIRED_ROLES["/pilotage.v1.MatcherService/ReportState"] == {Role.PILOT}
    assert REQUIRED_ROLES["/pilotage.v1.PilotService/Enrol"] == {Role.ENROLMENT}
    assert {name for name, roles in REQUIRED_ROLES.items() if Role.ENROLMENT in roles} == {
        "/pilotage.v1.PilotService/Enrol",
        "/pilotage.v1.IdentityService/WhoAmI",
    }
    assert REQUIRED_ROLES["/pilotage.v1.IdentityService/IssueToken"] == {Role.ADMIN}
    assert {name for name, roles in REQUIRED_ROLES.items() if Role.JOIN in roles} == {
        "/pilotage.v1.IdentityService/Join",
        "/pilotage.v1.IdentityService/WhoAmI",
    }
