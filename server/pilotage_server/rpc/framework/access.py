"""The table of roles: each method needs one of its roles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pilotage.errors import PermissionDeniedError
from pilotage_server.core.identity import Identity, Role

_OPERATORS = frozenset({Role.OPERATOR, Role.ADMIN})
_OWNERS = _OPERATORS | {Role.USER}
_FILE_HOLDERS = _OWNERS | {Role.PILOT, Role.AGENT}
_AGENTS = _OPERATORS | {Role.AGENT}
_EVERY_PERSON = _AGENTS | {Role.USER}
_PILOTS = frozenset({Role.PILOT})

_BY_SERVICE: Mapping[str, Mapping[str, frozenset[Role]]] = {
    "JobService": {
        "SubmitJobs": _OWNERS,
        "GetJobs": _EVERY_PERSON,
        "ListJobs": _OWNERS,
        "GetJobDescription": _OWNERS,
        "GetJobAd": _OWNERS,
        "WaitForJobs": _OWNERS,
        "GetJobEvents": _OWNERS,
        "WatchEvents": _EVERY_PERSON,
        "ChangeJobs": _OWNERS,
        "EditJob": _OWNERS,
        "ExplainJob": _OWNERS,
        "FindMissingFiles": _FILE_HOLDERS,
        "UploadFile": _FILE_HOLDERS,
        "DownloadFile": _FILE_HOLDERS,
        "ListOutputFiles": _OWNERS,
    },
    "MatcherService": {
        "GetSubmitPoolsForQueue": _AGENTS | _PILOTS,
        "RequestJobs": _PILOTS,
        "ReportState": _PILOTS,
    },
    "PoolService": {
        "ListPools": _EVERY_PERSON,
        "RefreshPools": _AGENTS,
        "CleanPools": _AGENTS,
        "GetDemand": _AGENTS,
    },
    "ResourceService": {
        "PutTree": _OPERATORS,
        "GetTree": _AGENTS,
        "ListQueues": _EVERY_PERSON,
        "GetEligibleNodes": _EVERY_PERSON,
        "Ban": _OPERATORS,
        "Unban": _OPERATORS,
        "ListBans": _AGENTS,
        "ListThrottles": _AGENTS,
        "HoldPlace": _OPERATORS,
        "OpenPlace": _OPERATORS,
    },
    "PilotService": {
        "RegisterPilots": _AGENTS,
        "RenewCredentials": _AGENTS,
        "ReportGlideins": _AGENTS,
        "ListPilots": _EVERY_PERSON,
        "DrainPilots": _AGENTS,
    },
    "NodeService": {
        "ListSlots": _EVERY_PERSON,
        "SetNodeAttributes": _AGENTS,
        "ListNodeAttributes": _AGENTS,
        "GetNodeUse": _AGENTS,
    },
    "AgentService": {"TakeTurn": _AGENTS, "GiveBackTurn": _AGENTS},
    "RouteService": {
        "LookAtJobs": _AGENTS,
        "RouteJobs": _AGENTS,
        "ReportCopies": _AGENTS,
        "ListCopies": _AGENTS,
        "PutRoutes": _AGENTS,
        "ListRoutes": _EVERY_PERSON,
        "ExplainRoutes": _OWNERS,
        "GiveUpCopies": _OPERATORS,
    },
    "RaceService": {"FindStragglers": _AGENTS, "StartCopies": _AGENTS, "ListRaces": _OWNERS},
    "ShareService": {"ListShares": _EVERY_PERSON, "SetShares": _OPERATORS},
    "IdentityService": {"WhoAmI": frozenset(Role), "IssueToken": frozenset({Role.ADMIN})},
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
