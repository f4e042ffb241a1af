"""The table of the gateway: the verb and the path of each call of users and operators.

Rules
-----
- A parameter of a path is the field of the request with its name, unless `fields` names another one.
- The other fields of GET and DELETE are parameters of the query; those of POST, PUT and PATCH are the JSON body.
- Every call of the protocol is in `ROUTES`, or in `LEFT_OUT`: those of pilots, of agents and of machines that join.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

BODY_VERBS = frozenset({"POST", "PUT", "PATCH"})
"""The verbs whose fields are in the body."""


class Exchange(Enum):
    """What request and response of a route hold."""

    JSON = auto()
    """JSON in, JSON out."""
    EVENTS = auto()
    """The responses are server-sent events, one for each message."""
    UPLOAD = auto()
    """The body is the content of a file."""
    DOWNLOAD = auto()
    """The response is the content of a file."""


@dataclass(frozen=True, slots=True)
class CallRoute:
    """A call over HTTP. `call` is Service/Method; `only` = the response is the single element of this field."""

    verb: str
    path: str
    call: str
    fields: Mapping[str, str] = field(default_factory=dict)
    only: str = ""
    exchange: Exchange = Exchange.JSON

    @property
    def service(self) -> str:
        """The name of the service."""
        return self.call.partition("/")[0]

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.call.partition("/")[2]

    @property
    def method(self) -> str:
        """The full name of the method, as in gRPC's paths."""
        return f"/pilotage.v1.{self.call}"

    @property
    def has_body(self) -> bool:
        """Whether the fields of the request are in the body."""
        return self.verb in BODY_VERBS


_JOB_IDS = {"job_id": "job_ids"}

