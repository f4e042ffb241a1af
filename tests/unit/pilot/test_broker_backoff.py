"""A pilot with a broker: its back-off between requests, announcements of jobs, contact requests, disconnects."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.values.attempts import AttemptKey
from pilotage.values.offers import VacateOrder
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.events import BrokerChanged, ContactRequested, JobsAnnounced
from pilotage_pilot.core.instructions import ReadPools, RecallRequest, RequestJobs, SendHeartbeat
from pilotage_pilot.core.lifetime import Phase
from pilotage_pilot.core.rules import PilotRules
from pilotage_pilot.policy.loading import load_policy
from support.mosquitto import HOUR_S, RARE_REQUESTS, a_connected_pilot, an_idle_pilot, answer_without_jobs
from support.pilot_bench import ONE, PilotBench, a_job, slots_under, transient, with_ad


def test_request_with_broker_is_no_long_poll() -> None:
    assert a_connected_pilot().one(RequestJobs).wait_s == 0


def test_backs_off_after_answer_without_jobs() -> None:
    bench = an_idle_pilot(PilotRules(idle_ask_s=60))
    bench.pass_time(58)
    assert bench.take(RequestJobs) == []
    bench.pass_time(1)
    assert bench.one(RequestJobs).wait_s == 0


def test_back_off_has_jitter() -> None:
    bench = a_connected_pilot(PilotRules(idle_ask_s=60), jitter=0.0)
    answer_without_jobs(bench)
    bench.pass_time(28)
    assert bench.take(RequestJobs) == []
    bench.pass_time(1)
    assert bench.take(RequestJobs)


def test_announcement_of_jobs_ends_back_off() -> None:
    bench = an_idle_pilot()
    bench.pass_time(100)
    bench.feed(JobsAnnounced())
    assert bench.one(RequestJobs).wait_s == 0


def test_announcement_during_request_causes_another_request() -> None:
    bench = a_connected_pilot()
    call = bench.one(RequestJobs)
    bench.pass_time(5)
    bench.feed(JobsAnnounced())
    assert bench.take(RequestJobs) == []
    bench.feed(ev.JobsGranted(call.request_id))
    answer_without_jobs(bench)
    assert bench.take(RequestJobs) == [], "one announcement causes one more request"


def test_announcements_cause_at_most_one_request_a_second() -> None:
    bench = a_connected_pilot()
    for _ in range(50):
        bench.feed(JobsAnnounced())
        for call in bench.take(RequestJobs):
            bench.feed(ev.JobsGranted(call.request_id))
        bench.pass_time(0.1)
    assert 4 <= len({call.request_id for call in bench.instructions if isinstance(call, RequestJobs)}) <= 6


def test_no_back_off_after_granted_job() -> None:
    bench = a_connected_pilot()
    bench.run(ONE)
    assert bench.one(RequestJobs).slots[0].free.cpus == 1


def test_freed_slot_ends_back_off() -> None:
    bench = a_connected_pilot()
    bench.run(ONE)
    answer_without_jobs(bench)
    bench.take(RequestJobs)
    bench.feed(ev.JobsGranted(last_request(bench).request_id))
    bench.pass_time(10)
    assert bench.take(RequestJobs) == []
    bench.exit(ONE)
    bench.feed(ev.OutputStored(ONE.key))
    assert bench.take(RequestJobs)


def last_request(bench: PilotBench) -> RequestJobs:
    return [call for call in bench.instructions if isinstance(call, RequestJobs)][-1]


def test_slot_freed_during_request_is_offered_next() -> None:
    bench = a_connected_pilot()
    bench.run(ONE)
    call = bench.one(RequestJobs)
    bench.feed(ev.PayloadExited(ONE.key, 0, None))
    bench.feed(ev.OutputStored(ONE.key))
    bench.feed(ev.JobsGranted(call.request_id))
    for next_call in bench.take(RequestJobs):
        bench.feed(ev.JobsGranted(next_call.request_id))
    bench.pass_time(2)
    assert max(offer.free.cpus for offer in last_request(bench).slots) == 2


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.conf"
    path.write_text(
        "NUM_SLOTS = 2\nSTART = TARGET.Ok =!= False\nRANK = 10 * (TARGET.IsGood =?= True)\n"
        "MaxJobRetirementTime = 1000\nENABLE_RUNTIME_CONFIG = True\nSETTABLE_ATTRS_ADMINISTRATOR = Fast\n"
    )
    return path


def a_node(policy: Path) -> PilotBench:
    bench = PilotBench(2, 2000, rules=RARE_REQUESTS, slots=slots_under(policy), opened=False)
    bench.feed(BrokerChanged(connected=True))
    bench.open()
    return bench


def test_changed_node_attribute_ends_back_off(policy: Path) -> None:
    bench = a_node(policy)
    answer_without_jobs(bench)
    bench.pass_time(40)
    assert bench.take(RequestJobs) == []
    bench.answers_heartbeats = False
    bench.feed(ContactRequested())
    bench.feed(ev.JobsGranted(bench.one(RequestJobs).request_id))
    bench.pass_time(2)
    bench.answer_heartbeat(node_attributes=ev.NodeAttributes(1, {"Fast": "True"}))
    bench.pass_time(0)
    assert "Fast" in "".join(part.text for part in bench.one(RequestJobs).ad_parts) + str(last_request(bench).slots)


def test_reloaded_policy_ends_back_off(policy: Path) -> None:
    bench = a_node(policy)
    answer_without_jobs(bench)
    policy.write_text(policy.read_text() + "START = TARGET.Ok\n")
    bench.feed(ev.PolicyReloaded(load_policy(policy, bench.machine.payloads.slots.total).policy))
    bench.pass_time(1)
    assert bench.take(RequestJobs)


def test_vacate_order_is_rechecked_during_back_off(policy: Path) -> None:
    bench = a_node(policy)
    bench.run(*(with_ad(a_job(number, slot=f"slot{number}", lease_s=1e6)) for number in (1, 2)))
    bench.pass_time(2)
    vacate = VacateOrder("slot1", "bob's job is better")
    first, *_ = bench.take(RequestJobs)
    bench.feed(ev.JobsGranted(first.request_id, vacate=(vacate,)))
    for _ in range(3):
        bench.pass_time(1)
        for call in bench.take(RequestJobs):
            bench.feed(ev.JobsGranted(call.request_id))
    bench.pass_time(6)
    assert bench.take(RequestJobs) == []
    bench.pass_time(3)
    ordered = [offer.occupied.ordered for offer in bench.one(RequestJobs).slots if offer.occupied is not None]
    assert any(ordered)


# The connection -------------------------------------------------------------------------------------------------------


def test_disconnect_starts_long_poll() -> None:
    bench = an_idle_pilot()
    bench.pass_time(7)
    bench.feed(BrokerChanged(connected=False))
    assert bench.one(RequestJobs).wait_s == RARE_REQUESTS.wait_s


def test_long_poll_outlives_connect_and_causes_no_back_off() -> None:
    bench = PilotBench(rules=RARE_REQUESTS)
    call = bench.one(RequestJobs)
    bench.pass_time(3)
    bench.feed(BrokerChanged(connected=True))
    assert bench.take(RecallRequest) == []
    bench.pass_time(17)
    bench.feed(ev.JobsGranted(call.request_id))
    assert bench.one(RequestJobs).wait_s == 0, "jobs may have been announced before the connection"
    bench.feed(ev.JobsGranted(last_request(bench).request_id))
    bench.pass_time(60)
    assert bench.take(RequestJobs) == []


def test_reconnect_causes_one_request() -> None:
    bench = an_idle_pilot()
    bench.feed(BrokerChanged(connected=False))
    waiting = bench.one(RequestJobs)
    bench.feed(BrokerChanged(connected=True))
    bench.pass_time(20)
    bench.feed(ev.JobsGranted(waiting.request_id))
    answer_without_jobs(bench)
    bench.pass_time(60)
    assert bench.take(RequestJobs) == []


def test_no_back_off_without_broker() -> None:
    bench = PilotBench(rules=RARE_REQUESTS)
    for _ in range(5):
        call = bench.one(RequestJobs)
        assert call.wait_s == RARE_REQUESTS.wait_s
        bench.pass_time(call.wait_s)
        bench.feed(ev.JobsGranted(call.request_id))


# Idle timeout ---------------------------------------------------------------------------------------------------------


def test_zero_idle_timeout_ends_after_one_empty_answer() -> None:
    bench = a_connected_pilot(PilotRules(max_idle_s=0))
    bench.feed(ev.JobsGranted(bench.one(RequestJobs).request_id))
    assert bench.machine.phase is not Phase.OPEN


def at_idle_timeout() -> PilotBench:
    """Return an idle pilot that sends its last request before it ends."""
    bench = a_connected_pilot(PilotRules(max_idle_s=30, idle_ask_s=HOUR_S))
    answer_without_jobs(bench)
    bench.pass_time(30)
    assert bench.machine.phase is Phase.OPEN
    return bench


def test_last_request_before_idle_timeout_may_bring_a_job() -> None:
    bench = at_idle_timeout()
    bench.grant(ONE)
    assert (bench.machine.phase, bench.outcome(ONE)) == (Phase.OPEN, None)


def test_pilot_ends_when_last_request_brings_no_job() -> None:
    bench = at_idle_timeout()
    answer_without_jobs(bench)
    assert bench.machine.phase is not Phase.OPEN


def test_idle_timeout_applies_after_disconnect() -> None:
    bench = an_idle_pilot(PilotRules(max_idle_s=30, idle_ask_s=HOUR_S))
    bench.feed(BrokerChanged(connected=False))
    while bench.after_s < 29:
        call = bench.one(RequestJobs)
        bench.pass_time(call.wait_s)
        bench.feed(ev.JobsGranted(call.request_id))
    bench.pass_time(1)
    assert bench.machine.phase is not Phase.OPEN


def test_changed_pools_are_read_during_back_off() -> None:
    bench = a_connected_pilot()
    bench.pass_time(1)
    bench.take(ReadPools)
    bench.feed(ev.JobsGranted(bench.one(RequestJobs).request_id, pools_changed=True))
    bench.pass_time(15)
    assert bench.take(ReadPools) == [ReadPools(fresh=True)]
    bench.feed(ev.PoolsRead(True, ("b" * 64,)))
    assert bench.take(RequestJobs) == []


def test_finished_jobs_leave_claims_to_offer() -> None:
    bench = an_idle_pilot()
    bench.feed(JobsAnnounced())
    bench.run(a_job(1), a_job(2))
    for number in (1, 2):
        bench.exit(a_job(number))
        bench.feed(ev.OutputStored(AttemptKey(number, 1)))
    claimed = [offer.claim.owner for call in bench.take(RequestJobs) for offer in call.slots if offer.claim]
    assert "alice" in claimed


# Contact requests -----------------------------------------------------------------------------------------------------


def test_contact_request_causes_heartbeat_and_job_request() -> None:
    bench = an_idle_pilot()
    bench.pass_time(15)
    bench.take(SendHeartbeat)
    bench.answers_heartbeats = False
    bench.feed(ContactRequested())
    assert bench.take(SendHeartbeat)
    assert bench.take(RequestJobs)


def test_contact_request_makes_busy_pilot_renew_leases() -> None:
    bench = PilotBench(cpus=1)
    bench.run(ONE)
    bench.pass_time(3)
    bench.answers_heartbeats = False
    bench.take(SendHeartbeat)
    bench.feed(ContactRequested())
    assert bench.one(SendHeartbeat).leases == (ONE.key,)


def test_contact_request_during_heartbeat_causes_another_heartbeat() -> None:
    bench = an_idle_pilot()
    bench.answers_heartbeats = False
    bench.pass_time(40)
    bench.take(SendHeartbeat)
    bench.feed(ContactRequested())
    assert bench.take(SendHeartbeat) == []
    bench.answer_heartbeat()
    assert bench.take(SendHeartbeat)


def test_contact_requests_cause_at_most_one_heartbeat_a_second() -> None:
    bench = an_idle_pilot()
    before = len(beats(bench))
    for _ in range(50):
        bench.feed(ContactRequested())
        bench.pass_time(0.1)
    assert 4 <= len(beats(bench)) - before <= 7


def beats(bench: PilotBench) -> list[SendHeartbeat]:
    return [call for call in bench.instructions if isinstance(call, SendHeartbeat)]


def test_contact_requests_do_not_shorten_back_off_of_failures() -> None:
    bench = an_idle_pilot()
    bench.answers_heartbeats = False
    for _ in range(200):
        bench.feed(ContactRequested())
        for beat in bench.take(SendHeartbeat):
            bench.feed(ev.HeartbeatFailed(beat.request_id, transient()))
        bench.pass_time(0.1)
    assert 4 <= len(beats(bench)) < 15
