"""A routed job: its state, the next action for each status at its target, and its outcome.

Rules
-----
- A target that gives no status decides nothing.
- A routed job that is gone without an end of its own is a failure of its route. The original waits again.
- A routed job whose original was removed, held or rescheduled is stopped. That is neither failure nor success.
- If the target holds it, the router reports that first. The server then holds the original for the target's reason
  and no longer wants the routed job. So the reason is known even if the router dies.
- A routed job that its target does not list is searched for during `SearchTimeouts`.

Source: HTCondor's Job Router.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple, Self, assert_never

from pilotage.classads.evaluation import Ad, compile_expression, evaluate, is_true
from pilotage.classads.library import AdValue
from pilotage.routes import JobScopes
from pilotage_agents.batch_systems.base import GlideinState, GlideinStatus
from pilotage_agents.router.core.model import ListedRoutedJob, RoutedJobOutcome, RoutedJobState, RoutedJobStatus
from pilotage_agents.router.core.script import WrapperEnd, WrapperStart
from pilotage_agents.router.core.table import Route

NOT_POLLED = RoutedJobStatus(RoutedJobState.IDLE)
"""The status before the first poll."""


STOPPED = "KILLED"
"""The outcome of a routed job that was stopped."""

HELD_BY_TARGET = "its target holds the job"
"""The reason for the hold of the original if the target gives none."""


class RoutedJobKey(NamedTuple):
    """Identifies a routed job: the attempt of its original."""

    job_id: int
    attempt: int


class RouteResult(StrEnum):
    """How the end of a routed job counts for its route."""

    SUCCESS = "success"
    FAILURE = "failure"
    NEITHER = "neither"


class RoutedJobIntent(StrEnum):
    """What the router wants for a routed job."""

    KEEP = "keep"
    STOP = "stop"
    """Its original was removed, held or rescheduled."""
    HOLD = "hold"
    """Its target holds it, so the server is to hold the original. Then the routed job is no longer wanted."""


class RoutedJobAction(StrEnum):
    """The next action for a routed job."""

    NOTHING = "nothing"
    REPORT = "tell"
    """Report its state and node if they have changed."""
    CANCEL = "cancel"
    HOLD = "hold"
    """Report that its target holds it."""
    COLLECT = "collect"
    """Its payload has ended: collect the output."""
    END = "end"
    """It is gone: end it."""


_ACTIONS_WHEN_KEPT: Mapping[RoutedJobState, RoutedJobAction] = {
    RoutedJobState.IDLE: RoutedJobAction.NOTHING,
    RoutedJobState.RUNNING: RoutedJobAction.REPORT,
    RoutedJobState.SUSPENDED: RoutedJobAction.REPORT,
    RoutedJobState.HELD: RoutedJobAction.HOLD,
    RoutedJobState.COMPLETED: RoutedJobAction.COLLECT,
    RoutedJobState.GONE: RoutedJobAction.END,
    RoutedJobState.UNKNOWN: RoutedJobAction.NOTHING,
}
_ACTIONS: Mapping[RoutedJobIntent, Mapping[RoutedJobState, RoutedJobAction]] = {
    RoutedJobIntent.KEEP: _ACTIONS_WHEN_KEPT,
    RoutedJobIntent.STOP: dict.fromkeys(RoutedJobState, RoutedJobAction.CANCEL)
    | {RoutedJobState.COMPLETED: RoutedJobAction.END, RoutedJobState.GONE: RoutedJobAction.END},
    RoutedJobIntent.HOLD: dict.fromkeys(RoutedJobState, RoutedJobAction.NOTHING)
    | {RoutedJobState.COMPLETED: RoutedJobAction.COLLECT, RoutedJobState.GONE: RoutedJobAction.END},
}
"""The next action by intent and state."""


@dataclass(frozen=True, slots=True)
class SearchTimeouts:
    """How long to search for a routed job that its target does not list.

    `submitted` counts from a submission without an answer. `adopted` counts from the adoption of a routed job that may
    never have been submitted.
    """

    submitted: timedelta
    adopted: timedelta


@dataclass(frozen=True, slots=True)
class TrackedJob:
    """A routed job that this router tracks until the server knows its end.

    `since` is the time of routing or adoption. `reference` "" = unknown. `was_sent`: this router has submitted it.
    `status` is the last known one. `reason` says why it is to end. `outcome` is set once it has ended, until the server
    has confirmed the report.
    """

    key: RoutedJobKey
    route: str
    target: str
    since: datetime
    reference: str = ""
    was_sent: bool = False
    status: RoutedJobStatus = NOT_POLLED
    intent: RoutedJobIntent = RoutedJobIntent.KEEP
    reason: str = ""
    outcome: RoutedJobOutcome | None = None

    @classmethod
    def adopted(cls, known: ListedRoutedJob, now: datetime) -> Self:
        """Return a routed job that the server lists as this router's."""
        state = RoutedJobState.RUNNING if known.is_running else RoutedJobState.IDLE
        return cls(
            RoutedJobKey(known.job_id, known.attempt),
            known.route,
            known.target,
            now,
            known.reference,
            status=RoutedJobStatus(state),
            intent=RoutedJobIntent.STOP if known.unwanted else RoutedJobIntent.KEEP,
            reason=known.unwanted,
        )

    @property
    def name(self) -> str:
        """The name of the routed job at its target."""
        return routed_job_name(self.key)

    @property
    def is_running(self) -> bool:
        """Whether it counts as running; it does so while its output is collected."""
        return self.status.state in (RoutedJobState.RUNNING, RoutedJobState.COMPLETED)

    @property
    def is_unwanted(self) -> bool:
        """Whether its original was removed, held or rescheduled."""
        return self.intent is RoutedJobIntent.STOP

    def with_stop(self, reason: str) -> Self:
        """Return the routed job with the order to stop."""
        return replace(self, intent=RoutedJobIntent.STOP, reason=reason)

    def with_status(self, status: RoutedJobStatus) -> Self:
        """Return the routed job with a new status; UNKNOWN changes nothing."""
        return self if status.state is RoutedJobState.UNKNOWN else replace(self, status=status)