ROUTES: tuple[CallRoute, ...] = (
    CallRoute("POST", "/v1/jobs", "JobService/SubmitJobs"),
    CallRoute("GET", "/v1/jobs", "JobService/ListJobs"),
    CallRoute("POST", "/v1/jobs/get", "JobService/GetJobs"),
    CallRoute("POST", "/v1/jobs/find", "JobService/FindJobs"),
    CallRoute("POST", "/v1/jobs/search", "JobService/SearchJobs"),
    CallRoute("POST", "/v1/jobs/ads", "JobService/ListJobAds"),
    CallRoute("POST", "/v1/jobs/output-files", "JobService/ReadOutputFiles"),
    CallRoute("POST", "/v1/jobs/wait", "JobService/WaitForJobs"),
    CallRoute("POST", "/v1/jobs/change", "JobService/ChangeJobs"),
    CallRoute("GET", "/v1/jobs/{job_id}", "JobService/GetJobs", _JOB_IDS, only="jobs"),
    CallRoute("GET", "/v1/jobs/{job_id}/description", "JobService/GetJobDescription"),
    CallRoute("PUT", "/v1/jobs/{job_id}/description", "JobService/EditJob"),
    CallRoute("GET", "/v1/jobs/{job_id}/ad", "JobService/GetJobAd"),
    CallRoute("GET", "/v1/jobs/{job_id}/events", "JobService/GetJobEvents"),
    CallRoute("GET", "/v1/jobs/{job_id}/why", "JobService/ExplainJob"),
    CallRoute("GET", "/v1/jobs/{job_id}/attempts", "JobService/ListAttempts", _JOB_IDS),
    CallRoute("GET", "/v1/jobs/{job_id}/routes", "RouteService/ExplainRoutes"),
    CallRoute("GET", "/v1/jobs/{job_id}/files", "JobService/ListOutputFiles"),
    CallRoute("GET", "/v1/jobs/{job_id}/files/{checksum}", "JobService/DownloadFile", exchange=Exchange.DOWNLOAD),
    CallRoute("GET", "/v1/jobs/{job_id}/output", "JobService/FollowOutput", exchange=Exchange.EVENTS),
    CallRoute("GET", "/v1/events", "JobService/WatchEvents", exchange=Exchange.EVENTS),
    CallRoute("GET", "/v1/clusters", "JobService/ListClusters"),
    CallRoute("GET", "/v1/workflows", "JobService/ListWorkflows"),
    CallRoute("GET", "/v1/workflows/{id}", "JobService/GetWorkflow"),
    CallRoute("POST", "/v1/files/missing", "JobService/FindMissingFiles"),
    CallRoute("PUT", "/v1/files/{checksum}", "JobService/UploadFile", exchange=Exchange.UPLOAD),
    CallRoute("POST", "/v1/subscriptions", "NotificationService/Subscribe"),
    CallRoute("GET", "/v1/subscriptions", "NotificationService/ListSubscriptions"),
    CallRoute("DELETE", "/v1/subscriptions/{id}", "NotificationService/Unsubscribe", {"id": "ids"}),
    CallRoute("GET", "/v1/pools", "PoolService/ListPools"),
    CallRoute("POST", "/v1/pools/refresh", "PoolService/RefreshPools"),
    CallRoute("POST", "/v1/pools/clean", "PoolService/CleanPools"),
    CallRoute("GET", "/v1/queues", "ResourceService/ListQueues"),
    CallRoute("POST", "/v1/queues/eligible", "ResourceService/GetEligibleNodes"),
    CallRoute("GET", "/v1/tree", "ResourceService/GetTree"),
    CallRoute("PUT", "/v1/tree", "ResourceService/PutTree"),
    CallRoute("GET", "/v1/bans", "ResourceService/ListBans"),
    CallRoute("POST", "/v1/bans", "ResourceService/Ban"),
    CallRoute("DELETE", "/v1/bans", "ResourceService/Unban"),
    CallRoute("GET", "/v1/downtimes", "ResourceService/ListDowntimes"),
    CallRoute("POST", "/v1/downtimes", "ResourceService/PlanDowntime"),
    CallRoute("DELETE", "/v1/downtimes/{id}", "ResourceService/CancelDowntime"),
    CallRoute("GET", "/v1/throttles", "ResourceService/ListThrottles"),
    CallRoute("POST", "/v1/throttles/hold", "ResourceService/HoldPlace"),
    CallRoute("POST", "/v1/throttles/open", "ResourceService/OpenPlace"),
    CallRoute("GET", "/v1/pilots", "PilotService/ListPilots"),
    CallRoute("GET", "/v1/pilots/{stamp}/log", "PilotService/GetPilotLog"),
    CallRoute("POST", "/v1/pilots/drain", "PilotService/DrainPilots"),
    CallRoute("POST", "/v1/pilots/revoke", "PilotService/RevokePilots"),
    CallRoute("GET", "/v1/slots", "NodeService/ListSlots"),
    CallRoute("GET", "/v1/slots/counts", "NodeService/CountSlots"),
    CallRoute("POST", "/v1/nodes/report", "NodeService/RequestReports"),
    CallRoute("GET", "/v1/nodes/attributes", "NodeService/ListNodeAttributes"),
    CallRoute("PATCH", "/v1/nodes/attributes", "NodeService/SetNodeAttributes"),
    CallRoute("GET", "/v1/races", "RaceService/ListRaces"),
    CallRoute("GET", "/v1/routes", "RouteService/ListRoutes"),
    CallRoute("POST", "/v1/routes/give-up", "RouteService/GiveUpCopies"),
    CallRoute("GET", "/v1/shares", "ShareService/ListShares"),
    CallRoute("PATCH", "/v1/shares", "ShareService/SetShares"),
    CallRoute("GET", "/v1/usage", "ShareService/ListUsage"),
    CallRoute("GET", "/v1/identity", "IdentityService/WhoAmI"),
    CallRoute("POST", "/v1/tokens", "IdentityService/IssueToken"),
    CallRoute("GET", "/v1/revocations", "IdentityService/ListRevocations"),
    CallRoute("POST", "/v1/revocations", "IdentityService/RevokeTokens"),
    CallRoute("GET", "/v1/agents", "AgentService/ListAgents"),
    CallRoute("GET", "/v1/audit", "AuditService/ListAudit"),
    CallRoute("GET", "/v1/overview", "OverviewService/GetOverview"),
    CallRoute("GET", "/v1/diagnosis", "DiagnosisService/Diagnose"),
)

LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "pilots": (
        *("MatcherService/RequestJobs", "MatcherService/ReportState", "MatcherService/PostTail"),
        *("PilotService/Enrol", "PilotService/RenewToken", "PilotService/GetBrokerLogin"),
    ),
    "agents": (
        *("AgentService/TakeTurn", "AgentService/GiveBackTurn"),
        *("MatcherService/GetSubmitPoolsForQueue", "PoolService/GetDemand", "NodeService/GetNodeUse"),
        *("PilotService/RegisterPilots", "PilotService/RenewCredentials", "PilotService/ReportGlideins"),
        "PilotService/PutPilotLogs",
        *("RaceService/FindStragglers", "RaceService/StartCopies"),
        *("RouteService/LookAtJobs", "RouteService/RouteJobs", "RouteService/ReportCopies"),
        *("RouteService/ListCopies", "RouteService/PutRoutes"),
        *("NotificationService/TakeNotifications", "NotificationService/ReportDeliveries"),
    ),
    "machines that join": ("IdentityService/Join",),
}
"""Calls without a route, by their callers: these are programs of Pilotage, which speak gRPC."""
