"""One attempt as a state machine, and the set of attempts that a pilot holds.

Rules
-----
Every change of stage goes through `Attempt.step`. A step that the table lacks is an error and changes nothing.
Ended attempts can be many and only wait for the server, so they are kept apart; unreported ones in order of their ends.
The plug: a payload that fails too fast keeps its slot for a minimum time, so that a bad node fails fewer jobs (J.
Phys.: Conf. Ser. 219 062035). Only a failure of the payload itself is plugged, no order and no limit. The failure is
reported at once, the end later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pilotage.errors import StateConflictError
from pilotage.values.attempts import AttemptKey, JobHold, Outcome, ReportedOutput
from pilotage_pilot.core.events import PayloadExited
from pilotage_pilot.core.model import NOTHING_USED, GrantedJob, Now, Report, ReportedState, Usage
from pilotage_pilot.core.slots.states import RUNNING, Activity, SlotState


class Stage(StrEnum):
    """Stage of an attempt in the pilot."""

    PREPARING = "preparing"
    """Its folder is made and its input is fetched."""
    STARTING = "starting"
    """Its payload is being started."""
    RUNNING = "running"
    """Its payload runs."""
    SUSPENDED = "suspended"
    """Its payload is suspended."""
    STOPPING = "stopping"
    """Its payload has got SIGTERM, and has time to end."""
    KILLING = "killing"
    """Its payload gets SIGKILL; one that has not started is given up."""
    STORING = "storing"
    """Its payload has ended, and its output is uploaded."""
    REPORTING = "reporting"
    """Its end waits for the server to record it."""


class Step(StrEnum):
    """Event that moves an attempt to another stage."""

    PREPARED = "prepared"
    """The folder is ready."""
    STARTED = "started"
    """The payload has started."""
    NOT_STARTED = "not started"
    """Preparation or start has failed, or was given up."""
    SUSPENDED = "suspended"
    """The slot has suspended the payload."""
    CONTINUED = "continued"
    """The slot has continued the payload."""
    STOP_ORDERED = "stop ordered"
    """The payload has to leave, with time to end."""
    KILL_ORDERED = "kill ordered"
    """The payload has to leave at once."""
    LEFT_FILES = "left files"
    """No process of the payload is left, and there is output to store."""
    LEFT_NOTHING = "left nothing"
    """No process of the payload is left, and there is nothing to store."""
    STORED = "stored"
    """The server has the output."""
    ABANDONED = "abandoned"
    """The output cannot be stored."""


UNSTARTED = frozenset({Stage.PREPARING, Stage.STARTING})
"""Stages without a payload."""

STARTED = frozenset({Stage.RUNNING, Stage.SUSPENDED, Stage.STOPPING, Stage.KILLING})
"""Stages with a payload."""

TRANSITIONS: dict[tuple[Stage, Step], Stage] = {
    (Stage.PREPARING, Step.PREPARED): Stage.STARTING,
    (Stage.PREPARING, Step.NOT_STARTED): Stage.REPORTING,
    (Stage.STARTING, Step.STARTED): Stage.RUNNING,
    (Stage.STARTING, Step.NOT_STARTED): Stage.REPORTING,
    (Stage.RUNNING, Step.SUSPENDED): Stage.SUSPENDED,
    (Stage.SUSPENDED, Step.CONTINUED): Stage.RUNNING,
    (Stage.RUNNING, Step.STOP_ORDERED): Stage.STOPPING,
    (Stage.SUSPENDED, Step.STOP_ORDERED): Stage.STOPPING,
    **{(stage, Step.KILL_ORDERED): Stage.KILLING for stage in UNSTARTED | STARTED - {Stage.KILLING}},
    **{(stage, Step.LEFT_FILES): Stage.STORING for stage in STARTED},
    **{(stage, Step.LEFT_NOTHING): Stage.REPORTING for stage in STARTED},
    # The kill was ordered during preparation or start.
    (Stage.KILLING, Step.PREPARED): Stage.REPORTING,
    (Stage.KILLING, Step.NOT_STARTED): Stage.REPORTING,
    (Stage.KILLING, Step.STARTED): Stage.KILLING,
    (Stage.STORING, Step.STORED): Stage.REPORTING,
    (Stage.STORING, Step.ABANDONED): Stage.REPORTING,
}
"""Every legal step: stage and step → next stage."""

REPORTED_STATES = {
    Stage.RUNNING: ReportedState.RUNNING,
    Stage.SUSPENDED: ReportedState.SUSPENDED,
    Stage.STORING: ReportedState.COMPLETING,
    Stage.REPORTING: ReportedState.DONE,
}
"""The reported state of a stage; other stages are not reported."""


KEEPS_OUTPUT = frozenset({Outcome.EXITED, Outcome.LIMIT_EXCEEDED})
"""Outcomes whose output is stored whole."""

KEEPS_PART = frozenset({Outcome.EVICTED, Outcome.KILLED})
"""Outcomes of a payload that was stopped: what it has written is stored within closer limits."""

_IDLE = (SlotState.CLAIMED, Activity.IDLE)
_VACATING = (SlotState.PREEMPTING, Activity.VACATING)
_KILLING = (SlotState.PREEMPTING, Activity.KILLING)
_NO_SLOT = None

SLOT_STATES: dict[Stage, frozenset[tuple[SlotState, Activity] | None]] = {
    Stage.PREPARING: frozenset({_IDLE}),
    Stage.STARTING: frozenset({_IDLE}),
    Stage.RUNNING: frozenset((SlotState.CLAIMED, activity) for activity in RUNNING),
    Stage.SUSPENDED: frozenset({(SlotState.CLAIMED, Activity.SUSPENDED)}),
    Stage.STOPPING: frozenset({_VACATING}),
    # A payload that has not started is killed at once, even if its slot grants vacate time.
    Stage.KILLING: frozenset({_VACATING, _KILLING}),
    Stage.STORING: frozenset({_NO_SLOT}),
    Stage.REPORTING: frozenset({_NO_SLOT}),
}
"""The legal states of the attempt's slot in each stage."""


