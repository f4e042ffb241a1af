"""The pilot's talk with the server: what it asks, what it reports, and what it makes of the answers.

Rules
-----
Endings of attempts travel with the next message, whichever it is; other news waits a moment to travel together.
An answer that is not expected (any more) changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from pilotage_pilot.core.asking import Asking
from pilotage_pilot.core.attempts import STARTED, UNSTARTED, Attempt, Ending
from pilotage_pilot.core.events import FailureKind, HeartbeatAnswered, HeartbeatFailed, JobsGranted, RequestFailed
from pilotage_pilot.core.heartbeat import Heartbeat
from pilotage_pilot.core.instructions import RequestJobs, SendHeartbeat, SlotOffer
from pilotage_pilot.core.jobs import AttemptKey, GrantedJob, Outcome, Report, ReportedState, ReportResult
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.payloads import Instructions, Payloads
from pilotage_pilot.core.pools import PoolList
from pilotage_pilot.core.rules import Lifetime, Rules
from pilotage_pilot.core.slots import PARTITIONABLE

ASK_AGAIN_AFTER_S = 1.0
"""A request that was answered with nothing is not followed by another one sooner than this."""

NOT_ANY_MORE = "the pilot takes no more jobs"


class Conversation:
    """What one pilot and the server have to say to each other; `name` makes its request ids its own."""

    def __init__(self, name: str, payloads: Payloads, rules: Rules, lifetime: Lifetime, now: Moment) -> None:
        self._name = name
        self._payloads = payloads
        self._rules = rules
        self._lifetime = lifetime
        self._asking = Asking(rules)
        self._heartbeat = Heartbeat(rules, now)
        self.pools = PoolList(rules)
        self._calls = 0
        self._ask_after_boot_s = now.boot_s
        self._declined: dict[int, int] = {}
        self.asked_in_vain = False
        self.parted = False
        self.clock_error_s: float | None = None
        """How far the node's clock is from the server's; None = the server has not been heard yet."""

    @property
    def is_silent(self) -> bool:
        """Whether nothing is under way to the server."""
        return not len(self._asking) and not self._heartbeat.under_way

    @property
    def heard_boot_s(self) -> float:
        """When the server last answered, on the boot clock."""
        return self._heartbeat.heard_boot_s

    # Requests ---------------------------------------------------------------------------------------------------

    def granted(self, event: JobsGranted, now: Moment, *, takes_jobs: bool) -> Instructions:
        """Take the jobs that were granted, as far as they were asked for."""
        request = self._asking.answered(event.request_id)
        if request is None:
            return []
        self._heartbeat.heard(now)
        self.asked_in_vain = not event.jobs
        if self.asked_in_vain and not request.taken_back:
            self._ask_after_boot_s = max(now.boot_s, request.first_boot_s + ASK_AGAIN_AFTER_S)
        if event.pools_changed:
            self.pools.grown_old()
        instructions = self._results(event.results, request.call.reports, now)
        budget = request.offered
        for job in event.jobs:
            if not takes_jobs:
                instructions += self._payloads.decline(job, NOT_ANY_MORE, now)
            elif not job.amounts.fits_in(budget):
                instructions += self._refuse_size(job, now)
            else:
                budget -= job.amounts
                instructions += self._payloads.grant(job, request.first_boot_s, now)
        return instructions

    def _refuse_size(self, job: GrantedJob, now: Moment) -> Instructions:
        self._declined[job.task_queue] = self._payloads.partition.version
        return self._payloads.decline(job, f"it asks {job.amounts}, more than was offered", now)

    def request_failed(self, event: RequestFailed, now: Moment) -> None:
        """Repeat a request later, or give it up where the server refused it."""
        if event.failure.kind is FailureKind.TRANSIENT:
            self._asking.failed(event.request_id, event.failure, now)
            return
        request = self._asking.answered(event.request_id)
        if request is not None:
            self._untell(request.call.reports)

    def take_back_requests(self, now: Moment) -> Instructions:
        """Let every request that waits be answered at once."""
        return self._asking.take_back_all(now)

    def forget_requests(self) -> None:
        """Give up every request that the server has not answered."""
        self._asking = Asking(self._rules)

    # Heartbeats -------------------------------------------------------------------------------------------------

    def beat_answered(self, event: HeartbeatAnswered, now: Moment) -> Instructions:
        """Let the leases go on that were renewed; kill what the pilot holds no longer."""
        beat = self._heartbeat.answered(event.request_id, event.next_s, event.node_wanted, now)
        if beat is None:
            return []
        self.parted = beat.call.ending
        self.clock_error_s = beat.clock_error_s(event.server_time, now)
        for renewed in event.renewed:
            self._payloads.renew(renewed.key, renewed.lease_s, beat.sent_boot_s)
        instructions = self._results(event.results, beat.call.reports, now)
        for lost in event.lost:
            instructions += self._lost(lost.key, lost.reason, now)
        return instructions

    def beat_failed(self, event: HeartbeatFailed, now: Moment) -> None:
        """Tell again, later, what the lost heartbeat carried."""
        beat = self._heartbeat.failed(event.request_id, event.failure, now)
        if beat is not None:
            self._untell(beat.call.reports)

    def _results(self, results: tuple[ReportResult, ...], sent: tuple[Report, ...], now: Moment) -> Instructions:
        states = {report.key: report.state for report in sent}
        instructions: Instructions = []
        for result in results:
            if states.get(result.key) is ReportedState.DONE:
                self._payloads.acknowledged(result.key)
            elif not result.accepted:
                instructions += self._lost(result.key, result.refusal, now)
        answered = {result.key for result in results}
        # The answer to a repeated request may be the first one's, without a word of the reports: tell them again.
        self._untell(tuple(report for report in sent if report.key not in answered))
        return instructions

    def _lost(self, key: AttemptKey, reason: str, now: Moment) -> Instructions:
        # What has ended already is reported all the same: the server may take the attempt back.
        attempt = self._payloads.get(key)
        if attempt is None or attempt.stage not in UNSTARTED | STARTED:
            return []
        return self._payloads.kill(key, Ending(Outcome.KILLED, reason), now)

    def _untell(self, reports: tuple[Report, ...]) -> None:
        for report in reports:
            attempt = self._payloads.get(report.key)
            if attempt is not None and attempt.told is report.state:
                self._payloads.told(report.key, None)

    # What is said by itself -------------------------------------------------------------------------------------

    def speak(self, now: Moment, wait_s: float, *, takes_jobs: bool, drains: bool) -> Instructions:
        """Say what is to be said now; a request for jobs may wait `wait_s`.

        A pilot that does not take jobs yet, for its node is still being looked at, does not drain.
        """
        instructions: Instructions = [*self._asking.due(now), *self.pools.due(now)]
        if takes_jobs and self.pools.ready:
            instructions += self._ask(now, wait_s)
        return instructions + self._beat(now, draining=drains)

    def _ask(self, now: Moment, wait_s: float) -> Instructions:
        free = self._payloads.partition.free - self._asking.offered
        if free.cpus < 1 or not self._asking.may_ask or now.boot_s < self._ask_after_boot_s:
            return []
        if any(attempt.is_about_to_end(now) for attempt in self._payloads):
            return []  # its outcome travels with the request
        version = self._payloads.partition.version
        declined = tuple(sorted(queue for queue, at in self._declined.items() if at == version))
        left = self._lifetime.time_left_s(now)
        offer = SlotOffer(PARTITIONABLE, free, left, self._rules.cpu_power, declined)
        call = RequestJobs(self._new_id(), (offer,), self._tell(now), wait_s, self.pools.carried(now))
        return [self._asking.ask(call, now)]

    def _beat(self, now: Moment, *, draining: bool) -> Instructions:
        version = self._payloads.partition.version
        news = self._heartbeat.slots_are_due(version, now)
        due = self._heartbeat.is_due(now)
        if not due and not (
            self._heartbeat.is_free(now) and (news or any(attempt.tells_now(now) for attempt in self._untold(now)))
        ):
            return []
        slots = self._payloads.partition.slots() if news else None
        call = SendHeartbeat(self._new_id(), self._payloads.leases(), self._tell(now), slots, draining)
        return [self._heartbeat.send(call, version, now)]

    def good_bye(self, reason: str, now: Moment) -> Instructions:
        """Say that the pilot ends, with all that is still to tell."""
        if not self._heartbeat.is_free(now):
            return []
        call = SendHeartbeat(
            self._new_id(), self._payloads.leases(), self._tell(now), None, True, ending=True, ending_reason=reason
        )
        return [self._heartbeat.send(call, self._payloads.partition.version, now)]

    def _tell(self, now: Moment) -> tuple[Report, ...]:
        reports = tuple(attempt.report() for attempt in self._untold(now))
        for report in reports:
            self._payloads.told(report.key, report.state)
        return reports

    def _untold(self, now: Moment) -> Iterator[Attempt]:
        # What is given back must not come again through a request that is just being taken back.
        holds_back = now.boot_s < self._asking.taking_back_until_boot_s
        for attempt in self._payloads:
            if attempt.untold() is not None and not (holds_back and attempt.is_given_back):
                yield attempt

    def _new_id(self) -> str:
        self._calls += 1
        return f"{self._name}-{self._calls}"

    def alarms(self, now: Moment, *, takes_jobs: bool) -> Iterator[float]:
        """Yield the times, on the boot clock, at which `speak` may have something to say."""
        yield from self._asking.alarms()
        yield from self.pools.alarms()
        yield from self._heartbeat.alarms(self._payloads.partition.version)
        if self._heartbeat.is_free(now):
            yield from (news.report_boot_s for news in self._untold(now) if news.report_boot_s is not None)
        if now.boot_s < self._asking.taking_back_until_boot_s:
            yield self._asking.taking_back_until_boot_s
        if takes_jobs:
            later = [self._ask_after_boot_s, *(a.report_boot_s for a in self._payloads if a.is_about_to_end(now))]
            yield from (moment for moment in later if moment is not None and moment > now.boot_s)

    def good_bye_alarms(self) -> Iterator[float]:
        """Yield when a lost good-bye is said again."""
        return self._heartbeat.next_beat()

    def validate(self) -> None:
        """Raise AssertionError where more is offered than there is."""
        self._asking.validate(self._payloads.partition.free)
