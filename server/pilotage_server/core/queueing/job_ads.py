"""Jobs as ClassAds: what a match may read, and the whole ad for pilots and people.

`traits_ad` is made from traits alone, so it cannot tell the jobs of a task queue apart. The whole ad of a waiting job
has the same value under every name that policies refer to, unless the name is evaluated job by job. Names and units are
HTCondor's: memory in MiB, disk in KiB, times in seconds since 1970 or in seconds.

`JobAdTexts` writes the text of `full_job_ad`, and writes what the jobs of one description have in common once. Where
such a value contains a macro, each ad is written by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from pilotage.classads.library import AdValue, Expression
from pilotage.classads.text import ad_text, assignments
from pilotage.job_description import JobDescription
from pilotage.text import fold, folded_set
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage_server.core.containers import MAX_CACHED_BYTES, MAX_CACHED_VALUES, BoundedCache
from pilotage_server.core.identity import charged_account
from pilotage_server.core.jobs.attributes import (
    DEFAULTS,
    INDIVIDUAL,
    RESERVED,
    SERVER_ATTRIBUTES,
    description_attributes,
    has_macro,
    host_text,
    run_history_of,
)
from pilotage_server.core.jobs.descriptions import render
from pilotage_server.core.jobs.record import JobRecord, router_of
from pilotage_server.core.jobs.states import FINAL, JobState, job_status
from pilotage_server.core.queueing.task_queue import NO_NAMES, Traits, traits_of

_KIB_IN_MIB = 1024
_ROUTED = folded_set(("RouteName", "RoutedBy", "RoutedToJobId"))

ALWAYS_PRESENT = INDIVIDUAL | folded_set(
    (
        *("MyType", "Owner", "User", "VO", "x509UserProxyVOName", "AcctGroup", "AcctGroupUser", "AccountingGroup"),
        *("RequestCpus", "RequestMemory", "RequestDisk", "RequestGPUs", "AllowedExecuteDuration"),
        *("Requirements", "Rank", "JobStatus", "SubmitPool"),
    )
)
"""Folded names that are never unknown references: every waiting job's ad has them, or every job is evaluated."""


def traits_ad(traits: Traits) -> dict[str, AdValue]:
    """Return what a match may read; attributes that policies refer to stand under their folded names."""
    present = {fold(name) for name, _ in traits.attributes}
    defaults = {name: value for name, value in DEFAULTS.items() if fold(name) not in present}
    return {**_common(traits), **defaults, **traits.values()}


def full_job_ad(job: JobRecord, description: JobDescription, now: datetime) -> dict[str, AdValue]:
    """Return the whole ad of one job as it is at `now`."""
    return described_ad(job, render(description, job)) | present_ad(job, now)


def described_ad(job: JobRecord, description: JobDescription) -> dict[str, AdValue]:
    """Return what the ads of all jobs of a description have in common, if no value contains a macro."""
    traits = traits_of(Account(job.vo, job.group, job.owner), job.pool_id, description, NO_NAMES)
    return _common(traits) | description_attributes(description)


def present_ad(job: JobRecord, now: datetime) -> dict[str, AdValue]:
    """Return what the ad of one job contains about its life so far."""
    return {**run_history_of(job).attributes(), **_life(job, now), **_places(job), **_ends(job)}


def reported_ad(ad: Mapping[str, AdValue], job: JobRecord) -> dict[str, AdValue]:
    """Return the whole ad of a job with what HTCondor's tools read beside it; policies see none of this.

    A job that failed without an exit code or a signal is REMOVED for them, as in its user log: they would take a job
    that has ended for one that has exited with 0. One that transfers its output runs, as many tools read 6 as an error.
    """
    more: dict[str, AdValue] = {} if job.state in FINAL else {"CompletionDate": 0}
    if job.state is JobState.COMPLETING:
        more |= {"JobStatus": job_status(JobState.RUNNING), "TransferringOutput": True}
    if "Arguments" in ad:
        more["Args"] = ad["Arguments"]
    if "ResidentSetSize" in ad:
        more["ImageSize"] = ad["ResidentSetSize"]
    if job.exit_code is not None:
        more["ExitStatus"] = job.exit_code
    if job.state is JobState.FAILED and job.exit_code is None and job.signal is None:
        more |= {"JobStatus": job_status(JobState.REMOVED), "RemoveReason": job.reason}
    return {**ad, **more}


