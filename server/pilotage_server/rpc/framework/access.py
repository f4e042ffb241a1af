"""The table of roles: each method needs one of its roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pilotage.errors import PermissionDeniedError
from pilotage_server.core.identity import AGENT_NAMES, Identity, Role

_OPERATORS = frozenset({Role.OPERATOR, Role.ADMIN})
_OWNERS = _OPERATORS | {Role.USER}
_DIRECTORS = _OPERATORS | {Role.DIRECTOR}
_ROUTERS = _OPERATORS | {Role.ROUTER}
_DRAINERS = _OPERATORS | {Role.DRAINER}
_CLEANERS = _OPERATORS | {Role.CLEANER}
_RACERS = _OPERATORS | {Role.RACER}
_NOTIFIERS = _OPERATORS | {Role.NOTIFIER}
_AGENTS = _OPERATORS | AGENT_NAMES.keys()
_PILOTS = frozenset({Role.PILOT})
_FILE_HOLDERS = _OWNERS | _PILOTS | {Role.ROUTER}

_BY_SERVICE: Mapping[str, Mapping[str, frozenset[Role]]] = {
    "JobService": {
        "SubmitJobs": _OWNERS,
        "GetJobs": _OWNERS,
        "ListJobs": _OWNERS,
        "FindJobs": _OWNERS,
        "SearchJobs": _OWNERS,
        "ListClusters": _OWNERS,
        "ListWorkflows": _OWNERS,
        "GetWorkflow": _OWNERS,
        "GetJobDescription": _OWNERS,
        "GetJobAd": _OWNERS,
        "ListJobAds": _OWNERS,
        "WaitForJobs": _OWNERS,
        "GetJobEvents": _OWNERS,
        "WatchEvents": _OWNERS | {Role.ROUTER},
        "ChangeJobs": _OWNERS,
        "EditJob": _OWNERS,
        "ExplainJob": _OWNERS,
        "FindMissingFiles": _FILE_HOLDERS,
        "UploadFile": _FILE_HOLDERS,
        "DownloadFile": _FILE_HOLDERS,
        "ListAttempts": _OWNERS,
        "ListOutputFiles": _OWNERS,
        "ReadOutputFiles": _OWNERS,
        "FollowOutput": _OWNERS,
    },
    "MatcherService": {
        "GetSubmitPoolsForQueue": _DIRECTORS | _PILOTS,
        "RequestJobs": _PILOTS,
        "ReportState": _PILOTS,
        "PostTail": _PILOTS,
    },
    "PoolService": {
        "ListPools": _OWNERS | {Role.CLEANER},
        "RefreshPools": _CLEANERS,
        "CleanPools": _CLEANERS,
        "GetDemand": _DIRECTORS,
    },
    "ResourceService": {
        "PutTree": _OPERATORS,
        "GetTree": _OPERATORS,
        "ListQueues": _OWNERS | {Role.DIRECTOR, Role.DRAINER, Role.ROUTER},
        "GetEligibleNodes": _OWNERS,
        "Ban": _OPERATORS,
        "Unban": _OPERATORS,
        "ListBans": _OPERATORS,
        "PlanDowntime": _OPERATORS,
        "CancelDowntime": _OPERATORS,
        "ListDowntimes": _OPERATORS,
        "ListThrottles": _OPERATORS,
        "HoldPlace": _OPERATORS,
        "OpenPlace": _OPERATORS,
    },
    "PilotService": {
        "RegisterPilots": _DIRECTORS,
        "RenewCredentials": _DIRECTORS,
        "ReportGlideins": _DIRECTORS,
        "PutPilotLogs": _DIRECTORS,
        "GetPilotLog": _OPERATORS,
        "ListPilots": _OWNERS,
        "DrainPilots": _OPERATORS,
        "RevokePilots": _OPERATORS,
        "Enrol": frozenset({Role.ENROLMENT}),
        "RenewToken": _PILOTS,
        "GetBrokerLogin": _PILOTS,
    },
    "NodeService": {
        "ListSlots": _OWNERS,
        "CountSlots": _OWNERS,
        "RequestReports": _OWNERS,
        "SetNodeAttributes": _DRAINERS,
        "ListNodeAttributes": _OPERATORS,
        "GetNodeUse": _DRAINERS,
    },
    "AgentService": {"TakeTurn": _AGENTS, "GiveBackTurn": _AGENTS, "ListAgents": _OPERATORS},
    "AuditService": {"ListAudit": _OPERATORS},
    "RouteService": {
        "LookAtJobs": _ROUTERS,
        "RouteJobs": _ROUTERS,
        "ReportCopies": _ROUTERS,
        "ListCopies": _ROUTERS,
        "PutRoutes": _ROUTERS,
        "ListRoutes": _OWNERS,
        "ExplainRoutes": _OWNERS,
        "GiveUpCopies": _OPERATORS,
    },
    "RaceService": {"FindStragglers": _RACERS, "StartCopies": _RACERS, "ListRaces": _OWNERS},
    "NotificationService": {
        "Subscribe": _OWNERS,
        "ListSubscriptions": _OWNERS,
        "Unsubscribe": _OWNERS,
        "TakeNotifications": _NOTIFIERS,
        "ReportDeliveries": _NOTIFIERS,
    },
    "ShareService": {"ListShares": _OWNERS, "SetShares": _OPERATORS, "ListUsage": _OWNERS},
    "DiagnosisService": {"Diagnose": _OPERATORS},
    "OverviewService": {"GetOverview": _OWNERS},
    "IdentityService": {
        "WhoAmI": frozenset(Role),
        "IssueToken": frozenset({Role.ADMIN}),
        "Join": frozenset({Role.JOIN}),
        "RevokeTokens": _OWNERS,
        "ListRevocations": _OWNERS,
    },
}

OPEN_SERVICES = frozenset({"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"})
"""Services that need no token: their answers hold nothing that a token would protect."""


def _rows() -> Iterator[tuple[str, frozenset[Role]]]:
    for service, methods in _BY_SERVICE.items():
        for method, roles in methods.items():
            yield f"/pilotage.v1.{service}/{method}", roles


REQUIRED_ROLES: Mapping[str, frozenset[Role]] = dict(_rows())
"""Full method name → roles of which the caller needs one. A method without an entry is refused."""


def is_open(method: str) -> bool:
    """Return whether the method needs no token."""
    return method.strip("/").rpartition("/")[0] in OPEN_SERVICES


def check_access(method: str, identity: Identity) -> None:
    """Raise PermissionDeniedError unless the identity has a role that `method` requires."""
    required = REQUIRED_ROLES.get(method, frozenset())
    if required.isdisjoint(identity.roles):
        wanted = " or ".join(sorted(required)) or "that no token can have"
        has = ", ".join(sorted(identity.roles)) or "none"
        name = method.rpartition("/")[2]
        raise PermissionDeniedError(f"{name} needs the role {wanted}; {identity.owner} has {has}")
