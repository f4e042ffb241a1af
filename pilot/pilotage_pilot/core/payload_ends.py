"""From the end of a payload to the outcome of its attempt: what it left is stored, and then it is reported.

Rules
-----
Endings never wait: what is over is reported at once. Output is tried again as long as there is patience for it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pilotage_pilot.core import instructions as ins
from pilotage_pilot.core.attempt_book import AttemptBook
from pilotage_pilot.core.attempts import KEEPS_OUTPUT, STARTED, Attempt, Ending, Stage, Step
from pilotage_pilot.core.events import FailureKind, OutputFailed, OutputStored, PayloadExited
from pilotage_pilot.core.jobs import Outcome
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.node_slots import NodeSlots
from pilotage_pilot.core.plug import plug_end_boot_s
from pilotage_pilot.core.rules import Rules

Instructions = list[ins.Instruction]


class PayloadEnds:
    """Ends the attempts of one pilot whose payloads are gone, or never came."""

    def __init__(self, attempts: AttemptBook, slots: NodeSlots, rules: Rules) -> None:
        self._attempts = attempts
        self._slots = slots
        self._rules = rules

    def exited(self, event: PayloadExited, now: Moment) -> Instructions:
        """Store what a payload left, where its outcome keeps it, unless it has failed so fast that it is plugged."""
        attempt = self._attempts.get(event.key)
        if attempt is None or attempt.stage not in STARTED:
            return []
        kept = plug_end_boot_s(event, attempt.started, self._rules.plug_s) if attempt.ending is None else None
        attempt = attempt.after_exit(event, now)
        if kept is not None and kept > now.boot_s:
            self._attempts.put(replace(attempt, plug_end_boot_s=kept, report_boot_s=self._rules.tell_by_boot_s(now)))
            return []
        over = Ending(Outcome.LIMIT_EXCEEDED, event.limit) if event.limit else Ending(Outcome.EXITED)
        return self._exited(attempt, attempt.ending or over, now)

    def unplug(self, attempt: Attempt, now: Moment) -> Instructions:
        """Let an attempt end whose slot was kept after its payload had failed."""
        return self._exited(replace(attempt, plug_end_boot_s=None), Ending(Outcome.EXITED), now)

    def _exited(self, attempt: Attempt, ending: Ending, now: Moment) -> Instructions:
        if ending.outcome not in KEEPS_OUTPUT or attempt.started is None:
            return self.finish(attempt, Step.LEFT_NOTHING, now, ending=ending)
        report_boot_s = self._rules.tell_by_boot_s(now)
        self._attempts.put(attempt.step(Step.LEFT_FILES, ending=ending, ended=now, report_boot_s=report_boot_s))
        self._slots.job_ended(attempt.key, now, keeps_disk_mib=attempt.job.amounts.disk_mib)
        return [ins.StoreOutput(attempt.key)]

    def stored(self, event: OutputStored, now: Moment) -> Instructions:
        """Let an attempt whose files are safe be reported."""
        attempt = self._attempts.get(event.key)
        if attempt is None or attempt.stage is not Stage.STORING or attempt.ending is None:
            return []
        ending = attempt.ending
        if event.notes:
            ending = replace(ending, reason="; ".join(filter(None, (ending.reason, event.notes))))
        return self.finish(attempt, Step.STORED, now, ending=ending, files=event.files)

    def store_failed(self, event: OutputFailed, now: Moment) -> Instructions:
        """Try again later, or give the job back when its output cannot be stored."""
        attempt = self._attempts.get(event.key)
        if attempt is None or attempt.stage is not Stage.STORING or attempt.ended is None:
            return []
        patient = now.boot_s - attempt.ended.boot_s < self._rules.store_patience_s
        if event.failure.kind is not FailureKind.REFUSED and patient:
            failures = attempt.store_failures + 1
            retry = now.boot_s + event.failure.pause_s(failures)
            self._attempts.put(replace(attempt, store_failures=failures, retry_boot_s=retry))
            return []
        ending = Ending(Outcome.OUTPUT_LOST, f"it could not be stored: {event.failure.why}")
        return self.finish(attempt, Step.ABANDONED, now, ending=ending)

    def finish(self, attempt: Attempt, step: Step, now: Moment, **changes: Any) -> Instructions:
        """Let an attempt be reported after its last step: its slot is free, its folder is needed no more."""
        changes |= {"ended": attempt.ended or now, "retry_boot_s": None, "report_boot_s": now.boot_s}
        self._attempts.put(attempt.step(step, **changes))
        self._slots.job_ended(attempt.key, now)
        self._slots.files_are_safe(attempt.key)
        return [ins.ForgetAttempt(attempt.key)]