def routed_job_name(key: RoutedJobKey) -> str:
    """Return the name of a routed job at its target; it is the same for every request for the attempt."""
    return f"pilotage-{key.job_id}-{key.attempt}"


def next_action(routed: TrackedJob, status: RoutedJobStatus) -> RoutedJobAction:
    """Return the next action for a routed job with this status."""
    return _ACTIONS[routed.intent][status.state]


def held(routed: TrackedJob, status: RoutedJobStatus) -> TrackedJob:
    """Return a routed job that its target holds: the original is to be held."""
    return replace(routed, status=status, intent=RoutedJobIntent.HOLD, reason=status.reason or HELD_BY_TARGET)


def end_of_gone(routed: TrackedJob) -> tuple[RoutedJobOutcome, RouteResult]:
    """Return the outcome of a routed job that is gone, by its intent, and how it counts for its route."""
    status = routed.status
    match routed.intent:
        case RoutedJobIntent.STOP | RoutedJobIntent.HOLD:
            return RoutedJobOutcome(STOPPED, status, routed.reason), RouteResult.NEITHER
        case RoutedJobIntent.KEEP:
            return RoutedJobOutcome(
                "EVICTED", status, status.reason or "the job is gone at its target"
            ), RouteResult.FAILURE


def end_of_missing(
    routed: TrackedJob, timeouts: SearchTimeouts, now: datetime
) -> tuple[RoutedJobOutcome, RouteResult] | None:
    """Return the outcome of a routed job that its target does not list; None = the search goes on."""
    waited = now - routed.since
    status = RoutedJobStatus(RoutedJobState.GONE)
    if routed.was_sent and waited >= timeouts.submitted:
        reason = f"the submission was not answered, and no job was found for {waited.total_seconds():.0f} s"
        result = RouteResult.FAILURE if routed.intent is RoutedJobIntent.KEEP else RouteResult.NEITHER
        return _missing_outcome(routed, status, reason), result
    if not routed.was_sent and waited >= timeouts.adopted:
        return _missing_outcome(routed, status, "the job was never submitted"), RouteResult.NEITHER
    return None


def _missing_outcome(routed: TrackedJob, status: RoutedJobStatus, reason: str) -> RoutedJobOutcome:
    if routed.intent is not RoutedJobIntent.KEEP:
        return RoutedJobOutcome(STOPPED, status, routed.reason)
    return RoutedJobOutcome("EVICTED", status, reason)


_STATES = {
    "RECEIVED": RoutedJobState.IDLE,
    "WAITING": RoutedJobState.IDLE,
    "BLOCKED": RoutedJobState.IDLE,
    "MATCHED": RoutedJobState.IDLE,
    "RUNNING": RoutedJobState.RUNNING,
    "SUSPENDED": RoutedJobState.SUSPENDED,
    "COMPLETING": RoutedJobState.RUNNING,
    "DONE": RoutedJobState.COMPLETED,
    "FAILED": RoutedJobState.COMPLETED,
    "HELD": RoutedJobState.HELD,
    "REMOVED": RoutedJobState.GONE,
    "RACING": RoutedJobState.RUNNING,
}


@dataclass(frozen=True, slots=True)
class RemoteJob:
    """A job of another server; `state` is a name of the protocol."""

    state: str
    reason: str
    node: str
    exit_code: int | None
    signal: int | None
    started: datetime | None
    ended: datetime | None
    wall_s: float


@dataclass(frozen=True, slots=True)
class JobReference:
    """The reference of a job at another server: its name and its id there."""

    name: str
    job_id: int

    def __str__(self) -> str:
        """Return the text form that `parse` reads."""
        return f"{self.name} {self.job_id}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Return the reference that a text holds; None = it is none."""
        name, _, job_id = text.rpartition(" ")
        return cls(name, int(job_id)) if name and job_id.isdecimal() and len(job_id) < 19 else None