class IllegalStepError(StateConflictError):
    """The step is illegal in the attempt's stage; nothing has changed."""

    def __init__(self, key: AttemptKey, stage: Stage, step: Step) -> None:
        super().__init__(f"attempt {key} is {stage}: it cannot be {step}")
        self.key = key
        self.stage = stage
        self.step = step


@dataclass(frozen=True, slots=True)
class Ending:
    """Outcome and reason of an attempt's end; `hold` = the policy of its slot wants the job held.

    `memory_limit_mib` = the memory limit that ended it; 0 = none.
    """

    outcome: Outcome
    reason: str = ""
    hold: JobHold | None = None
    memory_limit_mib: int = 0


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt.

    `retry_boot_s`: next try to store the output. `report_boot_s`: when a new state is reported at the latest.
    `clock_boot_s`: start of the present running or suspended time. `reported`: the last state that was sent.
    `plug_end_boot_s`: until when a failed payload keeps its slot; None = not plugged.
    """

    job: GrantedJob
    lease_end_boot_s: float
    stage: Stage = Stage.PREPARING
    ending: Ending | None = None
    started: Now | None = None
    ended: Now | None = None
    clock_boot_s: float | None = None
    run_s: float = 0.0
    suspended_s: float = 0.0
    exit_code: int | None = None
    signal: int | None = None
    usage: Usage = NOTHING_USED
    files: tuple[ReportedOutput, ...] = ()
    retry_boot_s: float | None = None
    store_failures: int = 0
    report_boot_s: float = 0.0
    reported: ReportedState | None = None
    plug_end_boot_s: float | None = None

    @property
    def key(self) -> AttemptKey:
        """Job and number of the attempt."""
        return self.job.key

    def step(self, step: Step, **changes: Any) -> Attempt:
        """Return the attempt after a step, with `changes`; raises IllegalStepError."""
        stage = TRANSITIONS.get((self.stage, step))
        if stage is None:
            raise IllegalStepError(self.key, self.stage, step)
        return replace(self, stage=stage, **changes)

    def clocked(self, now: Now) -> Attempt:
        """Return the attempt with the time since `clock_boot_s` added to its running or suspended time."""
        if self.clock_boot_s is None:
            return self
        passed = max(0.0, now.boot_s - self.clock_boot_s)
        if self.stage is Stage.SUSPENDED:
            return replace(self, suspended_s=self.suspended_s + passed, clock_boot_s=now.boot_s)
        return replace(self, run_s=self.run_s + passed, clock_boot_s=now.boot_s)

    def after_exit(self, exited: PayloadExited, now: Now) -> Attempt:
        """Return the attempt after the end of its payload, with its clock stopped."""
        return replace(
            self.clocked(now),
            clock_boot_s=None,
            exit_code=exited.exit_code,
            signal=exited.signal,
            usage=exited.usage,
        )

    def wall_end_boot_s(self) -> float | None:
        """Return when the job's wall time ends if it goes on running; None = no limit or not running."""
        limit = self.job.description.wall_time
        if limit is None or self.stage is not Stage.RUNNING or self.clock_boot_s is None:
            return None
        return self.clock_boot_s + limit.total_seconds() - self.run_s

    def is_past_lease(self, now: Now) -> bool:
        """Whether its payload has to be dead, because its lease ends within the margin."""
        return self.lease_end_boot_s <= now.boot_s

    def is_out_of_time(self, now: Now) -> bool:
        """Whether it has run longer than its job's wall time."""
        wall_end = self.wall_end_boot_s()
        return wall_end is not None and wall_end <= now.boot_s

    @property
    def is_plugged(self) -> bool:
        """Whether its failed payload keeps its slot."""
        return self.plug_end_boot_s is not None

    @property
    def leaves_part(self) -> bool:
        """Whether its payload was stopped, so that its output is partial."""
        return self.ending is not None and self.ending.outcome in KEEPS_PART

    @property
    def is_killed(self) -> bool:
        """Whether its payload is gone by a kill: nothing of it goes on but storing what it has written."""
        return self.stage is Stage.STORING and self.ending is not None and self.ending.outcome is Outcome.KILLED

    @property
    def report_state(self) -> ReportedState | None:
        """The state to report; None = its stage is not reported."""
        if self.is_killed:
            return None
        return REPORTED_STATES.get(self.stage) if not self.is_plugged else ReportedState.PLUGGED

    def unreported_state(self) -> ReportedState | None:
        """Return the state that has not been reported yet; None = nothing new."""
        shown = self.report_state
        if shown is self.reported or (shown is ReportedState.RUNNING and self.ending is not None):
            return None
        return shown

    @property
    def is_given_back(self) -> bool:
        """Whether it has ended in such a way that its job returns to the queue."""
        given_back = self.ending is not None and self.ending.outcome in (Outcome.EVICTED, Outcome.DECLINED)
        return given_back and self.stage is Stage.REPORTING

    def is_about_to_end(self, now: Now) -> bool:
        """Whether its payload has just ended, so that its outcome is near."""
        return self.stage is Stage.STORING and now.boot_s < self.report_boot_s

    def report(self) -> Report:
        """Return the report of its present state."""
        state = self.report_state
        assert state is not None, "the stage is reported"
        ended = state is ReportedState.DONE
        exited = ended or state is ReportedState.PLUGGED
        ending = self.ending or Ending(Outcome.EXITED)
        return Report(
            key=self.key,
            state=state,
            outcome=ending.outcome if ended else None,
            exit_code=self.exit_code if exited else None,
            signal=self.signal if exited else None,
            reason=ending.reason if ended else "",
            started=self.started.utc if self.started else None,
            ended=self.ended.utc if self.ended else None,
            usage=self.usage,
            wall_s=self.run_s,
            suspended_s=self.suspended_s,
            output_files=self.files if ended else (),
            hold=ending.hold if ended else None,
            memory_limit_mib=ending.memory_limit_mib if ended else 0,
            traceparent=self.job.traceparent if ended else "",
        )


