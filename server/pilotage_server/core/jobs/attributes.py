"""Attributes of job ads, in HTCondor's names and units (manual, job ClassAd attributes).

Rules
-----
- Attributes of the description are the same for all jobs of an array. Those of the `RunHistory` change each time the
  job is requeued. `INDIVIDUAL` attributes differ between all jobs and never separate task queues.
- Reserved names belong to the server, to pilots or to fields of the description. Their values in a job's ad come from
  the server, whatever the description contains. Names are compared folded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from pilotage.classads.library import AdValue, Expression
from pilotage.classads.references import References, references
from pilotage.job_description import JobDescription, Value, render_text
from pilotage.resources.requirements import restricting_names
from pilotage.text import fold, folded_set
from pilotage_server.core.jobs.exit_policy import exit_remove_expression
from pilotage_server.core.jobs.record import JobRecord

SERVER_ATTRIBUTES = folded_set(
    (
        # owner and account
        *("MyType", "TargetType", "Owner", "User", "OsUser", "NTDomain", "VO", "SUBMIT_SITE_DOMAIN", "SubmitPool"),
        *("AcctGroup", "AcctGroupUser", "AccountingGroup", "NiceUser"),
        *("x509UserProxyVOName", "x509UserProxySubject", "x509UserProxyFQAN", "x509UserProxyFirstFQAN"),
        *("AuthTokenSubject", "AuthTokenIssuer", "AuthTokenGroups", "AuthTokenScopes"),
        # identity
        *("ClusterId", "ProcId", "GlobalJobId", "PilotageJobId"),
        # state
        *("JobStatus", "LastJobStatus", "EnteredCurrentStatus", "QDate", "CompletionDate"),
        *("JobStartDate", "JobCurrentStartDate", "JobLastStartDate", "JobCurrentStartExecutingDate"),
        *("JobFinishedHookDone", "ServerTime", "MyCurrentTime", "CurrentTime"),
        *("HoldReason", "HoldReasonCode", "HoldReasonSubCode", "ReleaseReason", "RemoveReason", "VacateReason"),
        *("LastHoldReason", "LastHoldReasonCode", "LastHoldReasonSubCode", "NumHolds", "NumHoldsByReason"),
        *("ExitCode", "ExitStatus", "ExitBySignal", "ExitSignal", "ExitReason"),
        # use and hosts
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
"""Folded names of attributes that only the server and the pilots set."""

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
            "Site": "sites",
            "BannedSites": "banned_sites",
            "Platform": "platforms",
            "CPUTime": "cpu_time",
            "JobRequirements": "requirements",
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
            "MaxStarts": "max_starts",
            "JobMaxRetries": "retries",
            "JobSuccessExitCode": "success_exit_code",
            "OnExitHold": "policy",
            "OnExitHoldReason": "policy",
            "OnExitHoldSubCode": "policy",
            "OnExitRemove": "policy",
            "ContainerImage": "image",
            "PeriodicHold": "policy",
            "PeriodicHoldReason": "policy",
            "PeriodicHoldSubCode": "policy",
            "PeriodicRelease": "policy",
            "PeriodicRemove": "policy",
        }.items()
    }
)
"""Folded names of attributes that are fields of the description; an attribute of such a name is ignored."""

_EMPTY = JobDescription(executable="")
_WORDS = folded_set(("my", "target", "self", "other", "parent", "true", "false", "undefined", "error", "is", "isnt"))
"""Reserved words of the ClassAd language."""


TRANSFORMED_NAMES = folded_set(("SUBMIT_SITE_DOMAIN",))
"""Reserved names that the server's submit transforms set in the description itself."""

RESERVED = SERVER_ATTRIBUTES.difference(TRANSFORMED_NAMES).union(FIELDS, _WORDS)
"""Folded names whose values in a job's ad never come from the attributes of its description."""


def is_reserved(name: str) -> bool:
    """Whether an attribute of this name is ignored in a job's ad."""
    return fold(name) in RESERVED


def attribute_fault(name: str, description: JobDescription, owned: Collection[str]) -> str:
    """Return why the owner may not set this attribute; "" = it is allowed, is empty, or its field has the same value.

    `owned` are the folded names that the server's submit transforms set.
    """
    folded = fold(name)
    if folded in SERVER_ATTRIBUTES or folded in owned:
        return f"attribute {name} is set by the server; the value given is not used"
    field = FIELDS.get(folded)
    if field is None or getattr(description, field) != getattr(_EMPTY, field):
        return ""
    if description.attributes[name] in ("", ()):
        return ""
    if description.attributes[name] is True and field == "requirements_expression":
        return ""  # gLite's users write Requirements = true, which requires nothing
    return f"attribute {name} is what {field} says; the value given is not used"


