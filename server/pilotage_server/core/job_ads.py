"""Jobs as ClassAds: what a match may look at, and the whole ad for pilots and people.

Rules
-----
`traits_ad` is made from traits alone, so nothing that looks at it can tell the jobs of a task queue apart. The whole
ad of a job that waits says the same under every name of it that anybody refers to, unless that name has to be asked
job by job. Names and units are HTCondor's: memory in MiB, disk in KiB, times in seconds since 1970 or in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pilotage.classads import AdValue, Expression
from pilotage.folding import fold, folded_set
from pilotage.job_description import JobDescription
from pilotage_server.core.accounting import Account, charged_account
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.job_attributes import DEFAULTS, INDIVIDUAL, described, host_text, past_of
from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import FINAL, JobState, job_status
from pilotage_server.core.macros import render
from pilotage_server.core.owned_attributes import RESERVED, SERVER_ATTRIBUTES
from pilotage_server.core.routes import router_of
from pilotage_server.core.task_queues import NO_NAMES, Traits, traits_of

_KIB_IN_MIB = 1024
_ROUTED = folded_set(("RouteName", "RoutedBy", "RoutedToJobId"))

ALWAYS_TOLD = INDIVIDUAL | folded_set(
    (
        *("MyType", "Owner", "User", "VO", "x509UserProxyVOName", "AcctGroup", "AcctGroupUser", "AccountingGroup"),
        *("RequestCpus", "RequestMemory", "RequestDisk", "RequestGPUs", "AllowedExecuteDuration"),
        *("Requirements", "Rank", "JobStatus"),
    )
)
"""Folded names that need not be referred to: every ad of a waiting job tells them, or every job is asked."""


def traits_ad(traits: Traits) -> dict[str, AdValue]:
    """Return what a match may look at; attributes that somebody refers to stand under their folded names."""
    told = {fold(name) for name, _ in traits.attributes}
    defaults = {name: value for name, value in DEFAULTS.items() if fold(name) not in told}
    return {**_common(traits), **defaults, **traits.values()}


def full_job_ad(job: JobRecord, description: JobDescription, now: datetime) -> dict[str, AdValue]:
    """Return the whole ad of one job as it is at `now`."""
    return described_ad(job, render(description, job)) | present_ad(job, now)


def described_ad(job: JobRecord, description: JobDescription) -> dict[str, AdValue]:
    """Return what the ads of all jobs of a description say alike, as long as there are no macros in it."""
    traits = traits_of(Account(job.vo, job.group, job.owner), job.pool_id, description, NO_NAMES)
    return _common(traits) | described(description)


def present_ad(job: JobRecord, now: datetime) -> dict[str, AdValue]:
    """Return what the ad of one job says of its life so far."""
    return {**past_of(job).attributes(), **_life(job, now), **_places(job), **_ends(job)}


def with_mirrored(ad: Mapping[str, AdValue], said: Mapping[str, AdValue]) -> dict[str, AdValue]:
    """Return an ad for people, with what hooks have said of the job's copy.

    They fill only names that the ad has not and that are not the server's to give, so they hide nothing that anybody
    else says of the job.
    """
    taken = folded_set(ad) | SERVER_ATTRIBUTES | RESERVED | _ROUTED
    return {**ad, **{name: value for name, value in said.items() if fold(name) not in taken}}


def _common(traits: Traits) -> dict[str, AdValue]:
    """Return what tells task queues apart anyway: whose the jobs are, what they ask, their expressions."""
    ad: dict[str, AdValue] = {"MyType": "Job", **_identity(traits), **_requests(traits)}
    expressions = {"Requirements": traits.requirements_expression, "Rank": traits.rank}
    return ad | {name: Expression(text) for name, text in expressions.items() if text}


def _identity(traits: Traits) -> dict[str, AdValue]:
    account = traits.account
    charged = charged_account(account, traits.accounting)
    ad: dict[str, AdValue] = {
        "Owner": account.owner,
        "User": f"{account.owner}@{account.vo}",
        "VO": account.vo,
        "x509UserProxyVOName": account.vo,
    }
    if charged.group:
        accounting = traits.accounting or f"{charged.group}.{charged.owner}"
        ad |= {"AcctGroup": charged.group, "AcctGroupUser": charged.owner, "AccountingGroup": accounting}
    return ad


def _requests(traits: Traits) -> dict[str, AdValue]:
    amounts: Amounts = traits.amounts
    ad: dict[str, AdValue] = {
        "RequestCpus": amounts.cpus,
        "RequestMemory": amounts.memory_mib,
        "RequestDisk": amounts.disk_mib * _KIB_IN_MIB,
    }
    if traits.needs.gpus is not None:  # as condor_submit, which says nothing of GPUs where none were asked
        ad["RequestGPUs"] = amounts.gpus
    if traits.wall_time_s is not None:
        ad["AllowedExecuteDuration"] = int(traits.wall_time_s)
    return ad


def _life(job: JobRecord, now: datetime) -> dict[str, AdValue]:
    submitted = _seconds(job.submitted)
    ad: dict[str, AdValue] = {
        "PilotageJobId": job.id,
        "ClusterId": job.cluster,
        "ProcId": job.process,
        "GlobalJobId": f"pilotage#{job.cluster}.{job.process}#{submitted}",
        "JobStatus": job_status(job.state),
        "QDate": submitted,
        "EnteredCurrentStatus": _seconds(job.state_since or job.submitted),
        "ServerTime": _seconds(now),
        "MyCurrentTime": _seconds(now),
    }
    # Where HTCondor matches a job and starts a shadow for each time that it runs, an attempt is both.
    ad |= dict.fromkeys(("NumJobMatches", "NumShadowStarts", "JobRunCount"), job.attempt)
    if job.lease is not None:
        ad["JobLeaseDuration"] = int(job.lease.total_seconds())
    if job.started is not None:
        ad["JobCurrentStartDate"] = _seconds(job.started)
        if job.starts <= 1:  # of a later start the first one's time is in the job's events only
            ad["JobStartDate"] = _seconds(job.started)
    return ad


def _places(job: JobRecord) -> dict[str, AdValue]:
    if not job.is_leased:
        return {}
    router = router_of(job)
    routed: dict[str, AdValue] = {"RouteName": job.slot, "RoutedBy": router} if router else {}
    return routed | ({"RemoteHost": host_text(job)} if job.node else {})


def _ends(job: JobRecord) -> dict[str, AdValue]:
    """Return what is known of the holds and of the end of a job."""
    ad: dict[str, Any] = {}
    history = job.hold_history
    if history.counts:
        ad["NumHoldsByReason"] = dict(history.by_reason())
    if history.last is not None:
        last = history.last
        ad |= _hold("LastHoldReason", last.reason, last.code, last.subcode)
    if job.state is JobState.HELD:
        ad |= _hold("HoldReason", job.reason, job.hold_code or 0, job.hold_subcode or 0)
    if job.state is JobState.REMOVED:
        ad["RemoveReason"] = job.reason
    if job.state in FINAL and job.ended is not None:
        ad["CompletionDate"] = _seconds(job.ended) if job.state is not JobState.REMOVED else 0
    exit_facts = {"ExitCode": job.exit_code, "ExitSignal": job.signal}
    ad |= {name: value for name, value in exit_facts.items() if value is not None}
    if job.exit_code is not None or job.signal is not None:
        ad["ExitBySignal"] = job.signal is not None
    return ad


def _hold(name: str, reason: str, code: int, subcode: int) -> Mapping[str, AdValue]:
    return {name: reason, f"{name}Code": code, f"{name}SubCode": subcode}


def _seconds(time: datetime) -> int:
    return int(time.timestamp())
