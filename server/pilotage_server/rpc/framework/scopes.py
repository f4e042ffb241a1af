"""Scopes of tokens: what a token may do with jobs, within the roles of its owner.

Rules
-----
- A token with scopes may do what its roles and its scopes both permit, and see its own identity. Nothing else.
- The scopes are those of WLCG and of HTCondor's SciTokens. `condor:/WRITE` includes `condor:/READ`, as in HTCondor.
- Changes to a job are two permissions: to remove it (cancel), and all others (modify).

Sources: "WLCG Common JWT Profiles" 1.2, capability-based authorization; HTCondor manual, "SciTokens Authentication".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from enum import StrEnum

from pilotage.errors import PermissionDeniedError


class Permission(StrEnum):
    """A permission; its value is the WLCG scope."""

    READ = "compute.read"
    CREATE = "compute.create"
    MODIFY = "compute.modify"
    CANCEL = "compute.cancel"


SCOPES: Mapping[str, frozenset[Permission]] = {
    **{each.value: frozenset({each}) for each in Permission},
    "condor:/READ": frozenset({Permission.READ}),
    "condor:/WRITE": frozenset(Permission),
}
"""Known scopes and what they permit."""

_JOBS: Mapping[Permission, Collection[str]] = {
    Permission.READ: (
        *("GetJobs", "ListJobs", "GetJobDescription", "GetJobAd", "ListJobAds", "WaitForJobs", "GetJobEvents"),
        *("WatchEvents", "FindJobs", "ListClusters", "ExplainJob", "ListAttempts", "ListOutputFiles"),
        *("ReadOutputFiles", "DownloadFile", "FollowOutput", "SearchJobs", "ListWorkflows", "GetWorkflow"),
    ),
    Permission.CREATE: ("SubmitJobs", "FindMissingFiles", "UploadFile"),
    Permission.MODIFY: ("EditJob", "ChangeJobs", "FindJobs", "SearchJobs"),
    Permission.CANCEL: ("ChangeJobs", "FindJobs", "SearchJobs"),
}
_VIEWS = (
    *("PoolService/ListPools", "ResourceService/ListQueues", "ResourceService/GetEligibleNodes"),
    *("PilotService/ListPilots", "NodeService/ListSlots", "RouteService/ListRoutes", "RouteService/ExplainRoutes"),
    *("NodeService/CountSlots", "RaceService/ListRaces", "ShareService/ListShares", "ShareService/ListUsage"),
    *("NotificationService/ListSubscriptions", "OverviewService/GetOverview"),
)

_CHANGES = ("NotificationService/Subscribe", "NotificationService/Unsubscribe")


def _rows() -> dict[str, frozenset[Permission]]:
    rows = {f"/pilotage.v1.{view}": frozenset({Permission.READ}) for view in _VIEWS}
    for permission, methods in _JOBS.items():
        for method in methods:
            name = f"/pilotage.v1.JobService/{method}"
            rows[name] = rows.get(name, frozenset()) | {permission}
    rows |= {f"/pilotage.v1.{change}": frozenset({Permission.MODIFY}) for change in _CHANGES}
    return rows


NEEDED: Mapping[str, frozenset[Permission]] = _rows()
"""Full method name → permissions of which a token with scopes needs one. It may call no other method."""

_ALWAYS = "/pilotage.v1.IdentityService/WhoAmI"


def permissions_of(scopes: Collection[str]) -> frozenset[Permission]:
    """Return what the scopes permit; unknown ones permit nothing."""
    return frozenset().union(*(SCOPES.get(scope, frozenset()) for scope in scopes))


def check_scopes(method: str, permissions: frozenset[Permission] | None) -> None:
    """Raise PermissionDeniedError unless the scopes of the token permit the method; None = it has no scopes."""
    if permissions is None or method == _ALWAYS:
        return
    needed = NEEDED.get(method, frozenset())
    if needed.isdisjoint(permissions):
        require(needed, permissions, method.rpartition("/")[2])


def require(needed: Collection[Permission], permissions: frozenset[Permission] | None, what: str) -> None:
    """Raise PermissionDeniedError unless the token has one of the permissions; None = it has no scopes."""
    if permissions is None or not permissions.isdisjoint(needed):
        return
    wanted = " or ".join(sorted(needed)) or "that no token can have"
    has = ", ".join(sorted(permissions)) or "none that is known here"
    raise PermissionDeniedError(f"{what} needs the scope {wanted}; the token has {has}")
