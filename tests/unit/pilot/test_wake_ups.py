"""A pilot that is called through a broker: it sends a heartbeat and asks for jobs, and is not hurried."""

from __future__ import annotations

from pilotage_pilot.core import events as ev
from pilotage_pilot.core.events import ContactRequested
from pilotage_pilot.core.instructions import RequestJobs, SendHeartbeat
from support.mosquitto import a_resting_pilot
from support.pilot_bench import ONE, PilotBench, transient


def test_a_pilot_that_is_called_sends_a_heartbeat_and_asks_for_jobs_at_once() -> None:
    bench = a_resting_pilot()
    bench.pass_time(15)
    bench.take(SendHeartbeat)
    bench.hears = False
    bench.feed(ContactRequested())
    assert bench.take(SendHeartbeat)
    assert bench.take(RequestJobs)


def test_a_busy_pilot_that_is_called_hears_what_it_has_to_stop() -> None:
    bench = PilotBench(cpus=1)
    bench.run(ONE)
    bench.pass_time(3)
    bench.hears = False
    bench.take(SendHeartbeat)
    bench.feed(ContactRequested())
    assert bench.one(SendHeartbeat).leases == (ONE.key,)


def test_a_call_during_a_heartbeat_is_followed_by_another_one() -> None:
    bench = a_resting_pilot()
    bench.hears = False
    bench.pass_time(40)
    bench.take(SendHeartbeat)
    bench.feed(ContactRequested())
    assert bench.take(SendHeartbeat) == []
    bench.answer_beat()
    assert bench.take(SendHeartbeat)


def test_calls_do_not_make_a_pilot_send_more_than_a_heartbeat_a_second() -> None:
    bench = a_resting_pilot()
    before = len(beats(bench))
    for _ in range(50):
        bench.feed(ContactRequested())
        bench.pass_time(0.1)
    assert 4 <= len(beats(bench)) - before <= 7


def beats(bench: PilotBench) -> list[SendHeartbeat]:
    return [said for said in bench.said if isinstance(said, SendHeartbeat)]


def test_calls_do_not_hurry_a_pilot_whose_server_is_away() -> None:
    bench = a_resting_pilot()
    bench.hears = False
    for _ in range(200):
        bench.feed(ContactRequested())
        for beat in bench.take(SendHeartbeat):
            bench.feed(ev.HeartbeatFailed(beat.request_id, transient()))
        bench.pass_time(0.1)
    assert len(beats(bench)) < 15
