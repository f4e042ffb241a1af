"""The attempts that a pilot holds: how each goes on, when it is stopped, and what its slot shows meanwhile.

Rules
-----
An attempt leaves this book only when the server has taken (or refused) its outcome. Leases are counted on the
boot clock from the sending of the request or heartbeat that gave them. Nothing here talks to the server.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pilotage_pilot.core import instructions as ins
from pilotage_pilot.core.attempts import (
    KEEPS_OUTPUT,
    LEASED,
    SLOT_SHOWS,
    STARTED,
    UNSTARTED,
    Attempt,
    Ending,
    Stage,
    Step,
)
from pilotage_pilot.core.events import FailureKind, OutputFailed, OutputStored, PayloadExited, StartFailed
from pilotage_pilot.core.jobs import AttemptKey, GrantedJob, Outcome, ReportedState
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.rules import Rules, backoff_s
from pilotage_pilot.core.slots import Partition

Instructions = list[ins.Instruction]


class Payloads:
    """The attempts of one pilot, with the slots that they are in."""

    def __init__(self, partition: Partition, rules: Rules) -> None:
        self.partition = partition
        self._rules = rules
        self._attempts: dict[AttemptKey, Attempt] = {}
        self._node_failures = 0

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(tuple(self._attempts.values()))

    def get(self, key: AttemptKey) -> Attempt | None:
        """Return an attempt; None = the pilot does not hold it (any more)."""
        return self._attempts.get(key)

    @property
    def working(self) -> bool:
        """Whether any attempt is not at its end yet."""
        return any(attempt.stage is not Stage.REPORTING for attempt in self)

    @property
    def node_fails_jobs(self) -> bool:
        """Whether too many starts in a row failed on the node's side."""
        return self._node_failures >= self._rules.failed_starts

    def leases(self) -> tuple[AttemptKey, ...]:
        """Return the attempts whose leases are to be renewed."""
        return tuple(attempt.key for attempt in self if attempt.stage in LEASED)

    def grant(self, job: GrantedJob, sent_boot_s: float, now: Moment) -> Instructions:
        """Take a job whose request was sent at `sent_boot_s`, or decline it where it does not fit."""
        if job.key in self._attempts:
            return []
        end = self._lease_end(job.lease_s, sent_boot_s)
        if end <= now.boot_s:
            return self.decline(job, "its lease had ended when it arrived", now)
        slot = self.partition.carve(job.key, job.amounts, now)
        if slot is None:
            return self.decline(job, f"it asks {job.amounts}, free is {self.partition.free}", now)
        self._attempts[job.key] = Attempt(job, end)
        return [ins.PrepareJob(job, slot)]

    def decline(self, job: GrantedJob, reason: str, now: Moment) -> Instructions:
        """Give a job back before its start."""
        ending = Ending(Outcome.DECLINED, reason)
        self._attempts[job.key] = Attempt(job, now.boot_s, Stage.REPORTING, ending, ended=now)
        return []

    def renew(self, key: AttemptKey, lease_s: float, sent_boot_s: float) -> None:
        """Let a lease go on from the sending of the heartbeat that renewed it."""
        attempt = self._attempts.get(key)
        if attempt is not None:
            self._put(replace(attempt, lease_end_boot_s=self._lease_end(lease_s, sent_boot_s)))

    def _lease_end(self, lease_s: float, sent_boot_s: float) -> float:
        return sent_boot_s + lease_s - self._rules.margin_of(lease_s)

    def prepared(self, key: AttemptKey, now: Moment) -> Instructions:
        """Start the payload whose folder is ready, unless it is not wanted any more."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.stage not in (Stage.PREPARING, Stage.KILLING):
            return []
        attempt = attempt.step(Step.PREPARED)
        if attempt.stage is Stage.REPORTING:
            return self._finish(attempt, now)
        self._move(attempt, now)
        return [ins.StartPayload(key)]

    def start_failed(self, event: StartFailed, now: Moment) -> Instructions:
        """End an attempt that has no payload and will have none."""
        attempt = self._attempts.get(event.key)
        if attempt is None or attempt.stage not in UNSTARTED | {Stage.KILLING}:
            return []
        if attempt.ending is None and event.outcome is Outcome.START_FAILED:
            self._node_failures += 1
        ending = attempt.ending or Ending(event.outcome, event.reason)
        return self._finish(attempt.step(Step.NOT_STARTED, ending=ending), now)

    def started(self, key: AttemptKey, now: Moment) -> Instructions:
        """Note that a payload runs; kill it where that was ordered meanwhile."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.stage not in (Stage.STARTING, Stage.KILLING):
            return []
        self._node_failures = 0
        attempt = attempt.step(Step.STARTED, started=now, clock_boot_s=now.boot_s)
        self._move(attempt, now)
        return [ins.KillPayload(key)] if attempt.stage is Stage.KILLING else []

    def exited(self, event: PayloadExited, now: Moment) -> Instructions:
        """Store what a payload left, where its outcome keeps it."""
        attempt = self._attempts.get(event.key)
        if attempt is None or attempt.stage not in STARTED:
            return []
        over = Ending(Outcome.LIMIT_EXCEEDED, event.limit) if event.limit else Ending(Outcome.EXITED)
        ending = attempt.ending or over
        keeps = ending.outcome in KEEPS_OUTPUT and attempt.started is not None
        attempt = attempt.clocked(now).step(
            Step.LEFT_FILES if keeps else Step.LEFT_NOTHING,
            ending=ending,
            ended=now,
            clock_boot_s=None,
            exit_code=event.exit_code,
            signal=event.signal,
            usage=event.usage,
            kill_boot_s=None,
        )
        if not keeps:
            return self._finish(attempt, now)
        self._move(attempt, now)
        self.partition.keep_disk_only(event.key)
        return [ins.StoreOutput(event.key)]

    def stored(self, event: OutputStored, now: Moment) -> Instructions:
        """Let an attempt whose files are safe be reported."""
        attempt = self._attempts.get(event.key)
        if attempt is None or attempt.stage is not Stage.STORING or attempt.ending is None:
            return []
        reason = "; ".join(part for part in (attempt.ending.reason, event.notes) if part)
        ending = replace(attempt.ending, reason=reason)
        return self._finish(attempt.step(Step.STORED, files=event.files, ending=ending), now)

    def store_failed(self, event: OutputFailed, now: Moment) -> Instructions:
        """Try again later, or give the job back when its output cannot be stored."""
        attempt = self._attempts.get(event.key)
        if attempt is None or attempt.stage is not Stage.STORING or attempt.ended is None:
            return []
        patient = now.boot_s - attempt.ended.boot_s < self._rules.store_patience_s
        if event.failure.kind is not FailureKind.REFUSED and patient:
            failures = attempt.store_failures + 1
            retry = now.boot_s + backoff_s(failures, event.failure.jitter)
            self._put(replace(attempt, store_failures=failures, retry_boot_s=retry))
            return []
        ending = Ending(Outcome.START_FAILED, f"its output could not be stored: {event.failure.why}")
        return self._finish(attempt.step(Step.ABANDONED, ending=ending), now)

    def stop(self, key: AttemptKey, ending: Ending, now: Moment) -> Instructions:
        """Ask a payload to end itself, and kill it when its grace is over."""
        attempt = self._attempts.get(key)
        if attempt is None:
            return []
        if attempt.stage not in (Stage.RUNNING, Stage.SUSPENDED):
            return self.kill(key, ending, now) if attempt.stage in UNSTARTED else []
        grace_end = now.boot_s + self._rules.grace_s
        stopping = attempt.clocked(now).step(Step.STOP_ORDERED, ending=ending, kill_boot_s=grace_end)
        self._move(stopping, now)
        return [ins.StopPayload(key)]

    def kill(self, key: AttemptKey, ending: Ending, now: Moment) -> Instructions:
        """End a payload, or what is done for it, at once; the first ending that was ordered stands."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.stage in (Stage.KILLING, Stage.REPORTING):
            return []
        first = ending if attempt.ending is None or attempt.stage is Stage.STORING else attempt.ending
        if attempt.stage is Stage.STORING:
            return self._finish(attempt.step(Step.ABANDONED, ending=first), now)
        attempt = attempt.clocked(now).step(Step.KILL_ORDERED, ending=first, kill_boot_s=None)
        self._move(attempt, now)
        return [ins.KillPayload(key)]

    def stop_all(self, ending: Ending, now: Moment, *, at_once: bool) -> Instructions:
        """Stop (or kill, `at_once`) every attempt whose payload has not ended."""
        act = self.kill if at_once else self.stop
        ours = [attempt.key for attempt in self if attempt.stage in UNSTARTED | STARTED]
        return [instruction for key in ours for instruction in act(key, ending, now)]

    def suspend_all(self, now: Moment) -> Instructions:
        """Suspend every payload that runs."""
        running = [attempt for attempt in self if attempt.stage is Stage.RUNNING]
        for attempt in running:
            self._move(attempt.clocked(now).step(Step.SUSPENDED), now)
        return [ins.SuspendPayload(attempt.key) for attempt in running]

    def continue_all(self, now: Moment) -> Instructions:
        """Let every suspended payload go on whose lease has not ended meanwhile."""
        ours = (attempt for attempt in self if attempt.lease_end_boot_s > now.boot_s)
        suspended = [attempt for attempt in ours if attempt.stage is Stage.SUSPENDED]
        for attempt in suspended:
            self._move(attempt.clocked(now).step(Step.CONTINUED), now)
        return [ins.ContinuePayload(attempt.key) for attempt in suspended]

    def warn(self, key: AttemptKey, left_s: float) -> Instructions:
        """Warn a payload, if it runs or is suspended."""
        attempt = self._attempts.get(key)
        alive = attempt is not None and attempt.stage in (Stage.RUNNING, Stage.SUSPENDED)
        return [ins.WarnPayload(key, left_s)] if alive else []

    def warn_all(self, left_s: float) -> Instructions:
        """Warn every payload that runs or is suspended."""
        return [warning for attempt in self for warning in self.warn(attempt.key, left_s)]

    def due(self, now: Moment) -> Instructions:
        """Do what time has made due: ended leases, passed limits, ended graces, second tries."""
        return [instruction for attempt in self for instruction in self._due_of(attempt, now)]

    def _due_of(self, attempt: Attempt, now: Moment) -> Instructions:
        if attempt.stage in UNSTARTED | STARTED and attempt.lease_end_boot_s <= now.boot_s:
            return self.kill(attempt.key, Ending(Outcome.KILLED, "its lease was not renewed in time"), now)
        if attempt.kill_boot_s is not None and attempt.kill_boot_s <= now.boot_s:
            return self.kill(attempt.key, attempt.ending or Ending(Outcome.KILLED), now)
        if attempt.retry_boot_s is not None and attempt.retry_boot_s <= now.boot_s:
            self._put(replace(attempt, retry_boot_s=None))
            return [ins.StoreOutput(attempt.key)] if attempt.stage is Stage.STORING else []
        wall_end = attempt.wall_end_boot_s()
        if wall_end is not None and wall_end <= now.boot_s:
            limit = attempt.job.description.wall_time
            ending = Ending(Outcome.LIMIT_EXCEEDED, f"it ran longer than its wall time of {limit}")
            return self.stop(attempt.key, ending, now)
        return []

    def alarms(self) -> Iterator[float]:
        """Yield the times, on the boot clock, at which `due` may have something to do."""
        for attempt in self._attempts.values():
            if attempt.stage in UNSTARTED | STARTED and attempt.stage is not Stage.KILLING:
                yield attempt.lease_end_boot_s
            for moment in (attempt.kill_boot_s, attempt.retry_boot_s, attempt.wall_end_boot_s()):
                if moment is not None:
                    yield moment

    def told(self, key: AttemptKey, state: ReportedState | None) -> None:
        """Note what was last sent of an attempt; None = the message was lost."""
        attempt = self._attempts.get(key)
        if attempt is not None:
            self._put(replace(attempt, told=state))

    def acknowledged(self, key: AttemptKey) -> None:
        """Forget an attempt whose outcome the server has taken or refused."""
        attempt = self._attempts.get(key)
        if attempt is not None and attempt.stage is Stage.REPORTING:
            del self._attempts[key]

    def _finish(self, attempt: Attempt, now: Moment) -> Instructions:
        ended = attempt.ended or now
        self._put(replace(attempt, ended=ended, kill_boot_s=None, retry_boot_s=None, report_boot_s=None))
        self.partition.release(attempt.key)
        return [ins.ForgetAttempt(attempt.key)]

    def _move(self, attempt: Attempt, now: Moment) -> None:
        due = now.boot_s + self._rules.report_delay_s
        self._put(replace(attempt, report_boot_s=due if attempt.untold() is not None else None))
        self.partition.show(attempt.key, *SLOT_SHOWS[attempt.stage], now)

    def _put(self, attempt: Attempt) -> None:
        self._attempts[attempt.key] = attempt

    def validate(self) -> None:
        """Raise AssertionError where attempts and slots do not go together."""
        self.partition.validate()
        for attempt in self:
            slot = self.partition.of(attempt.key)
            if attempt.stage is Stage.REPORTING:
                assert slot is None, f"{attempt.key} has ended and has a slot still"
                assert attempt.ending is not None, f"{attempt.key} has ended without a reason"
            else:
                assert slot is not None, f"{attempt.key} is {attempt.stage} without a slot"
                assert (slot.state, slot.activity) == SLOT_SHOWS[attempt.stage], f"{slot.name} shows a wrong state"
            assert (attempt.stage is Stage.STOPPING) == (attempt.kill_boot_s is not None), f"{attempt.key}: grace"
