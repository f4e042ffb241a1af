"""The log of what happens to a pilot, for people; the core itself writes none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import structlog

from pilotage_pilot.core import events as ev
from pilotage_pilot.core.jobs import GrantedJob

log = structlog.get_logger()


def log_event(event: ev.Event) -> None:
    """Write the log line of an event that people may want to read later."""
    match event:
        case ev.JobsGranted(_, jobs) if jobs:
            _log_jobs(jobs)
        case ev.StartFailed(key, outcome, reason):
            log.warning("payload not started", job=str(key), outcome=outcome.value, reason=reason)
        case ev.PayloadExited(key, exit_code, number, usage):
            log.info("payload ended", job=str(key), exit_code=exit_code, signal=number, cpu_s=round(usage.cpu_s, 3))
        case ev.LimitPassed(key, reason):
            log.warning("payload over its limit", job=str(key), reason=reason)
        case ev.StopRequested(reason, at_once):
            log.info("pilot told to stop", reason=reason, at_once=at_once)
        case ev.PolicyReloaded():
            log.info("policy read again")
        case _:
            _log_trouble(event)


def _log_jobs(jobs: Iterable[GrantedJob]) -> None:
    for job in jobs:
        log.info("job granted", job=str(job.key), owner=job.owner, vo=job.vo, cpus=job.amounts.cpus)
        if job.fault:
            log.warning("job refused", job=str(job.key), reason=job.fault)


def _log_trouble(event: ev.Event) -> None:
    match event:
        case ev.RequestFailed(_, failure) | ev.HeartbeatFailed(_, failure) | ev.PoolsFailed(failure):
            log.warning("call to the server failed", kind=failure.kind.value, reason=failure.why)
        case ev.OutputFailed(key, failure):
            log.warning("output not stored", job=str(key), kind=failure.kind.value, reason=failure.why)
        case ev.NodeRefused(faults):
            log.error("node not fit for work", faults=faults)
        case ev.PolicyRefused(reason):
            log.warning("policy not read again, the old one holds", reason=reason)
        case ev.HeartbeatAnswered() if event.lost or event.commands:
            log.info("server says", lost=[str(lost.key) for lost in event.lost], commands=[*map(str, event.commands)])
        case _:
            return


def log_refused_attributes(refused: Mapping[str, str]) -> None:
    """Write the log line of what operators have set on the node and it does not take."""
    log.warning("attributes of the node not taken", refused=dict(refused))