def with_mirrored(ad: Mapping[str, AdValue], mirrored: Mapping[str, AdValue]) -> dict[str, AdValue]:
    """Return an ad for people, with the attributes that hooks have reported of the routed job.

    They only fill names that the ad lacks and that the server does not set, so they hide no other value.
    """
    taken = folded_set(ad) | SERVER_ATTRIBUTES | RESERVED | _ROUTED
    return {**ad, **{name: value for name, value in mirrored.items() if fold(name) not in taken}}


def _common(traits: Traits) -> dict[str, AdValue]:
    """Return what tells task queues apart in any case: account, requests, expressions."""
    ad: dict[str, AdValue] = {"MyType": "Job", **_identity(traits), **_requests(traits)}
    if traits.pool_id:
        ad["SubmitPool"] = traits.pool_id
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
    if traits.needs.gpus is not None:  # as condor_submit, which omits RequestGPUs where none are requested
        ad["RequestGPUs"] = amounts.gpus
    if traits.needs.wall_time_s is not None:
        ad["AllowedExecuteDuration"] = int(traits.needs.wall_time_s)
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
    # HTCondor counts matches and shadow starts; an attempt is both.
    ad |= dict.fromkeys(("NumJobMatches", "NumShadowStarts", "JobRunCount"), job.attempt)
    if job.lease is not None:
        ad["JobLeaseDuration"] = int(job.lease.total_seconds())
    if job.max_starts:
        ad["MaxStarts"] = job.max_starts
    if job.started is not None:
        ad["JobCurrentStartDate"] = _seconds(job.started)
        if job.starts <= 1:  # after a restart, only the events have the time of the first start
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
    has_exited = job.exit_code is not None or job.signal is not None
    if has_exited:
        ad["ExitBySignal"] = job.signal is not None
    ad["NumJobCompletions"] = job.completions + (has_exited and job.state in _COMPLETED)
    return ad


_COMPLETED = frozenset({JobState.DONE, JobState.FAILED})


def _hold(name: str, reason: str, code: int, subcode: int) -> Mapping[str, AdValue]:
    return {name: reason, f"{name}Code": code, f"{name}SubCode": subcode}


def _seconds(time: datetime) -> int:
    return int(time.timestamp())


_OF_A_NAME = 100
"""About the bytes that a cached name takes."""


class _SharedText(NamedTuple):
    """What the ads of the jobs of one template have in common."""

    names: frozenset[str]
    text: str


class JobAdTexts:
    """Writes ads of jobs, and caches what those of each recent template have in common.

    A template belongs to one owner, never changes, and its id is not used again.
    """

    def __init__(self, most: int = MAX_CACHED_VALUES, most_bytes: int = MAX_CACHED_BYTES) -> None:
        self._shared = BoundedCache[int, _SharedText | None](most, most_bytes)

    def text(self, job: JobRecord, description: JobDescription, now: datetime) -> str:
        """Return the whole ad of a job as it is at `now`; the description is its template's, macros not filled in."""
        shared = self._of_template(job, description)
        if shared is not None:
            present = present_ad(job, now)
            if shared.names.isdisjoint(present):
                return f"[{shared.text}; {assignments(present)}]"
        return ad_text(full_job_ad(job, description, now))

    def _of_template(self, job: JobRecord, description: JobDescription) -> _SharedText | None:
        try:
            return self._shared.known[job.template_id]
        except KeyError:
            ad = described_ad(job, description)
            shared = None if any(map(has_macro, ad.values())) else _SharedText(frozenset(ad), assignments(ad))
            self._shared.put(job.template_id, shared, _OF_A_NAME * len(ad) + (len(shared.text) if shared else 0))
            return shared
