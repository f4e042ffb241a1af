"""Names of job attributes that are not the owner's to give: the server's and the pilots', and those of real fields.

Rules
-----
What a job's ad says under such a name comes from what the server knows, whatever the description holds (DESIGN §12).
Names are compared folded.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from pilotage.folding import fold, folded_set
from pilotage.job_description import JobDescription

SERVER_ATTRIBUTES = folded_set(
    (
        # who it belongs to and who pays
        *("MyType", "TargetType", "Owner", "User", "OsUser", "NTDomain", "VO", "SUBMIT_SITE_DOMAIN"),
        *("AcctGroup", "AcctGroupUser", "AccountingGroup", "NiceUser"),
        *("x509UserProxyVOName", "x509UserProxySubject", "x509UserProxyFQAN", "x509UserProxyFirstFQAN"),
        *("AuthTokenSubject", "AuthTokenIssuer", "AuthTokenGroups", "AuthTokenScopes"),
        # which one it is
        *("ClusterId", "ProcId", "GlobalJobId", "PilotageJobId"),
        # where it is in its life
        *("JobStatus", "LastJobStatus", "EnteredCurrentStatus", "QDate", "CompletionDate"),
        *("JobStartDate", "JobCurrentStartDate", "JobLastStartDate", "JobCurrentStartExecutingDate"),
        *("JobFinishedHookDone", "ServerTime", "MyCurrentTime", "CurrentTime"),
        *("HoldReason", "HoldReasonCode", "HoldReasonSubCode", "ReleaseReason", "RemoveReason", "VacateReason"),
        *("LastHoldReason", "LastHoldReasonCode", "LastHoldReasonSubCode", "NumHolds", "NumHoldsByReason"),
        *("ExitCode", "ExitStatus", "ExitBySignal", "ExitSignal", "ExitReason"),
        # what it has used and where it was
        *("NumJobStarts", "NumShadowStarts", "NumJobMatches", "NumJobCompletions", "JobRunCount"),
        *("NumVacates", "NumVacatesByReason", "LastVacateTime", "LastMatchTime", "LastRejMatchTime"),
        *("RemoteWallClockTime", "LastRemoteWallClockTime", "RemoteUserCpu", "RemoteSysCpu"),
        *("CumulativeSlotTime", "CumulativeSuspensionTime", "CommittedTime", "CommittedSuspensionTime"),
        *("TotalSuspensions", "LastSuspensionTime", "WallClockCheckpoint"),
        *("CurrentHosts", "RemoteHost", "LastRemoteHost", "RemoteSlotID", "RemotePool", "StartdPrincipal"),
        *("ClaimId", "PublicClaimId", "CondorLoad", "ImageSize", "MemoryUsage", "ResidentSetSize", "DiskUsage"),
        # the order between users
        *("SubmittorPrio", "SubmitterPrio", "SubmitterUserPrio", "SubmitterUserResourcesInUse", "RemoteUserPrio"),
        *("SubmitterGroup", "SubmitterGroupQuota", "SubmitterNegotiatingGroup", "RemoteGroup", "AutoClusterId"),
    )
)
"""Folded names whose values are the server's and the pilots' alone."""

FIELDS: Mapping[str, str] = MappingProxyType(
    {
        fold(name): field
        for name, field in {
            "Requirements": "requirements_expression",
            "Rank": "rank",
            "RequestCpus": "request_cpus",
            "RequestMemory": "request_memory_mib",
            "RequestDisk": "request_disk_mib",
            "RequestGPUs": "request_gpus",
            "JobPrio": "priority",
            "Cmd": "executable",
            "Arguments": "arguments",
            "Args": "arguments",
            "Environment": "environment",
            "Env": "environment",
            "In": "stdin",
            "Out": "stdout",
            "Err": "stderr",
            "JobBatchName": "name",
            "AllowedExecuteDuration": "wall_time",
            "JobLeaseDuration": "lease",
            "PeriodicHold": "policy",
            "PeriodicHoldReason": "policy",
            "PeriodicHoldSubCode": "policy",
            "PeriodicRelease": "policy",
            "PeriodicRemove": "policy",
        }.items()
    }
)
"""Folded names of attributes that a field of the description says; an own attribute of that name never counts."""

_EMPTY = JobDescription(executable="")
_WORDS = folded_set(("my", "target", "self", "other", "parent", "true", "false", "undefined", "error", "is", "isnt"))
"""Words of the ClassAd language, which are no names."""


STAMPED = folded_set(("SUBMIT_SITE_DOMAIN",))
"""Owned names that the server's submit transforms set in the description itself."""

RESERVED = SERVER_ATTRIBUTES.difference(STAMPED).union(FIELDS, _WORDS)
"""Folded names under which a job's ad says something else than the job's own attributes, or nothing."""


def is_reserved(name: str) -> bool:
    """Whether an attribute of this name would not be seen in a job's ad."""
    return fold(name) in RESERVED


def why_not_own(name: str, description: JobDescription, owned: Collection[str]) -> str:
    """Return why the owner cannot give his job this attribute; empty = he can, or its field says the same.

    `owned` are the folded names that the server's submit transforms set.
    """
    folded = fold(name)
    if folded in SERVER_ATTRIBUTES or folded in owned:
        return f"attribute {name} is set by the server; the value given is not used"
    field = FIELDS.get(folded)
    if field is None or getattr(description, field) != getattr(_EMPTY, field):
        return ""
    if description.attributes[name] is True and field == "requirements_expression":
        return ""  # asks for nothing, as gLite's users write
    return f"attribute {name} is what {field} says; the value given is not used"
