"""One attempt's way through the pilot: its stages and every legal step between them.

Rules
-----
Every change of an attempt's stage goes through `Attempt.step`; a step that the table lacks is an error and changes
nothing. When a step is taken is decided by `payloads`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from pilotage.errors import StateConflictError
from pilotage_pilot.core.events import PayloadExited
from pilotage_pilot.core.jobs import (
    NOTHING_USED,
    AttemptKey,
    GrantedJob,
    HoldWish,
    Outcome,
    Report,
    ReportedState,
    StoredFile,
    Usage,
)
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.slot_states import RUNNING, Activity, SlotState


class Stage(StrEnum):
    """Where an attempt is on its way through the pilot."""

    PREPARING = "preparing"
    STARTING = "starting"
    RUNNING = "running"
    SUSPENDED = "suspended"
    STOPPING = "stopping"
    KILLING = "killing"
    STORING = "storing"
    REPORTING = "reporting"


class Step(StrEnum):
    """What moves an attempt on."""

    PREPARED = "prepared"
    STARTED = "started"
    NOT_STARTED = "not started"
    SUSPENDED = "suspended"
    CONTINUED = "continued"
    STOP_ORDERED = "stop ordered"
    KILL_ORDERED = "kill ordered"
    LEFT_FILES = "left files"
    LEFT_NOTHING = "left nothing"
    STORED = "stored"
    ABANDONED = "abandoned"


UNSTARTED = frozenset({Stage.PREPARING, Stage.STARTING})
"""Stages in which there is no payload yet."""

STARTED = frozenset({Stage.RUNNING, Stage.SUSPENDED, Stage.STOPPING, Stage.KILLING})
"""Stages in which there may be a process."""

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
    # A kill that was ordered while the payload was being made ready meets it on its way.
    (Stage.KILLING, Step.PREPARED): Stage.REPORTING,
    (Stage.KILLING, Step.NOT_STARTED): Stage.REPORTING,
    (Stage.KILLING, Step.STARTED): Stage.KILLING,
    (Stage.STORING, Step.STORED): Stage.REPORTING,
    (Stage.STORING, Step.ABANDONED): Stage.REPORTING,
}
"""Every legal step: stage and step → the stage after."""

SHOWN_STATES = {
    Stage.RUNNING: ReportedState.RUNNING,
    Stage.SUSPENDED: ReportedState.SUSPENDED,
    Stage.STORING: ReportedState.COMPLETING,
    Stage.REPORTING: ReportedState.DONE,
}
"""What the server is told of a stage; the others are not worth a word."""


KEEPS_OUTPUT = frozenset({Outcome.EXITED, Outcome.LIMIT_EXCEEDED})
"""Outcomes whose files are the job's result."""

_IDLE = (SlotState.CLAIMED, Activity.IDLE)
_VACATING = (SlotState.PREEMPTING, Activity.VACATING)
_KILLING = (SlotState.PREEMPTING, Activity.KILLING)
_NO_SLOT = None

SLOT_SHOWS: dict[Stage, frozenset[tuple[SlotState, Activity] | None]] = {
    Stage.PREPARING: frozenset({_IDLE}),
    Stage.STARTING: frozenset({_IDLE}),
    Stage.RUNNING: frozenset((SlotState.CLAIMED, activity) for activity in RUNNING),
    Stage.SUSPENDED: frozenset({(SlotState.CLAIMED, Activity.SUSPENDED)}),
    Stage.STOPPING: frozenset({_VACATING}),
    # Who has not started yet is not asked to end itself, whatever time he has for that.
    Stage.KILLING: frozenset({_VACATING, _KILLING}),
    Stage.STORING: frozenset({_NO_SLOT}),
    Stage.REPORTING: frozenset({_NO_SLOT}),
}
"""What the slot of an attempt may show in each stage."""


