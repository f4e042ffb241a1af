"""The attempts of a pilot from the grant to the reported outcome.

Rules
-----
An attempt is removed only when the server has accepted or refused its outcome. Leases count on the boot clock from the
sending of the request or heartbeat that gave them. The pilot kills a payload a margin before its lease ends. Half a
margin later the watchdog does it, if the pilot has not. To stop a payload its slot is ordered to; the slot's order
comes back and is applied here.
Where jobs of one owner run at a time, an attempt belongs to its owner until its folder is gone.
Ends are reported at once. Storing output is retried until `store_timeout_s`. A payload that was stopped keeps what it
had written; that is reported with its end, and its lease is not renewed for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, assert_never

from pilotage.values.accounts import OwnerId
from pilotage.values.attempts import AttemptKey, Outcome
from pilotage_pilot.core import instructions as ins
from pilotage_pilot.core.attempts.attempt import (
    KEEPS_OUTPUT,
    KEEPS_PART,
    SLOT_STATES,
    STARTED,
    UNSTARTED,
    Attempt,
    Ending,
    PilotAttempts,
    Stage,
    Step,
    plug_end_boot_s,
)
from pilotage_pilot.core.attempts.limit_reasons import wall_time_reason
from pilotage_pilot.core.events import FailureKind, OutputFailed, OutputStored, PayloadExited, StartFailed
from pilotage_pilot.core.model import GrantedJob, Now, ReportedState
from pilotage_pilot.core.node.node_slots import JobOrder, NodeSlots
from pilotage_pilot.core.rules import PilotRules
from pilotage_pilot.core.slots.events import ContinueJob, KillJob, StopJob, SuspendJob

Instructions = list[ins.Instruction]

_SIGKILL = 9
_STORE_PART_TIMEOUT_S = 60.0
"""How long storing partial output is retried: a job that was stopped waits for it to be queued again."""

_LEASE_PASSED = Ending(Outcome.KILLED, "its lease was not renewed in time")


class PayloadEnds:
    """The ends of attempts: their payloads are gone, or were never started."""

    def __init__(self, attempts: PilotAttempts, slots: NodeSlots, rules: PilotRules) -> None:
        self._attempts = attempts
        self._slots = slots
        self._rules = rules
        self.leftovers: dict[AttemptKey, OwnerId] = {}
        """The owners of ended attempts whose folders may still exist, if jobs of one owner run at a time."""

    def exited(self, event: PayloadExited, now: Now) -> Instructions:
        """Store the output if the outcome keeps it; plug a payload that has failed too fast."""
        attempt = self._attempts.get(event.key)
        if attempt is None or attempt.stage not in STARTED:
            return []
        if event.signal == _SIGKILL and attempt.is_past_lease(now):
            # The watchdog has killed it: the pilot was stopped, and the end says nothing about the job.
            attempt = replace(attempt, ending=attempt.ending or _LEASE_PASSED)
        kept = plug_end_boot_s(event, attempt, self._rules.plug_s) if attempt.ending is None else None
        attempt = attempt.after_exit(event, now)
        if kept is not None and kept > now.boot_s:
            self._attempts.put(replace(attempt, plug_end_boot_s=kept, report_boot_s=self._rules.report_by_boot_s(now)))
            return []
        over = Ending(Outcome.EXITED)
        if event.limit:
            over = Ending(Outcome.LIMIT_EXCEEDED, event.limit, memory_limit_mib=event.memory_limit_mib)
        if event.fault:
            over = Ending(Outcome.REFUSED_BY_JOB, event.fault)
        return self._exited(attempt, attempt.ending or over, now)

    def unplug(self, attempt: Attempt, now: Now) -> Instructions:
        """End a plugged attempt."""
        return self._exited(replace(attempt, plug_end_boot_s=None), Ending(Outcome.EXITED), now)

    def _exited(self, attempt: Attempt, ending: Ending, now: Now) -> Instructions:
        if ending.outcome not in KEEPS_OUTPUT | KEEPS_PART or attempt.started is None:
            return self.finish(attempt, Step.LEFT_NOTHING, now, ending=ending)
        report_boot_s = self._rules.report_by_boot_s(now)
        attempt = attempt.step(Step.LEFT_FILES, ending=ending, ended=now, report_boot_s=report_boot_s)
        self._attempts.put(attempt)
        self._slots.job_ended(attempt.key, now, keeps_disk_mib=attempt.job.amounts.disk_mib)
        return [ins.StoreOutput(attempt.key, is_partial=attempt.leaves_part)]

    def stored(self, event: OutputStored, now: Now) -> Instructions:
        """End an attempt whose output is stored."""
        attempt = self._attempts.get(event.key)
        if attempt is None or attempt.stage is not Stage.STORING or attempt.ending is None:
            return []
        ending = attempt.ending
        if event.notes:
            ending = replace(ending, reason="; ".join(filter(None, (ending.reason, event.notes))))
        return self.finish(attempt, Step.STORED, now, ending=ending, files=event.files)

    def store_failed(self, event: OutputFailed, now: Now) -> Instructions:
        """Schedule a retry, or end the attempt: with OUTPUT_LOST, or without its partial output."""
        attempt = self._attempts.get(event.key)
        if attempt is None or attempt.stage is not Stage.STORING or attempt.ended is None or attempt.ending is None:
            return []
        timeout_s = self._rules.store_timeout_s
        if attempt.leaves_part:
            timeout_s = min(timeout_s, _STORE_PART_TIMEOUT_S)
        may_retry = now.boot_s - attempt.ended.boot_s < timeout_s
        if event.failure.kind is not FailureKind.REFUSED and may_retry:
            failures = attempt.store_failures + 1
            retry = now.boot_s + event.failure.pause_s(failures)
            self._attempts.put(replace(attempt, store_failures=failures, retry_boot_s=retry))
            return []
        why = f"could not be stored: {event.failure.why}"
        ending = Ending(Outcome.OUTPUT_LOST, f"it {why}")
        if attempt.leaves_part:
            ending = replace(attempt.ending, reason=f"{attempt.ending.reason}; its output {why}".removeprefix("; "))
        return self.finish(attempt, Step.ABANDONED, now, ending=ending)

    def finish(self, attempt: Attempt, step: Step, now: Now, **changes: Any) -> Instructions:
        """Take the last step of an attempt: free its slot, remove its folder, report it."""
        changes |= {"ended": attempt.ended or now, "retry_boot_s": None, "report_boot_s": now.boot_s}
        self._attempts.put(attempt.step(step, **changes))
        self._slots.job_ended(attempt.key, now)
        self._slots.release_disk(attempt.key)
        if self._rules.has_one_owner:
            self.leftovers[attempt.key] = attempt.job.account.owner_id
        return [ins.ForgetAttempt(attempt.key, reports_removal=self._rules.has_one_owner)]


class Payloads:
    """The attempts of one pilot and their slots; `ends` handles those whose payloads are gone."""

    def __init__(self, slots: NodeSlots, rules: PilotRules) -> None:
        self.slots = slots
        self._rules = rules
        self._attempts = PilotAttempts()
        self.ends = PayloadEnds(self._attempts, slots, rules)
        self._node_failures = 0
        self.has_run_any = False

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[Attempt]:
        return iter(self._attempts)

    def get(self, key: AttemptKey) -> Attempt | None:
        """Return an attempt; None = unknown."""
        return self._attempts.get(key)

    @property
    def owner(self) -> OwnerId | None:
        """The owner of the attempts that have not ended or whose folders still exist; of several, that of any."""
        attempt = next(iter(self._attempts.under_way()), None)
        return attempt.job.account.owner_id if attempt is not None else next(iter(self.ends.leftovers.values()), None)

    def folder_removed(self, key: AttemptKey) -> None:
        """Record that the folder of an ended attempt is gone."""
        self.ends.leftovers.pop(key, None)

    @property
    def working(self) -> bool:
        """Whether any attempt has not ended."""
        return bool(self._attempts.under_way())

    @property
    def node_fails_jobs(self) -> bool:
        """Whether too many starts in a row failed on the node's side."""
        return self._node_failures >= self._rules.failed_starts

    def leases(self) -> tuple[AttemptKey, ...]:
        """Return the attempts whose leases have to be renewed."""
        return tuple(attempt.key for attempt in self._attempts.under_way() if not attempt.is_killed)

    # From the grant to the payload ------------------------------------------------------------------------------

    def begin(self, prepare: ins.PrepareJob, lease_end_boot_s: float) -> Instructions:
        """Add the attempt of a job that has entered its slot."""
        self._attempts.put(Attempt(prepare.job, lease_end_boot_s))
        return [prepare]

    def give_back(self, job: GrantedJob, ending: Ending, now: Now) -> None:
        """Return a job that has not entered a slot."""
        self._attempts.put(Attempt(job, now.boot_s, Stage.REPORTING, ending, ended=now, report_boot_s=now.boot_s))

    def renew(self, key: AttemptKey, lease_end_boot_s: float) -> Instructions:
        """Extend a lease."""
        attempt = self._attempts.get(key)
        if attempt is None:
            return []
        attempt = replace(attempt, lease_end_boot_s=lease_end_boot_s)
        self._attempts.put(attempt)
        return [self._deadline(attempt)] if attempt.stage in UNSTARTED | STARTED else []

    def _deadline(self, attempt: Attempt) -> ins.SetDeadline:
        rest_s = self._rules.margin_of(attempt.job.lease_s) / 2
        return ins.SetDeadline(attempt.key, attempt.lease_end_boot_s + rest_s)

    def lease_end_boot_s(self, lease_s: float, sent_boot_s: float) -> float:
        """Return when a payload is killed whose lease was granted or renewed by a call sent then."""
        return sent_boot_s + lease_s - self._rules.margin_of(lease_s)

    def prepared(self, key: AttemptKey, now: Now) -> Instructions:
        """Start the payload whose folder is ready, unless a kill was ordered."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.stage not in (Stage.PREPARING, Stage.KILLING):
            return []
        if attempt.stage is Stage.KILLING:
            return self.ends.finish(attempt, Step.PREPARED, now)
        if attempt.is_past_lease(now):
            return self.ends.finish(attempt, Step.NOT_STARTED, now, ending=attempt.ending or _LEASE_PASSED)
        self._move(attempt, Step.PREPARED, now)
        return [self._deadline(attempt), ins.StartPayload(key)]

    def start_failed(self, event: StartFailed, now: Now) -> Instructions:
        """End an attempt that could not be started."""
        attempt = self._attempts.get(event.key)
        if attempt is None or attempt.stage not in UNSTARTED | {Stage.KILLING}:
            return []
        if attempt.ending is None and event.outcome is Outcome.START_FAILED:
            self._node_failures += 1
        ending = attempt.ending or Ending(event.outcome, event.reason)
        return self.ends.finish(attempt, Step.NOT_STARTED, now, ending=ending)

    def started(self, key: AttemptKey, now: Now, at: Now) -> Instructions:
        """Record the start of a payload at a time before; kill it if that was ordered meanwhile."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.stage not in (Stage.STARTING, Stage.KILLING):
            return []
        self._node_failures = 0
        self.has_run_any = True
        self._move(attempt, Step.STARTED, now, started=at, clock_boot_s=at.boot_s)
        if attempt.stage is Stage.KILLING:
            return [ins.KillPayload(key)]
        return self.apply_orders(self.slots.job_started(key, now), now)

    def exited(self, event: PayloadExited, now: Now) -> Instructions:
        """Handle the end of a payload, and its start if that was not known."""
        attempt = self._attempts.get(event.key)
        if event.began is not None and attempt is not None and attempt.started is None:
            self.started(event.key, now, event.began)  # what it orders comes too late
        return self.ends.exited(event, now)

    # Orders -----------------------------------------------------------------------------------------------------

    def stop(self, key: AttemptKey, ending: Ending, now: Now) -> Instructions:
        """Stop a payload, with its grace time before the kill; the first ordered ending stays."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.stage not in UNSTARTED | STARTED:
            return []
        self._attempts.put(replace(attempt, ending=attempt.ending or ending))
        return self.apply_orders(self.slots.kill(key, ending.reason, self._rules.grace_s, now), now)

    def kill(self, key: AttemptKey, ending: Ending, now: Now) -> Instructions:
        """Kill a payload or stop its preparation; the first ordered ending stays."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.stage in (Stage.KILLING, Stage.REPORTING):
            return []
        if attempt.stage is Stage.STORING:
            return self.ends.finish(attempt, Step.ABANDONED, now, ending=ending)
        self._attempts.put(replace(attempt, ending=attempt.ending or ending))
        return self.apply_orders(self.slots.kill(key, ending.reason, None, now), now)

    def stop_all(self, ending: Ending, now: Now, *, at_once: bool) -> Instructions:
        """Stop every attempt whose payload has not ended; kill it if `at_once`."""
        act = self.kill if at_once else self.stop
        ours = [attempt.key for attempt in self._attempts.under_way() if attempt.stage in UNSTARTED | STARTED]
        return [instruction for key in ours for instruction in act(key, ending, now)]

    def drain(self, reason: str, now: Now) -> Instructions:
        """Drain the slots; plugged attempts end at once."""
        plugged = [attempt for attempt in self._attempts.under_way() if attempt.is_plugged]
        ends = [instruction for attempt in plugged for instruction in self.ends.unplug(attempt, now)]
        return ends + self.apply_orders(self.slots.drain(now, reason), now)

    def apply_orders(self, orders: Iterable[JobOrder], now: Now) -> Instructions:
        """Apply the orders of slots to their attempts."""
        return [instruction for order in orders for instruction in self._apply_order(order, now)]

    def _apply_order(self, order: JobOrder, now: Now) -> Instructions:
        attempt, effect = self._attempts[order.key], order.effect
        match effect:
            case SuspendJob():
                self._move(attempt.clocked(now), Step.SUSPENDED, now)
                return [ins.SuspendPayload(attempt.key)] if not attempt.is_plugged else []
            case ContinueJob():
                self._move(attempt.clocked(now), Step.CONTINUED, now)
                # A payload whose lease has ended meanwhile is about to be killed.
                goes_on = not attempt.is_past_lease(now) and not attempt.is_plugged
                return [ins.ContinuePayload(attempt.key)] if goes_on else []
            case StopJob(_, reason, hold) | KillJob(reason, hold):
                if attempt.stage not in UNSTARTED | STARTED - {Stage.KILLING}:
                    return []
                if attempt.is_plugged:
                    return self.ends.unplug(attempt, now)
                ending = attempt.ending or Ending(Outcome.EVICTED, reason, hold)
                gently = isinstance(effect, StopJob) and attempt.stage not in UNSTARTED
                step = Step.STOP_ORDERED if gently else Step.KILL_ORDERED
                self._move(attempt.clocked(now), step, now, ending=ending)
                return [ins.StopPayload(attempt.key) if gently else ins.KillPayload(attempt.key)]
            case _:
                assert_never(effect)

    def warn(self, key: AttemptKey, left_s: float) -> Instructions:
        """Warn a payload, if it runs or is suspended."""
        attempt = self._attempts.get(key)
        if attempt is None or attempt.is_plugged or attempt.stage not in (Stage.RUNNING, Stage.SUSPENDED):
            return []
        return [ins.WarnPayload(key, left_s)]

    def warn_all(self, left_s: float) -> Instructions:
        """Warn every payload that runs or is suspended."""
        return [warning for attempt in self._attempts.under_way() for warning in self.warn(attempt.key, left_s)]

    # Time -------------------------------------------------------------------------------------------------------

    def due(self, now: Now) -> Instructions:
        """Return what is due: ended leases, exceeded wall times, retries, ended plugs."""
        return [instruction for attempt in self._attempts.under_way() for instruction in self._due_of(attempt, now)]

    def _due_of(self, attempt: Attempt, now: Now) -> Instructions:
        if attempt.stage in UNSTARTED | STARTED and attempt.is_past_lease(now):
            return self.kill(attempt.key, _LEASE_PASSED, now)
        if attempt.retry_boot_s is not None and attempt.retry_boot_s <= now.boot_s:
            self._attempts.put(replace(attempt, retry_boot_s=None))
            stores = attempt.stage is Stage.STORING
            return [ins.StoreOutput(attempt.key, is_partial=attempt.leaves_part)] if stores else []
        if attempt.plug_end_boot_s is not None and attempt.plug_end_boot_s <= now.boot_s:
            return self.ends.unplug(attempt, now)
        if attempt.is_out_of_time(now):
            limit = attempt.job.description.wall_time
            assert limit is not None, "it has a limit"
            ending = Ending(Outcome.LIMIT_EXCEEDED, wall_time_reason(attempt.clocked(now).run_s, limit))
            return self.stop(attempt.key, ending, now)
        return []

    def alarms(self) -> Iterator[float]:
        """Yield the times, on the boot clock, at which `due` may have an effect."""
        for attempt in self._attempts.under_way():
            if attempt.stage in UNSTARTED | STARTED and attempt.stage is not Stage.KILLING:
                yield attempt.lease_end_boot_s
            for boot_s in (attempt.retry_boot_s, attempt.wall_end_boot_s(), attempt.plug_end_boot_s):
                if boot_s is not None:
                    yield boot_s

    # Reports -----------------------------------------------------------------------------------------------------

    def unreported_ends(self) -> Iterator[Attempt]:
        """Yield the ended attempts that are not reported, in order of their ends."""
        return self._attempts.unreported_ends()

    def unreported_under_way(self) -> Iterator[Attempt]:
        """Yield the other attempts with an unreported state."""
        return (attempt for attempt in self._attempts.under_way() if attempt.unreported_state() is not None)

    def mark_reported(self, key: AttemptKey, state: ReportedState | None) -> None:
        """Record the last sent state of an attempt; None = the message was lost."""
        attempt = self._attempts.get(key)
        if attempt is not None:
            self._attempts.put(replace(attempt, reported=state))

    def acknowledged(self, key: AttemptKey) -> None:
        """Remove an attempt whose outcome the server has accepted or refused."""
        self._attempts.remove_ended(key)

    def _move(self, attempt: Attempt, step: Step, now: Now, **changes: Any) -> None:
        self._attempts.put(attempt.step(step, report_boot_s=self._rules.report_by_boot_s(now), **changes))

    def validate(self) -> None:
        """Raise AssertionError if attempts and slots contradict each other."""
        self.slots.validate()
        for attempt in self:
            slot = self.slots.of(attempt.key)
            shown = None if slot is None else (slot.state, slot.activity)
            assert shown in SLOT_STATES[attempt.stage], f"{attempt.key} is {attempt.stage} in a slot that is {shown}"
            if attempt.stage is Stage.REPORTING:
                assert attempt.ending is not None, f"{attempt.key} has ended without a reason"