DEFAULT_UNIVERSE = 5
"""Vanilla."""

_UNIVERSES = {"standard": 1, "vanilla": 5, "scheduler": 7, "grid": 9, "java": 10, "parallel": 11, "local": 12, "vm": 13}
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_NUMBER = re.compile(r"\d+", re.ASCII)
_LONGEST_NUMBER = 3
"""Digits of a universe. A bound is needed because Python refuses to convert very long numbers."""

INDIVIDUAL = folded_set(
    (
        "ClusterId",
        "ProcId",
        "GlobalJobId",
        "PilotageJobId",
        "QDate",
        "EnteredCurrentStatus",
        "JobStartDate",
        "JobCurrentStartDate",
        "CompletionDate",
        "ExitCode",
        "ExitBySignal",
        "ExitSignal",
        "HoldReason",
        "HoldReasonCode",
        "HoldReasonSubCode",
        "LastHoldReason",
        "LastHoldReasonCode",
        "LastHoldReasonSubCode",
        "NumHoldsByReason",
        "RemoveReason",
        "RemoteHost",
        "NumJobMatches",
        "NumShadowStarts",
        "NumJobCompletions",
        "JobRunCount",
        "ServerTime",
        "MyCurrentTime",
    )
)
"""Folded names of attributes that differ between all jobs. An expression that reads one is evaluated job by job."""

DEFAULTS: Mapping[str, AdValue] = MappingProxyType(
    {
        "JobStatus": 1,
        "JobUniverse": DEFAULT_UNIVERSE,
        "JobPrio": 0,
        "NumJobStarts": 0,
        "NumHolds": 0,
        "RemoteWallClockTime": 0.0,
        "CumulativeSuspensionTime": 0,
    }
)
"""Attribute values of a waiting job without a history."""

_FOLDED_DEFAULTS = {fold(name): value for name, value in DEFAULTS.items()}


@dataclass(frozen=True, slots=True)
class RunHistory:
    """The history of a job that expressions may read when it waits again.

    Times are in seconds; `last_remote_host` "" = it has not run.
    """

    starts: int = 0
    holds: int = 0
    wall_clock_s: float = 0.0
    suspended_s: float = 0.0
    last_remote_host: str = ""

    def attributes(self) -> dict[str, AdValue]:
        """Return the history as attributes."""
        values: dict[str, AdValue] = {
            "NumJobStarts": self.starts,
            "NumHolds": self.holds,
            "RemoteWallClockTime": self.wall_clock_s,
            "CumulativeSuspensionTime": int(self.suspended_s),
        }
        return values | ({"LastRemoteHost": self.last_remote_host} if self.last_remote_host else {})


NO_RUN_HISTORY = RunHistory()
RUN_HISTORY_NAMES = folded_set(RunHistory(last_remote_host="slot1@node").attributes())
"""Folded names of the attributes of a `RunHistory`."""


def run_history_of(job: JobRecord) -> RunHistory:
    """Return the run history of a job; while an attempt holds its lease, without that attempt."""
    return RunHistory(
        starts=job.starts,
        holds=job.holds,
        wall_clock_s=job.wall_clock.total_seconds(),
        suspended_s=job.suspended.total_seconds(),
        last_remote_host="" if job.is_leased or not job.node else host_text(job),
    )


def host_text(job: JobRecord) -> str:
    """Return the last slot and node of a job as HTCondor writes them: slot1@node."""
    return f"{job.slot}@{job.node}" if job.slot else job.node