class IllegalStepError(StateConflictError):
    """The attempt's stage has no such step; nothing has changed."""

    def __init__(self, key: AttemptKey, stage: Stage, step: Step) -> None:
        super().__init__(f"attempt {key} is {stage}: it cannot be {step}")
        self.key = key
        self.stage = stage
        self.step = step


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ends, and why, for people; `hold` = its slot's policy wants the job held."""

    outcome: Outcome
    reason: str = ""
    hold: HoldWish | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt at one moment; times ending in `_boot_s` are on the boot clock.

    `retry_boot_s` is when storing is tried again, None = it is not. `report_boot_s` is when its stage has to be told at
    the latest, if there is anything to tell. `clock_boot_s` is since when it runs or is suspended. `told` is the last
    state that was sent to the server. `plug_end_boot_s` is until when a payload that has failed keeps its slot, None =
    none does.
    """

    job: GrantedJob
    lease_end_boot_s: float
    stage: Stage = Stage.PREPARING
    ending: Ending | None = None
    started: Moment | None = None
    ended: Moment | None = None
    clock_boot_s: float | None = None
    run_s: float = 0.0
    suspended_s: float = 0.0
    exit_code: int | None = None
    signal: int | None = None
    usage: Usage = NOTHING_USED
    files: tuple[StoredFile, ...] = ()
    retry_boot_s: float | None = None
    store_failures: int = 0
    report_boot_s: float = 0.0
    told: ReportedState | None = None
    plug_end_boot_s: float | None = None

    @property
    def key(self) -> AttemptKey:
        """Which attempt of which job it is."""
        return self.job.key

    def step(self, step: Step, **changes: Any) -> Attempt:
        """Return the attempt one step on, with `changes`; raises IllegalStepError."""
        stage = TRANSITIONS.get((self.stage, step))
        if stage is None:
            raise IllegalStepError(self.key, self.stage, step)
        return replace(self, stage=stage, **changes)

    def clocked(self, now: Moment) -> Attempt:
        """Return the attempt with the time since the clock last turned added to where it belongs."""
        if self.clock_boot_s is None:
            return self
        passed = max(0.0, now.boot_s - self.clock_boot_s)
        if self.stage is Stage.SUSPENDED:
            return replace(self, suspended_s=self.suspended_s + passed, clock_boot_s=now.boot_s)
        return replace(self, run_s=self.run_s + passed, clock_boot_s=now.boot_s)

    def after_exit(self, exited: PayloadExited, now: Moment) -> Attempt:
        """Return the attempt whose payload is gone: its clocks stand still."""
        return replace(
            self.clocked(now),
            clock_boot_s=None,
            exit_code=exited.exit_code,
            signal=exited.signal,
            usage=exited.usage,
        )

    def wall_end_boot_s(self) -> float | None:
        """Return when the job's own wall time is over if it goes on running; None = no limit, or not running."""
        limit = self.job.description.wall_time
        if limit is None or self.stage is not Stage.RUNNING or self.clock_boot_s is None:
            return None
        return self.clock_boot_s + limit.total_seconds() - self.run_s

    def is_out_of_time(self, now: Moment) -> bool:
        """Whether it runs and has done so for longer than its job's own wall time."""
        wall_end = self.wall_end_boot_s()
        return wall_end is not None and wall_end <= now.boot_s

    @property
    def is_plugged(self) -> bool:
        """Whether its payload has failed, and keeps its slot for a while."""
        return self.plug_end_boot_s is not None

    @property
    def shown(self) -> ReportedState | None:
        """The state that the server is told; None = its stage is not worth a word."""
        return SHOWN_STATES.get(self.stage) if not self.is_plugged else ReportedState.PLUGGED

    def untold(self) -> ReportedState | None:
        """Return the state that the server has yet to be told; None = nothing new."""
        shown = self.shown
        if shown is self.told or (shown is ReportedState.RUNNING and self.ending is not None):
            return None
        return shown

    @property
    def is_given_back(self) -> bool:
        """Whether it has ended so that its job goes to another slot."""
        given_back = self.ending is not None and self.ending.outcome in (Outcome.EVICTED, Outcome.DECLINED)
        return given_back and self.stage is Stage.REPORTING

    def is_about_to_end(self, now: Moment) -> bool:
        """Whether its payload has just ended, so that its outcome may be known in a moment."""
        return self.stage is Stage.STORING and now.boot_s < self.report_boot_s

    def report(self) -> Report:
        """Return what there is to tell of it now."""
        state = self.shown
        assert state is not None, "there is something to tell"
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
        )
