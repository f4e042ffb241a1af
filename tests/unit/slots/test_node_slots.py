"""The slots of a node as its pilot has them: what they show one another, and what moves them from outside."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.values.amounts import Amounts
from pilotage.values.attempts import Outcome
from pilotage_pilot.core import events as ev
from pilotage_pilot.core.ads.attributes import NodeSample
from pilotage_pilot.core.attempts.attempt import Ending
from pilotage_pilot.core.instructions import (
    ContinuePayload,
    RecallRequest,
    ReportRefusedAttributes,
    RequestJobs,
    SampleNode,
    SendHeartbeat,
    Slot,
    StopPayload,
    SuspendPayload,
)
from pilotage_pilot.core.lifetime import Phase
from pilotage_pilot.core.model import GrantedJob
from pilotage_pilot.core.rules import PilotRules
from pilotage_pilot.policy.loading import load_policy
from support.live_slots import SHIPPED
from support.pilot_bench import BOOT_S, ONE, TWO, PilotBench, a_job, slots_under, with_ad

SETTABLE = """
ENABLE_RUNTIME_CONFIG = True
SETTABLE_ATTRS_ADMINISTRATOR = OnlyBig
OnlyBig = False
STARTD_ATTRS = OnlyBig
START = (OnlyBig =!= True) || (TARGET.RequestCpus >= 2)
IS_OWNER = False
"""


def a_node(folder: Path, policy: str, cpus: int = 4, **bench: object) -> PilotBench:
    path = folder / "policy.conf"
    path.write_text(policy)
    return PilotBench(cpus, 8000, slots=slots_under(path), **bench)  # type: ignore[arg-type]


def a_run(job_id: int, slot: int = 1, **attributes: bool) -> GrantedJob:
    return with_ad(a_job(job_id, slot=f"slot{slot}", lease_s=1e6), **attributes)


def told_slots(bench: PilotBench) -> tuple[Slot, ...]:
    """Return the slots that the next heartbeat brings that does; others before it are answered."""
    for _ in range(10):
        for beat in bench.take(SendHeartbeat):
            if beat.slots is not None:
                return beat.slots
            bench.answer_beat()
        bench.pass_time(0.5)
    raise AssertionError("the slots are not told")


# What operators set --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("through", ["heartbeat", "request"])
def test_what_an_operator_sets_holds_at_once_for_the_next_job(tmp_path: Path, through: str) -> None:
    bench = a_node(tmp_path, SETTABLE)
    bench.hears = False
    told = ev.NodeAttributes(3, {"OnlyBig": "true"})
    call = bench.one(RequestJobs)
    assert call.node_attributes_version == 0
    if through == "heartbeat":
        bench.pass_time(31)
        bench.answer_beat(node_attributes=told)
        assert bench.one(RecallRequest).request_id == call.request_id, "the slot's ad is another"
        bench.feed(ev.JobsGranted(call.request_id))
    else:
        bench.feed(ev.JobsGranted(call.request_id, node_attributes=told))
    bench.pass_time(1)
    again = bench.take(RequestJobs)[-1]
    assert again.node_attributes_version == 3
    bench.feed(ev.JobsGranted(again.request_id, (small := a_run(1),)))
    assert bench.outcome(small) is Outcome.DECLINED


def test_heartbeats_say_what_may_be_set_and_which_settings_the_pilot_has(tmp_path: Path) -> None:
    bench = a_node(tmp_path, SETTABLE, hears=False)
    beat = bench.one(SendHeartbeat)
    assert (beat.settable, beat.node_attributes_version) == (("OnlyBig",), 0)
    bench.answer_beat(node_attributes=ev.NodeAttributes(7, {"OnlyBig": "true"}))
    bench.pass_time(1)
    assert bench.take(SendHeartbeat)[-1].node_attributes_version == 7


def test_what_may_not_be_set_is_told_to_people_and_the_rest_holds(tmp_path: Path) -> None:
    bench = a_node(tmp_path, SETTABLE, hears=False)
    bench.answer_beat(node_attributes=ev.NodeAttributes(1, {"OnlyBig": "true", "Start": "false"}))
    assert set(bench.one(ReportRefusedAttributes).refused) == {"Start"}
    bench.answer_beat(node_attributes=ev.NodeAttributes(1, {"OnlyBig": "true", "Start": "false"}))
    assert bench.take(ReportRefusedAttributes) == []


@pytest.mark.parametrize("whose", ["shipped", "published"])
def test_an_operator_bars_single_core_jobs_from_a_node_that_is_to_drain_for_multicore_ones(
    shared_data: Path, whose: str
) -> None:
    path = SHIPPED / "multicore-drain.conf" if whose == "shipped" else shared_data / "policies" / "fallow.conf"
    bench = PilotBench(8, 16000, slots=slots_under(path), hears=False)
    bench.answer_beat(node_attributes=ev.NodeAttributes(1, {"OnlyMulticore": "true"}))
    bench.pass_time(0)
    call = bench.take(RequestJobs)[-1]
    small, big = with_ad(a_job(1)), with_ad(a_job(2, cpus=8))
    bench.feed(ev.JobsGranted(call.request_id, (small, big)))
    slots = bench.machine.payloads.slots
    assert (slots.of(small.key), bench.outcome(small)) == (None, Outcome.DECLINED)
    assert slots.of(big.key) is not None


# Reports -------------------------------------------------------------------------------------------------------------


def test_a_slots_ad_is_told_when_it_is_another_and_again_when_the_server_has_lost_it(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\n", hears=False)
    assert all("SlotID" in slot.ad for slot in told_slots(bench))
    bench.answer_beat()
    bench.run(a_run(1, 2))
    assert [(slot.name, bool(slot.ad)) for slot in told_slots(bench)] == [("slot1", False), ("slot2", True)]
    bench.answer_beat(node_wanted=True)
    assert all(slot.ad for slot in told_slots(bench))


def test_loads_are_told_now_and_then_though_nothing_else_is_new() -> None:
    bench = PilotBench(sample=NodeSample(BOOT_S, load=1.5), rules=PilotRules(node_refresh_s=60))
    bench.pass_time(130)
    told = [beat.slots for beat in bench.said if isinstance(beat, SendHeartbeat) and beat.slots]
    assert 3 <= len(told) <= 4
    assert told[-1][0].readings["TotalLoadAvg"] == 1.5


def test_what_the_first_look_found_is_told_soon() -> None:
    bench = PilotBench(sample=NodeSample(BOOT_S, load=1.5))
    bench.pass_time(3)
    told = [beat.slots for beat in bench.said if isinstance(beat, SendHeartbeat) and beat.slots]
    assert told[-1][0].readings["TotalLoadAvg"] == 1.5


def test_a_slot_tells_since_when_it_has_its_state_and_its_activity(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\nWANT_SUSPEND = True\nSUSPEND = $(ActivityTimer) > 20\nCONTINUE = False\n")
    bench.run(a_run(1))
    bench.pass_time(30)
    slot = bench.slot("slot1")
    assert slot.activity == "Suspended"
    assert slot.since_state.boot_s - BOOT_S < 1 < 20 < slot.since.boot_s - BOOT_S


# The node ------------------------------------------------------------------------------------------------------------


def test_a_node_with_a_policy_is_looked_at_often_and_one_at_a_time(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\n")
    bench.take(SampleNode)
    bench.pass_time(50)
    assert 9 <= len(bench.take(SampleNode)) <= 11


def test_slots_look_at_themselves_when_the_node_has_first_been_looked_at(tmp_path: Path) -> None:
    somebody = NodeSample(BOOT_S, keyboard_idle_s=1)
    bench = a_node(tmp_path, "NUM_SLOTS = 1\nIS_OWNER = KeyboardIdle < 60\n", sample=somebody)
    bench.pass_time(1)
    assert bench.doing() == ["Owner/Idle"]


def test_what_people_do_at_the_node_moves_its_slots(tmp_path: Path) -> None:
    policy = "NUM_SLOTS = 1\nWANT_SUSPEND = True\nSUSPEND = KeyboardIdle < 60\nCONTINUE = KeyboardIdle > 300\n"
    bench = a_node(tmp_path, policy)
    bench.run(job := a_run(1))
    bench.pass_time(20)
    assert bench.take(SuspendPayload) == []
    bench.sample = NodeSample(BOOT_S, keyboard_idle_s=1)
    bench.pass_time(11)
    assert bench.one(SuspendPayload).key == job.key
    bench.sample = NodeSample(BOOT_S, keyboard_idle_s=301)
    bench.pass_time(11)
    assert bench.one(ContinuePayload).key == job.key


def test_slots_look_at_themselves_in_their_order_and_each_sees_what_those_before_have_done(tmp_path: Path) -> None:
    other_is_busy = 'ifThenElse(SlotID == 1, slot2_Activity, slot1_Activity) == "Busy"'
    suspending = f"WANT_SUSPEND = True\nSUSPEND = {other_is_busy}\nCONTINUE = False\n"
    bench = a_node(tmp_path, f"NUM_SLOTS = 2\nSTARTD_SLOT_ATTRS = Activity\n{suspending}")
    bench.run(a_run(1, 1), a_run(2, 2))
    bench.pass_time(30)
    assert bench.doing() == ["Claimed/Suspended", "Claimed/Busy"]


def test_a_glidein_that_is_suspended_suspends_every_job_until_it_goes_on(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\n")
    bench.run(a_run(1, 1), a_run(2, 2))
    bench.feed(ev.SuspendRequested())
    assert bench.doing() == ["Claimed/Suspended"] * 2
    bench.pass_time(60)
    assert bench.take(ContinuePayload) == [], "CONTINUE is True, but somebody wanted them suspended"
    bench.feed(ev.ContinueRequested())
    assert bench.doing() == ["Claimed/Busy"] * 2


# Policies that change ------------------------------------------------------------------------------------------------


def test_a_policy_that_is_read_anew_holds_for_what_runs_and_for_what_is_offered(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\n", hears=False)
    bench.answer_beat()
    bench.run(job := a_run(1))
    call = bench.take(RequestJobs)[-1]
    new = tmp_path / "new.conf"
    new.write_text("NUM_SLOTS = 2\nPREEMPT = True\nSTART = TARGET.IsGood\n")
    loaded = load_policy(new, Amounts(4, 8000, 10_000))
    bench.take(SendHeartbeat)
    bench.feed(ev.PolicyReloaded(loaded.policy))
    bench.pass_time(0)
    assert bench.one(StopPayload).key == job.key
    assert bench.one(RecallRequest).request_id == call.request_id
    beat = bench.take(SendHeartbeat)[-1]
    assert beat.slots is not None, "the node is told again"


def test_a_policy_that_is_refused_changes_nothing_but_the_node_is_told_again() -> None:
    bench = PilotBench()
    bench.pass_time(2)
    bench.take(SendHeartbeat)
    bench.hears = False
    bench.feed(ev.PolicyRefused("line 3: no expression"))
    assert bench.one(SendHeartbeat).slots is not None


# The end -------------------------------------------------------------------------------------------------------------


def drain(bench: PilotBench, *, evict: bool = False) -> None:
    bench.hears = False
    bench.pass_time(1)
    bench.answer_beat(commands=(ev.DrainCommanded("maintenance", evict),))


def test_a_drain_leaves_jobs_to_end_where_there_is_no_policy() -> None:
    bench = PilotBench()
    bench.run(ONE)
    bench.grant(TWO)
    drain(bench)
    assert bench.doing() == ["Drained/Retiring", "Claimed/Retiring", "Claimed/Idle"]
    bench.feed(ev.JobPrepared(TWO.key))
    bench.feed(ev.PayloadStarted(TWO.key))
    bench.pass_time(1000)
    assert bench.take(StopPayload) == []
    for job in (ONE, TWO):
        bench.exit(job)
    assert bench.doing() == ["Drained/Idle"]


def test_a_drain_leaves_jobs_to_end_under_a_policy_too(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\n")
    bench.run(job := a_run(1))
    drain(bench)
    assert bench.doing() == ["Claimed/Retiring", "Drained/Retiring"]
    bench.pass_time(1000)
    assert bench.take(StopPayload) == []
    bench.exit(job)
    assert bench.doing() == ["Drained/Idle"] * 2
    assert bench.machine.phase is Phase.DRAINING


def test_a_job_that_the_policy_wants_out_hears_why_the_node_drains(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\nMaxJobRetirementTime = -1\n")
    bench.run(job := a_run(1))
    drain(bench)
    assert bench.one(StopPayload).key == job.key
    bench.answer_taken_back()
    bench.answer_beat()
    bench.feed(ev.PayloadExited(job.key, None, 9))
    outcome = next(report for report in bench.reports() if report.outcome)
    assert (outcome.key, outcome.reason) == (job.key, "maintenance")


def test_a_drain_that_evicts_asks_payloads_to_end_at_once_whatever_the_policy(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\nMaxJobRetirementTime = 500\n")
    bench.run(job := a_run(1))
    drain(bench, evict=True)
    assert bench.one(StopPayload).key == job.key
    assert bench.doing("slot1") == ["Preempting/Vacating"]
    bench.feed(ev.PayloadExited(job.key, None, 15))
    assert [attempt.ending for attempt in bench.machine.payloads] == [Ending(Outcome.EVICTED, "maintenance")]


def test_a_job_that_its_server_stops_leaves_a_slot_that_shows_it() -> None:
    bench = PilotBench(cpus=1)
    bench.run(ONE)
    bench.feed(ev.LimitPassed(ONE.key, "it used 90 MiB"))
    assert bench.doing() == ["Unclaimed/Idle", "Preempting/Vacating"]
    bench.exit(ONE)
    assert bench.doing() == ["Unclaimed/Idle"], "the claim ends with the job"