class PilotAttempts:
    """The attempts of one pilot."""

    def __init__(self) -> None:
        self._under_way: dict[AttemptKey, Attempt] = {}
        self._ended: dict[AttemptKey, Attempt] = {}
        self._unreported: dict[AttemptKey, Attempt] = {}

    def __len__(self) -> int:
        return len(self._under_way) + len(self._ended)

    def __iter__(self) -> Iterator[Attempt]:
        return iter((*self._ended.values(), *self._under_way.values()))

    def __getitem__(self, key: AttemptKey) -> Attempt:
        return self._under_way.get(key) or self._ended[key]

    def get(self, key: AttemptKey) -> Attempt | None:
        """Return an attempt; None = unknown."""
        return self._under_way.get(key) or self._ended.get(key)

    def under_way(self) -> tuple[Attempt, ...]:
        """Return the attempts that have not ended."""
        return tuple(self._under_way.values())

    def unreported_ends(self) -> Iterator[Attempt]:
        """Yield the ended attempts that are not reported, in order of their ends."""
        return iter(self._unreported.values())

    def put(self, attempt: Attempt) -> None:
        """Store an attempt."""
        key = attempt.key
        if attempt.stage is not Stage.REPORTING:
            self._under_way[key] = attempt
            return
        self._under_way.pop(key, None)
        self._ended[key] = attempt
        if attempt.unreported_state() is None:
            self._unreported.pop(key, None)
        else:
            self._unreported[key] = attempt

    def remove_ended(self, key: AttemptKey) -> None:
        """Remove an ended attempt."""
        self._ended.pop(key, None)
        self._unreported.pop(key, None)


def plug_end_boot_s(exited: PayloadExited, attempt: Attempt, plug_s: float) -> float | None:
    """Return until when a payload that failed by itself keeps its slot; None = it has not failed."""
    started, success = attempt.started, attempt.job.description.success_exit_code or 0
    has_failed = exited.exit_code != success or exited.signal is not None
    if started is None or not has_failed or exited.limit or exited.fault:
        return None
    return started.boot_s + plug_s
