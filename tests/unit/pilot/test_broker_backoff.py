"""A pilot that hears of jobs through a broker: when it asks, when it rests, and what a break changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from pilotage.values.attempts import AttemptKey
from pilotage.values.offers import VacateOrder
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.events import BrokerChanged, ContactRequested, JobsAnnounced
from pilotage_pilot.core.instructions import ReadPools, RecallRequest, RequestJobs
from pilotage_pilot.core.lifetime import Phase
from pilotage_pilot.core.rules import PilotRules
from pilotage_pilot.policy.loading import load_policy
from support.mosquitto import HOUR_S, SELDOM, a_listener, a_resting_pilot, ask_in_vain
from support.pilot_bench import ONE, PilotBench, a_job, slots_under, with_ad


def test_a_request_of_a_pilot_that_hears_a_broker_does_not_wait() -> None:
    assert a_listener().one(RequestJobs).wait_s == 0


def test_a_pilot_rests_after_an_answer_without_jobs_and_asks_now_and_then() -> None:
    bench = a_resting_pilot(PilotRules(idle_ask_s=60))
    bench.pass_time(58)
    assert bench.take(RequestJobs) == []
    bench.pass_time(1)
    assert bench.one(RequestJobs).wait_s == 0


def test_pilots_that_came_in_vain_together_do_not_come_together_again() -> None:
    bench = a_listener(PilotRules(idle_ask_s=60), jitter=0.0)
    ask_in_vain(bench)
    bench.pass_time(28)
    assert bench.take(RequestJobs) == []
    bench.pass_time(1)
    assert bench.take(RequestJobs)


def test_a_resting_pilot_asks_at_once_when_jobs_are_announced() -> None:
    bench = a_resting_pilot()
    bench.pass_time(100)
    bench.feed(JobsAnnounced())
    assert bench.one(RequestJobs).wait_s == 0


def test_an_announcement_during_a_request_is_followed_by_another_request() -> None:
    bench = a_listener()
    call = bench.one(RequestJobs)
    bench.pass_time(5)
    bench.feed(JobsAnnounced())
    assert bench.take(RequestJobs) == []
    bench.feed(ev.JobsGranted(call.request_id))
    ask_in_vain(bench)
    assert bench.take(RequestJobs) == [], "one announcement is one more request"


def test_announcements_do_not_make_a_pilot_ask_in_vain_more_than_once_a_second() -> None:
    bench = a_listener()
    for _ in range(50):
        bench.feed(JobsAnnounced())
        for call in bench.take(RequestJobs):
            bench.feed(ev.JobsGranted(call.request_id))
        bench.pass_time(0.1)
    assert len({said.request_id for said in bench.said if isinstance(said, RequestJobs)}) <= 6


def test_a_pilot_asks_on_while_it_gets_jobs() -> None:
    bench = a_listener()
    bench.run(ONE)
    assert bench.one(RequestJobs).slots[0].free.cpus == 1


def test_a_resting_pilot_asks_when_something_becomes_free() -> None:
    bench = a_listener()
    bench.run(ONE)
    ask_in_vain(bench)
    bench.take(RequestJobs)
    bench.feed(ev.JobsGranted(last(bench).request_id))
    bench.pass_time(10)
    assert bench.take(RequestJobs) == []
    bench.exit(ONE)
    bench.feed(ev.OutputStored(ONE.key))
    assert bench.take(RequestJobs)


def last(bench: PilotBench) -> RequestJobs:
    return [said for said in bench.said if isinstance(said, RequestJobs)][-1]


def test_what_becomes_free_during_a_request_is_asked_for_after_it() -> None:
    bench = a_listener()
    bench.run(ONE)
    call = bench.one(RequestJobs)
    bench.feed(ev.PayloadExited(ONE.key, 0, None))
    bench.feed(ev.OutputStored(ONE.key))
    bench.feed(ev.JobsGranted(call.request_id))
    for each in bench.take(RequestJobs):
        bench.feed(ev.JobsGranted(each.request_id))
    bench.pass_time(2)
    assert max(offer.free.cpus for offer in last(bench).slots) == 2


@pytest.fixture
def policy(tmp_path: Path) -> Path:
    path = tmp_path / "policy.conf"
    path.write_text(
        "NUM_SLOTS = 2\nSTART = TARGET.Ok =!= False\nRANK = 10 * (TARGET.IsGood =?= True)\n"
        "MaxJobRetirementTime = 1000\nENABLE_RUNTIME_CONFIG = True\nSETTABLE_ATTRS_ADMINISTRATOR = Fast\n"
    )
    return path


def a_node(policy: Path) -> PilotBench:
    bench = PilotBench(2, 2000, rules=SELDOM, slots=slots_under(policy), opened=False)
    bench.feed(BrokerChanged(connected=True))
    bench.open()
    return bench


def test_a_resting_pilot_asks_when_operators_have_set_an_attribute(policy: Path) -> None:
    bench = a_node(policy)
    ask_in_vain(bench)
    bench.pass_time(40)
    assert bench.take(RequestJobs) == []
    bench.hears = False
    bench.feed(ContactRequested())
    bench.feed(ev.JobsGranted(bench.one(RequestJobs).request_id))
    bench.pass_time(2)
    bench.answer_beat(node_attributes=ev.NodeAttributes(1, {"Fast": "True"}))
    bench.pass_time(0)
    assert "Fast" in "".join(part.text for part in bench.one(RequestJobs).ad_parts) + str(last(bench).slots)


def test_a_resting_pilot_asks_when_its_policy_is_another(policy: Path) -> None:
    bench = a_node(policy)
    ask_in_vain(bench)
    policy.write_text(policy.read_text() + "START = TARGET.Ok\n")
    bench.feed(ev.PolicyReloaded(load_policy(policy, bench.machine.payloads.slots.total).policy))
    bench.pass_time(1)
    assert bench.take(RequestJobs)


def test_whether_a_slot_is_still_wanted_for_a_better_job_is_asked_though_the_pilot_rests(policy: Path) -> None:
    bench = a_node(policy)
    bench.run(*(with_ad(a_job(number, slot=f"slot{number}", lease_s=1e6)) for number in (1, 2)))
    bench.pass_time(2)
    wanted = VacateOrder("slot1", "bob's job is better")
    first, *_ = bench.take(RequestJobs)
    bench.feed(ev.JobsGranted(first.request_id, vacate=(wanted,)))
    for _ in range(3):
        bench.pass_time(1)
        for call in bench.take(RequestJobs):
            bench.feed(ev.JobsGranted(call.request_id))
    bench.pass_time(6)
    assert bench.take(RequestJobs) == []
    bench.pass_time(3)
    ordered = [offer.occupied.ordered for offer in bench.one(RequestJobs).slots if offer.occupied is not None]
    assert any(ordered)


# The connection ------------------------------------------------------------------------------------------------------


def test_a_pilot_waits_at_the_server_as_soon_as_the_broker_is_gone() -> None:
    bench = a_resting_pilot()
    bench.pass_time(7)
    bench.feed(BrokerChanged(connected=False))
    assert bench.one(RequestJobs).wait_s == SELDOM.wait_s


def test_a_request_that_waits_when_the_broker_comes_goes_on_waiting_and_is_no_reason_to_rest() -> None:
    bench = PilotBench(rules=SELDOM)
    call = bench.one(RequestJobs)
    bench.pass_time(3)
    bench.feed(BrokerChanged(connected=True))
    assert bench.take(RecallRequest) == []
    bench.pass_time(17)
    bench.feed(ev.JobsGranted(call.request_id))
    assert bench.one(RequestJobs).wait_s == 0, "what was announced before it was heard is asked for"
    bench.feed(ev.JobsGranted(last(bench).request_id))
    bench.pass_time(60)
    assert bench.take(RequestJobs) == []


def test_a_connection_that_breaks_and_comes_back_makes_a_pilot_ask_once() -> None:
    bench = a_resting_pilot()
    bench.feed(BrokerChanged(connected=False))
    waits = bench.one(RequestJobs)
    bench.feed(BrokerChanged(connected=True))
    bench.pass_time(20)
    bench.feed(ev.JobsGranted(waits.request_id))
    ask_in_vain(bench)
    bench.pass_time(60)
    assert bench.take(RequestJobs) == []


def test_a_pilot_without_a_broker_never_rests() -> None:
    bench = PilotBench(rules=SELDOM)
    for _ in range(5):
        call = bench.one(RequestJobs)
        assert call.wait_s == SELDOM.wait_s
        bench.pass_time(call.wait_s)
        bench.feed(ev.JobsGranted(call.request_id))


# Patience ------------------------------------------------------------------------------------------------------------


def test_a_pilot_that_runs_what_there_is_ends_after_one_vain_request() -> None:
    bench = a_listener(PilotRules(max_idle_s=0))
    bench.feed(ev.JobsGranted(bench.one(RequestJobs).request_id))
    assert bench.machine.phase is not Phase.OPEN


@pytest.mark.parametrize("ends", [lambda bench: bench.take(RequestJobs)[-1:], lambda bench: []], ids=["job", "none"])
def test_a_pilot_asks_once_more_before_it_gives_up_for_want_of_jobs(
    ends: Callable[[PilotBench], list[RequestJobs]],
) -> None:
    bench = a_listener(PilotRules(max_idle_s=30, idle_ask_s=HOUR_S))
    ask_in_vain(bench)
    bench.pass_time(30)
    assert bench.machine.phase is Phase.OPEN
    for call in ends(bench):
        bench.feed(ev.JobsGranted(call.request_id, (a_job(1),)))
        assert (bench.machine.phase, bench.outcome(ONE)) == (Phase.OPEN, None)
        return
    ask_in_vain(bench)
    assert bench.machine.phase is not Phase.OPEN


def test_a_pilot_whose_broker_has_gone_ends_when_its_patience_does() -> None:
    bench = a_resting_pilot(PilotRules(max_idle_s=30, idle_ask_s=HOUR_S))
    bench.feed(BrokerChanged(connected=False))
    while bench.after_s < 29:
        call = bench.one(RequestJobs)
        bench.pass_time(call.wait_s)
        bench.feed(ev.JobsGranted(call.request_id))
    bench.pass_time(1)
    assert bench.machine.phase is not Phase.OPEN


def test_pools_that_have_changed_are_read_again_though_the_pilot_rests() -> None:
    bench = a_listener()
    bench.pass_time(1)
    bench.take(ReadPools)
    bench.feed(ev.JobsGranted(bench.one(RequestJobs).request_id, pools_changed=True))
    bench.pass_time(15)
    assert bench.take(ReadPools) == [ReadPools(fresh=True)]
    bench.feed(ev.PoolsRead(True, ("b" * 64,)))
    assert bench.take(RequestJobs) == []


def test_jobs_are_placed_as_ever() -> None:
    bench = a_resting_pilot()
    bench.feed(JobsAnnounced())
    bench.run(a_job(1), a_job(2))
    for number in (1, 2):
        bench.exit(a_job(number))
        bench.feed(ev.OutputStored(AttemptKey(number, 1)))
    claimed = [offer.claim.owner for call in bench.take(RequestJobs) for offer in call.slots if offer.claim]
    assert "alice" in claimed
