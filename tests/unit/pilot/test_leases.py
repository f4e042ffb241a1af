"""Leases in the pilot: a payload is killed before the server can consider its lease expired."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.values.attempts import AttemptKey, LostLease, Outcome, RenewedLease, ReportResult
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.instructions import ContinuePayload, KillPayload, SendHeartbeat, SetDeadline, StoreOutput
from pilotage_pilot.core.rules import PilotRules
from support.pilot_bench import ONE, PilotBench, a_job


def test_lease_counts_from_sending_of_request() -> None:
    bench = PilotBench(rules=PilotRules(lease_margin_s=10))
    bench.answers_heartbeats = False
    bench.pass_time(15)
    bench.run(a_job(1, lease_s=100))
    bench.pass_time(74.9)
    assert bench.take(KillPayload) == []
    bench.pass_time(0.2)
    assert bench.one(KillPayload).key == AttemptKey(1, 1)


def test_renewed_lease_counts_from_sending_of_heartbeat() -> None:
    bench = PilotBench(rules=PilotRules(lease_margin_s=10))
    bench.answers_heartbeats = False
    bench.run(a_job(1, lease_s=100))
    bench.pass_time(50)
    beat = bench.take(SendHeartbeat)[-1]
    assert beat.leases == (AttemptKey(1, 1),)
    bench.pass_time(20)
    bench.feed(
        ev.HeartbeatAnswered(beat.request_id, (RenewedLease(*AttemptKey(1, 1), timedelta(seconds=100.0)),), next_s=1000)
    )
    sent_s = 0.05
    bench.pass_time(sent_s + 90 - bench.after_s - 0.01)
    assert bench.take(KillPayload) == []
    bench.pass_time(0.02)
    assert bench.one(KillPayload).key == AttemptKey(1, 1)


def test_lease_renewed_during_the_start_moves_the_deadline_of_the_watchdog() -> None:
    bench = PilotBench(rules=PilotRules(lease_margin_s=10))
    bench.answers_heartbeats = False
    job = a_job(1, lease_s=100)
    bench.grant(job)
    bench.feed(ev.JobPrepared(job.key))
    first = bench.take(SetDeadline)[-1]
    bench.pass_time(1)
    beat = bench.take(SendHeartbeat)[-1]

    bench.feed(ev.HeartbeatAnswered(beat.request_id, (RenewedLease(*job.key, timedelta(seconds=100.0)),), next_s=1000))

    assert bench.one(SetDeadline).boot_s > first.boot_s


def test_job_with_expired_lease_is_declined() -> None:
    bench = PilotBench()
    bench.pass_time(20)
    late = a_job(1, lease_s=5)
    bench.grant(late)
    assert bench.outcome(late) is Outcome.DECLINED


@pytest.mark.parametrize("how", ["lost", "refused"])
def test_attempt_that_lost_its_lease_is_killed(how: str) -> None:
    bench = PilotBench()
    bench.run(ONE)
    bench.answers_heartbeats = False
    bench.pass_time(1)
    beat = bench.take(SendHeartbeat)[0]
    if how == "lost":
        answer = ev.HeartbeatAnswered(beat.request_id, lost=(LostLease(*ONE.key, "expired"),))
    else:
        answer = ev.HeartbeatAnswered(beat.request_id, results=(ReportResult(*ONE.key, "expired"),))
    assert KillPayload(ONE.key) in bench.feed(answer)
    bench.feed(ev.PayloadExited(ONE.key, None, 9))
    assert bench.reports()[-1].outcome is Outcome.KILLED
    assert bench.take(StoreOutput) == [StoreOutput(ONE.key, is_partial=True)]


def test_suspended_payload_with_expired_lease_is_killed() -> None:
    bench = PilotBench(rules=PilotRules(heartbeat_s=10_000))
    bench.run(ONE)
    bench.feed(ev.SuspendRequested())
    bench.boot_s += 5000
    instructions = bench.feed(ev.ContinueRequested())
    assert ContinuePayload(ONE.key) not in instructions
    assert KillPayload(ONE.key) in instructions
