"""The pilot's talk with the server: what it asks, what it reports, and what it makes of the answers.

Rules
-----
Endings of attempts travel with the next message, whichever it is; other news waits a moment to travel together.
An answer that is not expected (any more) changes nothing. No message grows without bound: of many ends with much output
the first go now and the others with the next messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import assert_never

from pilotage_pilot.core.attempts import STARTED, UNSTARTED, Attempt, Ending
from pilotage_pilot.core.backlog import Backlog
from pilotage_pilot.core.broker_events import AskWanted, BrokerChanged, BrokerEvent, JobsAnnounced
from pilotage_pilot.core.departure import Reason
from pilotage_pilot.core.events import (
    HeartbeatAnswered,
    HeartbeatFailed,
    JobsGranted,
    NodeAttributes,
    RequestFailed,
)
from pilotage_pilot.core.heartbeat import Heartbeat
from pilotage_pilot.core.instructions import ReportRefusedAttributes, RequestJobs, SendHeartbeat
from pilotage_pilot.core.job_seeking import JobSeeking
from pilotage_pilot.core.jobs import AttemptKey, Outcome, Report, ReportedState, ReportResult
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.payload_ends import Instructions
from pilotage_pilot.core.payloads import Payloads
from pilotage_pilot.core.placing import Placing
from pilotage_pilot.core.pools import PoolList
from pilotage_pilot.core.rules import Lifetime, Rules

ENDS_TOGETHER_S = 0.1
"""Where jobs are ahead of their turn, an end waits for others so long at most, to be told together with them."""

LARGEST_TELLING = 16 * 1024 * 1024
"""Bytes of the ends that one message tells of, unless one alone has more; no message may have over 64 MiB."""


class Conversation:
    """What one pilot and the server have to say to each other; `name` makes its request ids its own."""

    def __init__(self, name: str, payloads: Payloads, rules: Rules, lifetime: Lifetime, now: Moment) -> None:
        self._name = name
        self._payloads = payloads
        self._slots = payloads.slots
        self.seeking = JobSeeking(payloads.slots, rules, lifetime, now)
        self.backlog = Backlog(payloads, self.seeking.offers)
        self._placing = Placing(payloads, self.seeking.offers, self.backlog)
        self._heartbeat = Heartbeat(rules, now)
        self.pools = PoolList(rules)
        self._calls = 0
        self._attributes_version = 0
        self.parted = False
        self.clock_error_s: float | None = None
        """How far the node's clock is from the server's; None = the server has not been heard yet."""

    @property
    def is_silent(self) -> bool:
        """Whether nothing is under way to the server."""
        return self.seeking.is_over and not self._heartbeat.under_way

    @property
    def heard_boot_s(self) -> float:
        """When the server last answered, on the boot clock."""
        return self._heartbeat.heard_boot_s

    # Requests ---------------------------------------------------------------------------------------------------

    def granted(self, event: JobsGranted, now: Moment, *, takes_jobs: bool) -> Instructions:
        """Take the jobs that were granted, as far as they were asked for."""
        request = self.seeking.answered(event, now)
        if request is None:
            return []
        self._heartbeat.heard(now)
        if event.pools_changed:
            self.pools.grown_old()
        instructions = self._results(event.results, request.call.reports, now)
        instructions += self._set_attributes(event.node_attributes, now)
        return instructions + self._placing.place(event, request, now, takes_jobs=takes_jobs)

    def request_failed(self, event: RequestFailed, now: Moment) -> None:
        """Repeat a request later, or give it up where the server refused it."""
        refused = self.seeking.failed(event.request_id, event.failure, now)
        if refused is not None:
            self._untell(refused.call.reports)

    def hear(self, event: BrokerEvent) -> None:
        """Take in what comes through the broker: what is to be said to the server, and what is better left."""
        match event:
            case BrokerChanged(connected, jitter):
                self.seeking.hearing.broker_changed(connected=connected, jitter=jitter)
            case JobsAnnounced():
                self.seeking.hearing.called()
            case AskWanted():
                self.seeking.hearing.called()
                self._heartbeat.called()
            case _:
                assert_never(event)

    # Heartbeats -------------------------------------------------------------------------------------------------

    def beat_answered(self, event: HeartbeatAnswered, now: Moment) -> Instructions:
        """Let the leases go on that were renewed; kill what the pilot holds no longer."""
        beat = self._heartbeat.answered(event.request_id, event.next_s, event.node_wanted, now)
        if beat is None:
            return []
        self.parted = beat.call.ending
        instructions = self._set_attributes(event.node_attributes, now)
        self.clock_error_s = beat.clock_error_s(event.server_time, now)
        for renewed in event.renewed:
            lease_end_boot_s = self._payloads.lease_end_boot_s(renewed.lease_s, beat.sent_boot_s)
            self._payloads.renew(renewed.key, lease_end_boot_s)
            self.backlog.renew(renewed.key, lease_end_boot_s)
        instructions += self._results(event.results, beat.call.reports, now)
        for lost in event.lost:
            instructions += self._lost(lost.key, lost.reason, now)
        return instructions

    def beat_failed(self, event: HeartbeatFailed, now: Moment) -> None:
        """Tell again, later, what the lost heartbeat carried."""
        beat = self._heartbeat.failed(event.request_id, event.failure, now)
        if beat is not None:
            self._untell(beat.call.reports)

    def tell_node_again(self) -> None:
        """Let the next heartbeat tell all of the node, for something has changed that is not seen from here."""
        self._heartbeat.tell_all()

    def _set_attributes(self, told: NodeAttributes | None, now: Moment) -> Instructions:
        if told is None or told.version == self._attributes_version:
            return []
        self._attributes_version = told.version
        refused = self._slots.set_attributes(told.expressions, now)
        return [ReportRefusedAttributes(refused)] if refused else []

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
        self.backlog.give_back(key, Ending(Outcome.KILLED, reason), now)
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
        instructions: Instructions = [*self.seeking.due(now), *self.pools.due(now)]
        if takes_jobs and self.pools.ready:
            instructions += self._ask(now, wait_s)
        return instructions + self._beat(now, draining=drains)

    def _ask(self, now: Moment, wait_s: float) -> Instructions:
        if any(attempt.is_about_to_end(now) for attempt in self._payloads.news_under_way()):
            return []  # its outcome travels with the request
        slots = self.seeking.slots_to_ask_for(now)
        if not slots:
            return []
        call = RequestJobs(
            self._new_id(),
            (),
            self._tell(now),
            wait_s,
            self.pools.carried(now),
            node_attributes_version=self._attributes_version,
        )
        return [self.seeking.ask(call, slots, now)]

    def _beat(self, now: Moment, *, draining: bool) -> Instructions:
        news = self._heartbeat.slots_are_due(self._slots.version, now)
        due = self._heartbeat.is_due(now)
        if not due and not (
            self._heartbeat.is_free(now) and (news or any(due <= now.boot_s for due in self._times_to_tell(now)))
        ):
            return []
        return [self._heartbeat.send(self._heartbeat_with(news, draining, now), self._slots.version, now)]

    def _heartbeat_with(self, news: bool, draining: bool, now: Moment) -> SendHeartbeat:
        return SendHeartbeat(
            self._new_id(),
            self._payloads.leases() + self.backlog.leases(now),
            self._tell(now),
            self._slots.slots(self._heartbeat.ads_told) if news else None,
            draining,
            node_attributes_version=self._attributes_version,
            settable=self._slots.ads.settable,
        )

    def good_bye(self, reason: Reason, now: Moment) -> Instructions:
        """Say that the pilot ends, with all that is still to tell; what one message does not hold goes before."""
        if not self._heartbeat.is_free(now):
            return []
        call = self._heartbeat_with(news=False, draining=True, now=now)
        if next(self._untold_ends(now), None) is None:
            empty = reason.of_itself and not self._payloads.has_run_any
            call = replace(call, ending=True, ending_reason=reason.text, came_back_empty=empty)
        return [self._heartbeat.send(call, self._slots.version, now)]

    def _tell(self, now: Moment) -> tuple[Report, ...]:
        ends = _together(each.report() for each in self._untold_ends(now))
        reports = (*ends, *(each.report() for each in self._payloads.news_under_way()))
        for report in reports:
            self._payloads.told(report.key, report.state)
        return reports

    def _untold_ends(self, now: Moment) -> Iterator[Attempt]:
        # What is given back must not come again through a request that is just being taken back.
        holds_back = now.boot_s < self.seeking.taking_back_until_boot_s
        return (each for each in self._payloads.untold_ends() if not (holds_back and each.is_given_back))

    def _times_to_tell(self, now: Moment) -> Iterator[float]:
        """Yield when, on the boot clock, the first end and each other thing have to be told that are new.

        Where a slot has jobs ahead the next end is near: so ends wait a moment to travel together.
        """
        first_end = next(self._untold_ends(now), None)
        if first_end is not None:
            yield first_end.report_boot_s + (ENDS_TOGETHER_S if len(self.backlog) else 0.0)
        yield from (each.report_boot_s for each in self._payloads.news_under_way())

    def _new_id(self) -> str:
        self._calls += 1
        return f"{self._name}-{self._calls}"

    def alarms(self, now: Moment, *, takes_jobs: bool) -> Iterator[float]:
        """Yield the times, on the boot clock, at which `speak` may have something to say."""
        yield from self.backlog.alarms()
        yield from self.seeking.alarms(now, takes_jobs=takes_jobs)
        yield from self.pools.alarms()
        yield from self._heartbeat.alarms(self._slots.version)
        if self._heartbeat.is_free(now):
            yield from self._times_to_tell(now)
        if takes_jobs:
            ending = (each for each in self._payloads.news_under_way() if each.is_about_to_end(now))
            yield from (each.report_boot_s for each in ending)

    def good_bye_alarms(self) -> Iterator[float]:
        """Yield when a lost good-bye is said again."""
        return self._heartbeat.next_beat()

    def validate(self) -> None:
        """Raise AssertionError where more is offered than there is."""
        self.seeking.validate()
        self.backlog.validate()


def _together(ends: Iterable[Report]) -> Iterator[Report]:
    """Yield the first of the ends, as many as one message has room for; the very first in any case."""
    room = LARGEST_TELLING
    for place, end in enumerate(ends):
        room -= end.most_bytes
        if place and room < 0:
            return
        yield end