def description_attributes(description: JobDescription) -> dict[str, AdValue]:
    """Return the attributes of a description with their spelling, without those that every task queue has.

    Macros of an array are not filled in.
    """
    own = _own_attributes(description)
    values: dict[str, AdValue] = {name: value for folded, (name, value) in own.items() if folded != "jobuniverse"}
    values |= {"Cmd": description.executable, "JobUniverse": _universe(own), "JobPrio": description.priority}
    texts = {
        "Arguments": description.arguments or None,
        "In": description.stdin,
        "Out": description.stdout,
        "Err": description.stderr,
        "JobBatchName": description.name or None,
        "ContainerImage": description.image,
    }
    values |= {name: text for name, text in texts.items() if text is not None}
    policy = description.policy
    policies = {
        "PeriodicHold": policy.periodic_hold,
        "PeriodicHoldReason": policy.periodic_hold_reason,
        "PeriodicHoldSubCode": policy.periodic_hold_subcode,
        "PeriodicRelease": policy.periodic_release,
        "PeriodicRemove": policy.periodic_remove,
        "OnExitHold": policy.on_exit_hold,
        "OnExitHoldReason": policy.on_exit_hold_reason,
        "OnExitHoldSubCode": policy.on_exit_hold_subcode,
        "OnExitRemove": exit_remove_expression(description),
    }
    values |= _places(description)
    counts = {"JobMaxRetries": description.retries, "JobSuccessExitCode": description.success_exit_code}
    values |= {name: count for name, count in counts.items() if count is not None}
    return values | {name: Expression(text) for name, text in policies.items() if text is not None}


def _places(description: JobDescription) -> dict[str, AdValue]:
    """Return the keywords and the Requirements section in DIRAC's names; the section is a nested ad.

    Parameters whose names no expression can spell are left out.
    """
    places: dict[str, AdValue] = {
        "Site": restricting_names(description.sites),
        "BannedSites": description.banned_sites,
        "Platform": restricting_names(description.platforms),
        "JobRequirements": {
            name: value
            for name, value in (description.requirements or {}).items()
            if _NAME.fullmatch(name) and fold(name) not in _WORDS
        },
    }
    found = {name: value for name, value in places.items() if value}
    if description.cpu_time is not None:
        seconds = description.cpu_time.total_seconds()
        found["CPUTime"] = int(seconds) if seconds.is_integer() else seconds
    return found


def _own_attributes(description: JobDescription) -> dict[str, tuple[str, Value]]:
    """Return the owner's attributes that are valid in an ad, by folded name; of equal names, the last one."""
    return {
        folded: (name, value)
        for name, value in description.attributes.items()
        if (folded := fold(name)) not in RESERVED and _NAME.fullmatch(name)
    }


def _universe(own: Mapping[str, tuple[str, Value]]) -> Value:
    """Return the universe: the attribute JobUniverse, else the submit command `universe`."""
    _, universe = own.get("jobuniverse") or own.get("universe") or ("", DEFAULT_UNIVERSE)
    if not isinstance(universe, str) or has_macro(universe):
        return universe
    if universe_fault(universe):
        return DEFAULT_UNIVERSE
    return int(universe) if _NUMBER.fullmatch(universe) else _UNIVERSES.get(fold(universe), DEFAULT_UNIVERSE)


def universe_fault(text: str) -> str:
    """Return why the text, with its macros filled in, is not a universe; "" = it may be one."""
    number = render_text(text, 0, 0)
    is_long = len(number) > _LONGEST_NUMBER and _NUMBER.fullmatch(number) is not None
    return f"a universe is a name or a number of at most {_LONGEST_NUMBER} digits" if is_long else ""


def expression_references(*texts: str) -> References:
    """Return the references of all these expressions together; empty texts are skipped."""
    found = References()
    for text in texts:
        if text:
            found |= references(text)
    return found


def has_macro(value: AdValue) -> bool:
    """Whether the value differs between the jobs of an array."""
    return isinstance(value, str) and render_text(value, 0, 0) != value


def is_default(folded: str, value: AdValue) -> bool:
    """Whether the value equals the default of the attribute, including its type: 5.0 and true differ from 5 and 1."""
    default = _FOLDED_DEFAULTS.get(folded)
    return default is not None and type(value) is type(default) and value == default


def plain_values(attributes: Mapping[str, AdValue]) -> dict[str, AdValue]:
    """Return the literals among the attributes; lists and nested ads have literals only."""
    found: dict[str, AdValue] = {}
    for name, value in attributes.items():
        if isinstance(value, bool | int | float | str):
            found[name] = value
        elif isinstance(value, tuple):
            scalars = tuple(each for each in value if isinstance(each, bool | int | float | str))
            if len(scalars) == len(value):
                found[name] = scalars
        elif isinstance(value, Mapping) and len(inner := plain_values(value)) == len(value):
            found[name] = inner
    return found