def remote_status(job: RemoteJob) -> RoutedJobStatus:
    """Return the status of a routed job that is a job of another server.

    A job that ended with an exit code or by a signal has completed, also if it failed so. A job that failed otherwise,
    by used-up attempts or an exceeded limit, is held: another attempt would fail in the same way.
    """
    state, reason = _STATES.get(job.state, RoutedJobState.UNKNOWN), job.reason
    if state is RoutedJobState.UNKNOWN:
        reason = f"{job.state} is an unknown state"
    elif job.state == "FAILED" and job.exit_code is None and job.signal is None:
        state, reason = RoutedJobState.HELD, f"it failed at the target: {job.reason}"
    return RoutedJobStatus(
        state,
        reason,
        node=job.node,
        exit_code=job.exit_code,
        signal=job.signal,
        started=job.started,
        ended=job.ended,
        wall_s=job.wall_s,
    )


def batch_job_status(reported: GlideinStatus, start: WrapperStart | None, end: WrapperEnd | None) -> RoutedJobStatus:
    """Return the status of a routed job at a batch system, by the batch system and the wrapper's files.

    `start` and `end` are None if the wrapper's file is missing or not visible yet. A written end means that the job has
    completed, unless the batch system ended it. An end that only the batch system reports means that the job is gone. A
    job that the batch system does not know and that wrote nothing is UNKNOWN.
    """
    match reported.state:
        case GlideinState.WAITING:
            return RoutedJobStatus(RoutedJobState.IDLE, reported.reason)
        case GlideinState.RUNNING:
            running = RoutedJobStatus(RoutedJobState.RUNNING, reported.reason)
            if end is not None and end.is_plugged:
                running = replace(_ended(reported, start, end), state=RoutedJobState.RUNNING, is_plugged=True)
            return _with_start(running, start)
        case GlideinState.ENDED:
            return _ended(reported, start, end)
        case GlideinState.UNKNOWN:
            completed = end is not None and not end.was_signalled
            return (
                _ended(reported, start, end) if completed else RoutedJobStatus(RoutedJobState.UNKNOWN, reported.reason)
            )
        case _:
            assert_never(reported.state)


def is_end_missing(reported: GlideinStatus, end: WrapperEnd | None) -> bool:
    """Return whether the wrapper must have written an end that is not visible yet."""
    return reported.state is GlideinState.ENDED and reported.exit_code == 0 and end is None


def _ended(reported: GlideinStatus, start: WrapperStart | None, end: WrapperEnd | None) -> RoutedJobStatus:
    if end is None:
        reason = f"it wrote no end; the batch system reports: {reported.reason or 'ended'}"
        return _with_start(RoutedJobStatus(RoutedJobState.GONE, reason), start)
    began = end.time if start is None else start.time
    # A batch system reports no exit code for a job that it ended itself.
    is_gone = end.was_signalled and reported.exit_code is None
    status = RoutedJobStatus(
        RoutedJobState.GONE if is_gone else RoutedJobState.COMPLETED,
        f"it was asked to end; the batch system reports: {reported.reason}" if is_gone else reported.reason,
        exit_code=None if is_gone else end.exit_code,
        ended=end.time,
        cpu_s=end.cpu_s or 0.0,
        wall_s=max(0.0, (end.time - began).total_seconds()),
    )
    return _with_start(status, start)


def _with_start(status: RoutedJobStatus, start: WrapperStart | None) -> RoutedJobStatus:
    return status if start is None else replace(status, node=start.node, started=start.time)


_COMPLETED = 4


def ended_ad(job: Mapping[str, AdValue], status: RoutedJobStatus) -> dict[str, AdValue]:
    """Return the original's ad with the end of its routed job and the attributes that the target reported."""
    signalled = status.signal is not None
    end: dict[str, AdValue] = {"JobStatus": _COMPLETED, "ExitBySignal": signalled, "RemoteWallClockTime": status.wall_s}
    end["RemoteUserCpu"] = status.cpu_s
    if status.signal is not None:
        end["ExitSignal"] = status.signal
    elif status.exit_code is not None:
        end["ExitCode"] = status.exit_code
    if status.started is not None:
        end["JobStartDate"] = int(status.started.timestamp())
    if status.ended is not None:
        end["CompletionDate"] = int(status.ended.timestamp())
    return {**job, **end, **(status.attributes or {})}


def route_result(route: Route | None, ended: Mapping[str, AdValue]) -> RouteResult:
    """Return how the end of a job with this ad counts for its route (None = the route is no longer in the table).

    Only a JobFailureTest that evaluates to True is a failure. A job without a test, or with an undefined result, is a
    success, whatever its exit code. A route in the form of an ad is MY for its own test; the job is TARGET. Source:
    HTCondor's Job Router.
    """
    if route is None or route.failure_test is None:
        return RouteResult.SUCCESS
    scopes = JobScopes.of(ended)
    my = scopes.my if route.own_attributes is None else Ad(route.own_attributes)
    failed = is_true(evaluate(compile_expression(route.failure_test), my, scopes.target))
    return RouteResult.FAILURE if failed else RouteResult.SUCCESS
