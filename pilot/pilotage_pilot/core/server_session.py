"""The pilot's side of the protocol: requests, heartbeats, reports, and the server's answers.

Rules
-----
The end of an attempt travels with the next message of any kind; other reports wait briefly to travel together.
An unexpected answer changes nothing. Messages are bounded: if many ends have much output, the first travel now and the
others with the next messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import assert_never

from pilotage.values.attempts import AttemptKey, Outcome, ReportResult, TailStream
from pilotage_pilot.core.attempts.attempt import STARTED, UNSTARTED, Attempt, Ending
from pilotage_pilot.core.attempts.payloads import Instructions, Payloads
from pilotage_pilot.core.events import (
    BrokerChanged,
    BrokerEvent,
    ContactRequested,
    HeartbeatAnswered,
    HeartbeatFailed,
    JobsAnnounced,
    JobsGranted,
    NodeAttributes,
    RequestFailed,
    StartFailed,
)
from pilotage_pilot.core.heartbeat import HeartbeatSchedule, PoolList
from pilotage_pilot.core.instructions import (
    ReportPolicyFaults,
    ReportRefusedAttributes,
    RequestJobs,
    SendHeartbeat,
    SendTails,
)
from pilotage_pilot.core.jobs.placement import JobPlacement, matched_offers
from pilotage_pilot.core.jobs.prefetch import Prefetch
from pilotage_pilot.core.jobs.pull import JobPull
from pilotage_pilot.core.lifetime import EndReason
from pilotage_pilot.core.model import Now, Report, ReportedState
from pilotage_pilot.core.rules import Lifetime, PilotRules

END_BATCH_DELAY_S = 0.1
"""With prefetched jobs the report of an end waits this long for others."""

MAX_REPORT_BYTES = 16 * 1024 * 1024
"""Largest sum of reported ends in a message, unless the first alone exceeds it; gRPC messages are limited to 64 MiB."""


class ServerSession:
    """The protocol of one pilot with the server; `name` makes its request ids unique."""

    def __init__(self, name: str, payloads: Payloads, rules: PilotRules, lifetime: Lifetime, now: Now) -> None:
        self._name = name
        self._payloads = payloads
        self._slots = payloads.slots
        self.job_pull = JobPull(payloads.slots, rules, lifetime, now)
        self.prefetch = Prefetch(payloads, self.job_pull.offers)
        self._placement = JobPlacement(payloads, self.job_pull.offers, self.prefetch, has_one_owner=rules.has_one_owner)
        self._has_one_owner = rules.has_one_owner
        self._heartbeat = HeartbeatSchedule(rules, now)
        self.pools = PoolList(rules)
        self._calls = 0
        self._attributes_version = 0
        self.goodbye_answered = False
        self.clock_error_s: float | None = None
        """Error of the node's clock in seconds; None = unknown before the first answer."""

    @property
    def is_idle(self) -> bool:
        """Whether no call is in flight."""
        return self.job_pull.is_over and not self._heartbeat.in_flight

    @property
    def last_contact_boot_s(self) -> float:
        """When the server last answered, on the boot clock."""
        return self._heartbeat.last_contact_boot_s

    # Requests ---------------------------------------------------------------------------------------------------

    def granted(self, event: JobsGranted, now: Now, *, takes_jobs: bool) -> Instructions:
        """Apply the answer to a request; an unexpected one is ignored."""
        request = self.job_pull.answered(event, now)
        if request is None:
            return []
        self._heartbeat.record_contact(now)
        if event.pools_changed:
            self.pools.mark_stale()
        instructions = self._results(event.results, request.call.reports, now)
        instructions += self._set_attributes(event.node_attributes, now) + self._send_tails(event.tails)
        matched = [offer.name for offer in matched_offers(event, request)]
        faults = self._slots.set_policy_faults(matched, event.slot_faults)
        instructions += [ReportPolicyFaults(faults)] if faults else []
        return instructions + self._placement.place(event, request, now, takes_jobs=takes_jobs)

    def request_failed(self, event: RequestFailed, now: Now) -> None:
        """Schedule a retry, or remove the request if the server refused it."""
        refused = self.job_pull.failed(event.request_id, event.failure, now)
        if refused is not None:
            self._mark_unreported(refused.call.reports)

    def handle_broker_event(self, event: BrokerEvent) -> None:
        """Apply an event of the broker."""
        match event:
            case BrokerChanged(connected, jitter):
                self.job_pull.broker_backoff.broker_changed(connected=connected, jitter=jitter)
            case JobsAnnounced():
                self.job_pull.broker_backoff.wake()
            case ContactRequested():
                self.job_pull.broker_backoff.wake()
                self._heartbeat.request_soon()
            case _:
                assert_never(event)

    def decline_after(self, event: StartFailed, now: Now) -> None:
        """Decline the task queue of an attempt on all slots, if it was declined when it was to be started."""
        attempt = self._payloads.get(event.key)
        if attempt is not None and event.outcome is Outcome.DECLINED:
            self.job_pull.offers.decline_on_node(attempt.job.task_queue, now)

    # Heartbeats -------------------------------------------------------------------------------------------------

    def heartbeat_answered(self, event: HeartbeatAnswered, now: Now) -> Instructions:
        """Renew leases and kill the attempts whose leases are lost."""
        heartbeat = self._heartbeat.answered(event.request_id, event.next_s, event.node_wanted, now)
        if heartbeat is None:
            return []
        self.goodbye_answered = heartbeat.call.ending
        instructions = self._set_attributes(event.node_attributes, now)
        self.clock_error_s = heartbeat.clock_error_s(event.server_time, now)
        for renewed in event.renewed:
            lease_end_boot_s = self._payloads.lease_end_boot_s(renewed.lease.total_seconds(), heartbeat.sent_boot_s)
            instructions += self._payloads.renew(renewed.key, lease_end_boot_s)
            self.prefetch.renew(renewed.key, lease_end_boot_s)
        instructions += self._results(event.results, heartbeat.call.reports, now)
        for lost in event.lost:
            instructions += self._lost(lost.key, lost.reason, now)
        return instructions + self._send_tails(event.tails)

    def _send_tails(self, streams: tuple[TailStream, ...]) -> Instructions:
        return [SendTails(streams)] if streams else []

    def heartbeat_failed(self, event: HeartbeatFailed, now: Now) -> None:
        """Report the contents of a lost heartbeat again."""
        heartbeat = self._heartbeat.failed(event.request_id, event.failure, now)
        if heartbeat is not None:
            self._mark_unreported(heartbeat.call.reports)

    def report_node_again(self) -> None:
        """Report the whole node in the next heartbeat."""
        self._heartbeat.report_all()

    def _set_attributes(self, attributes: NodeAttributes | None, now: Now) -> Instructions:
        if attributes is None or attributes.version == self._attributes_version:
            return []
        self._attributes_version = attributes.version
        refused = self._slots.set_attributes(attributes.expressions, now)
        return [ReportRefusedAttributes(refused)] if refused else []

    def _results(self, results: tuple[ReportResult, ...], sent: tuple[Report, ...], now: Now) -> Instructions:
        states = {report.key: report.state for report in sent}
        instructions: Instructions = []
        for result in results:
            if states.get(result.key) is ReportedState.DONE:
                self._payloads.acknowledged(result.key)
            elif not result.accepted:
                instructions += self._lost(result.key, result.refusal, now)
        answered = {result.key for result in results}
        # The answer to a repeated request may be the first answer, without results of later reports: repeat them.
        self._mark_unreported(tuple(report for report in sent if report.key not in answered))
        return instructions

    def _lost(self, key: AttemptKey, reason: str, now: Now) -> Instructions:
        self.prefetch.give_back(key, Ending(Outcome.KILLED, reason), now)
        # An attempt that has ended is still reported: the server may re-adopt it.
        attempt = self._payloads.get(key)
        if attempt is None or attempt.stage not in UNSTARTED | STARTED:
            return []
        return self._payloads.kill(key, Ending(Outcome.KILLED, reason), now)

    def _mark_unreported(self, reports: tuple[Report, ...]) -> None:
        for report in reports:
            attempt = self._payloads.get(report.key)
            if attempt is not None and attempt.reported is report.state:
                self._payloads.mark_reported(report.key, None)

    # Sending ----------------------------------------------------------------------------------------------------

    def send_due(self, now: Now, wait_s: float, *, takes_jobs: bool, drains: bool) -> Instructions:
        """Return the calls that are due; a request for jobs may wait `wait_s`.

        `takes_jobs` and `drains` are both False while the node is being validated.
        """
        self.job_pull.offers.bound_to = self.prefetch.owner if self._has_one_owner else None
        instructions: Instructions = [*self.job_pull.due(now), *self.pools.due(now)]
        if takes_jobs and self.pools.ready:
            instructions += self._request_jobs(now, wait_s)
        return instructions + self._send_heartbeat(now, draining=drains)

    def _request_jobs(self, now: Now, wait_s: float) -> Instructions:
        if any(attempt.is_about_to_end(now) for attempt in self._payloads.unreported_under_way()):
            return []  # its outcome travels with the request
        slots = self.job_pull.slots_to_request(now)
        if not slots:
            return []
        call = RequestJobs(
            self._new_id(),
            (),
            self._take_reports(now),
            wait_s,
            self.pools.pools_to_send(now),
            node_attributes_version=self._attributes_version,
        )
        return [self.job_pull.request(call, slots, now)]

    def _send_heartbeat(self, now: Now, *, draining: bool) -> Instructions:
        with_slots = self._heartbeat.slots_are_due(self._slots.version, now)
        due = self._heartbeat.is_due(now)
        if not due and not (
            self._heartbeat.may_send(now) and (with_slots or any(due <= now.boot_s for due in self._report_times(now)))
        ):
            return []
        return [self._heartbeat.send(self._new_heartbeat(with_slots, draining, now), self._slots.version, now)]

    def _new_heartbeat(self, with_slots: bool, draining: bool, now: Now) -> SendHeartbeat:
        return SendHeartbeat(
            self._new_id(),
            self._payloads.leases() + self.prefetch.leases(now),
            self._take_reports(now),
            self._slots.slots(self._heartbeat.reported_ads) if with_slots else None,
            draining,
            node_attributes_version=self._attributes_version,
            settable=self._slots.ads.settable,
        )

    def send_goodbye(self, reason: EndReason, now: Now) -> Instructions:
        """Return the last heartbeat with all unreported ends, or one before it if they exceed a message."""
        if not self._heartbeat.may_send(now):
            return []
        call = self._new_heartbeat(with_slots=False, draining=True, now=now)
        if next(self._unreported_ends(now), None) is None:
            empty = reason.is_normal and not self._payloads.has_run_any
            call = replace(call, ending=True, ending_reason=reason.text, came_back_empty=empty)
        return [self._heartbeat.send(call, self._slots.version, now)]

    def _take_reports(self, now: Now) -> tuple[Report, ...]:
        ends = _within_size_limit(each.report() for each in self._unreported_ends(now))
        reports = (*ends, *(each.report() for each in self._payloads.unreported_under_way()))
        for report in reports:
            self._payloads.mark_reported(report.key, report.state)
        return reports

    def _unreported_ends(self, now: Now) -> Iterator[Attempt]:
        # A returned job must not be granted again by a request that is being recalled.
        holds_back = now.boot_s < self.job_pull.recall_end_boot_s
        return (each for each in self._payloads.unreported_ends() if not (holds_back and each.is_given_back))

    def _report_times(self, now: Now) -> Iterator[float]:
        """Yield when the first unreported end and the other reports are due, on the boot clock.

        With prefetched jobs the next end is near, so ends wait to travel together.
        """
        first_end = next(self._unreported_ends(now), None)
        if first_end is not None:
            yield first_end.report_boot_s + (END_BATCH_DELAY_S if len(self.prefetch) else 0.0)
        yield from (each.report_boot_s for each in self._payloads.unreported_under_way())

    def _new_id(self) -> str:
        self._calls += 1
        return f"{self._name}-{self._calls}"

    def alarms(self, now: Now, *, takes_jobs: bool) -> Iterator[float]:
        """Yield the times, on the boot clock, at which `send_due` may have something to send."""
        yield from self.prefetch.alarms()
        yield from self.job_pull.alarms(now, takes_jobs=takes_jobs)
        yield from self.pools.alarms()
        yield from self._heartbeat.alarms(self._slots.version)
        if self._heartbeat.may_send(now):
            yield from self._report_times(now)
        if takes_jobs:
            ending = (each for each in self._payloads.unreported_under_way() if each.is_about_to_end(now))
            yield from (each.report_boot_s for each in ending)

    def goodbye_alarms(self) -> Iterator[float]:
        """Yield when a lost last heartbeat is repeated."""
        return self._heartbeat.next_alarm()

    def validate(self) -> None:
        """Raise AssertionError if more is offered than exists."""
        self.job_pull.validate()
        self.prefetch.validate()


def _within_size_limit(ends: Iterable[Report]) -> Iterator[Report]:
    """Yield the first of the ends that fit in a message; the very first in any case."""
    room = MAX_REPORT_BYTES
    for position, end in enumerate(ends):
        room -= end.max_bytes
        if position and room < 0:
            return
        yield end
