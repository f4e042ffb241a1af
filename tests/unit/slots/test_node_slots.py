"""Slots in the pilot: attributes set by operators, reports, samples of the node, policy reloads and drains."""

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
    ReportPolicyFaults,
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


def job_in(job_id: int, slot: int = 1, **attributes: bool) -> GrantedJob:
    return with_ad(a_job(job_id, slot=f"slot{slot}", lease_s=1e6), **attributes)


def reported_slots(bench: PilotBench) -> tuple[Slot, ...]:
    """Return the slots of the next heartbeat that has some; answer those before it."""
    for _ in range(10):
        for beat in bench.take(SendHeartbeat):
            if beat.slots is not None:
                return beat.slots
            bench.answer_heartbeat()
        bench.pass_time(0.5)
    raise AssertionError("no heartbeat has slots")


# Attributes set by operators ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("message", ["heartbeat", "request"])
def test_node_attribute_applies_to_next_job(tmp_path: Path, message: str) -> None:
    bench = a_node(tmp_path, SETTABLE)
    bench.answers_heartbeats = False
    attributes = ev.NodeAttributes(3, {"OnlyBig": "true"})
    call = bench.one(RequestJobs)
    assert call.node_attributes_version == 0
    if message == "heartbeat":
        bench.pass_time(31)
        bench.answer_heartbeat(node_attributes=attributes)
        assert bench.one(RecallRequest).request_id == call.request_id, "the slot's ad has changed"
        bench.feed(ev.JobsGranted(call.request_id))
    else:
        bench.feed(ev.JobsGranted(call.request_id, node_attributes=attributes))
    bench.pass_time(1)
    new_call = bench.take(RequestJobs)[-1]
    assert new_call.node_attributes_version == 3
    bench.feed(ev.JobsGranted(new_call.request_id, (small := job_in(1),)))
    assert bench.outcome(small) is Outcome.DECLINED


def test_heartbeat_has_settable_attributes_and_version(tmp_path: Path) -> None:
    bench = a_node(tmp_path, SETTABLE, answers_heartbeats=False)
    beat = bench.one(SendHeartbeat)
    assert (beat.settable, beat.node_attributes_version) == (("OnlyBig",), 0)
    bench.answer_heartbeat(node_attributes=ev.NodeAttributes(7, {"OnlyBig": "true"}))
    bench.pass_time(1)
    assert bench.take(SendHeartbeat)[-1].node_attributes_version == 7


def test_refused_attributes_are_reported_once(tmp_path: Path) -> None:
    bench = a_node(tmp_path, SETTABLE, answers_heartbeats=False)
    bench.answer_heartbeat(node_attributes=ev.NodeAttributes(1, {"OnlyBig": "true", "Start": "false"}))
    assert set(bench.one(ReportRefusedAttributes).refused) == {"Start"}
    bench.answer_heartbeat(node_attributes=ev.NodeAttributes(1, {"OnlyBig": "true", "Start": "false"}))
    assert bench.take(ReportRefusedAttributes) == []


def test_policy_fault_is_logged_and_reported_until_it_is_mended(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\n", answers_heartbeats=False)
    reported_slots(bench)
    bench.answer_heartbeat()
    call = bench.take(RequestJobs)[-1]
    bench.feed(ev.JobsGranted(call.request_id, slot_faults={"slot2": "START costs too much"}))
    assert bench.one(ReportPolicyFaults).faults == {"slot2": "START costs too much"}
    assert [slot.policy_fault for slot in reported_slots(bench)] == ["", "START costs too much"]
    bench.answer_heartbeat()
    bench.take(ReportPolicyFaults)
    bench.pass_time(60)
    bench.feed(ev.JobsGranted(bench.take(RequestJobs)[-1].request_id))
    assert bench.one(ReportPolicyFaults).faults == {"slot2": ""}


@pytest.mark.parametrize("source", ["shipped", "published"])
def test_only_multicore_attribute_declines_single_core_jobs(shared_data: Path, source: str) -> None:
    path = SHIPPED / "multicore-drain.conf" if source == "shipped" else shared_data / "policies" / "fallow.conf"
    bench = PilotBench(8, 16000, slots=slots_under(path), answers_heartbeats=False)
    bench.answer_heartbeat(node_attributes=ev.NodeAttributes(1, {"OnlyMulticore": "true"}))
    bench.pass_time(0)
    call = bench.take(RequestJobs)[-1]
    small, big = with_ad(a_job(1)), with_ad(a_job(2, cpus=8))
    bench.feed(ev.JobsGranted(call.request_id, (small, big)))
    slots = bench.machine.payloads.slots
    assert (slots.of(small.key), bench.outcome(small)) == (None, Outcome.DECLINED)
    assert slots.of(big.key) is not None


# Reports --------------------------------------------------------------------------------------------------------------


def test_slot_ad_is_reported_on_change_and_on_request(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\n", answers_heartbeats=False)
    assert all("SlotID" in slot.ad for slot in reported_slots(bench))
    bench.answer_heartbeat()
    bench.run(job_in(1, 2))
    assert [(slot.name, bool(slot.ad)) for slot in reported_slots(bench)] == [("slot1", False), ("slot2", True)]
    bench.answer_heartbeat(node_wanted=True)
    assert all(slot.ad for slot in reported_slots(bench))


def test_loads_are_reported_periodically() -> None:
    bench = PilotBench(sample=NodeSample(BOOT_S, load=1.5), rules=PilotRules(node_refresh_s=60))
    bench.pass_time(130)
    reported = [beat.slots for beat in bench.instructions if isinstance(beat, SendHeartbeat) and beat.slots]
    assert 3 <= len(reported) <= 4
    assert reported[-1][0].readings["TotalLoadAvg"] == 1.5


def test_first_sample_is_reported_soon() -> None:
    bench = PilotBench(sample=NodeSample(BOOT_S, load=1.5))
    bench.pass_time(3)
    reported = [beat.slots for beat in bench.instructions if isinstance(beat, SendHeartbeat) and beat.slots]
    assert reported[-1][0].readings["TotalLoadAvg"] == 1.5


def test_slot_has_start_of_state_and_activity(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\nWANT_SUSPEND = True\nSUSPEND = $(ActivityTimer) > 20\nCONTINUE = False\n")
    bench.run(job_in(1))
    bench.pass_time(30)
    slot = bench.slot("slot1")
    assert slot.activity == "Suspended"
    assert slot.since_state.boot_s - BOOT_S < 1 < 20 < slot.since.boot_s - BOOT_S


# The node -------------------------------------------------------------------------------------------------------------


def test_node_with_policy_is_sampled_periodically(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\n")
    bench.take(SampleNode)
    bench.pass_time(50)
    assert 9 <= len(bench.take(SampleNode)) <= 11


def test_slots_are_polled_after_first_sample(tmp_path: Path) -> None:
    recent_input = NodeSample(BOOT_S, keyboard_idle_s=1)
    bench = a_node(tmp_path, "NUM_SLOTS = 1\nIS_OWNER = KeyboardIdle < 60\n", sample=recent_input)
    bench.pass_time(1)
    assert bench.state_and_activity() == ["Owner/Idle"]


def test_keyboard_activity_suspends_and_idle_time_continues_job(tmp_path: Path) -> None:
    policy = "NUM_SLOTS = 1\nWANT_SUSPEND = True\nSUSPEND = KeyboardIdle < 60\nCONTINUE = KeyboardIdle > 300\n"
    bench = a_node(tmp_path, policy)
    bench.run(job := job_in(1))
    bench.pass_time(20)
    assert bench.take(SuspendPayload) == []
    bench.sample = NodeSample(BOOT_S, keyboard_idle_s=1)
    bench.pass_time(11)
    assert bench.one(SuspendPayload).key == job.key
    bench.sample = NodeSample(BOOT_S, keyboard_idle_s=301)
    bench.pass_time(11)
    assert bench.one(ContinuePayload).key == job.key


def test_slots_are_polled_in_order_and_see_earlier_changes(tmp_path: Path) -> None:
    other_is_busy = 'ifThenElse(SlotID == 1, slot2_Activity, slot1_Activity) == "Busy"'
    suspending = f"WANT_SUSPEND = True\nSUSPEND = {other_is_busy}\nCONTINUE = False\n"
    bench = a_node(tmp_path, f"NUM_SLOTS = 2\nSTARTD_SLOT_ATTRS = Activity\n{suspending}")
    bench.run(job_in(1, 1), job_in(2, 2))
    bench.pass_time(30)
    assert bench.state_and_activity() == ["Claimed/Suspended", "Claimed/Busy"]


def test_suspended_glidein_suspends_all_jobs(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\n")
    bench.run(job_in(1, 1), job_in(2, 2))
    bench.feed(ev.SuspendRequested())
    assert bench.state_and_activity() == ["Claimed/Suspended"] * 2
    bench.pass_time(60)
    assert bench.take(ContinuePayload) == [], "CONTINUE is true, but the suspension was ordered"
    bench.feed(ev.ContinueRequested())
    assert bench.state_and_activity() == ["Claimed/Busy"] * 2


# Policies that change -------------------------------------------------------------------------------------------------


def test_reloaded_policy_applies_to_running_jobs_and_offers(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\n", answers_heartbeats=False)
    bench.answer_heartbeat()
    bench.run(job := job_in(1))
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
    assert beat.slots is not None, "the node is reported again"


def test_refused_policy_reports_node_again() -> None:
    bench = PilotBench()
    bench.pass_time(2)
    bench.take(SendHeartbeat)
    bench.answers_heartbeats = False
    bench.feed(ev.PolicyRefused("line 3: no expression"))
    assert bench.one(SendHeartbeat).slots is not None


# Drains ---------------------------------------------------------------------------------------------------------------


def drain(bench: PilotBench, *, evict: bool = False) -> None:
    bench.answers_heartbeats = False
    bench.pass_time(1)
    bench.answer_heartbeat(commands=(ev.DrainCommanded("maintenance", evict),))


def test_drain_lets_jobs_finish_without_policy() -> None:
    bench = PilotBench()
    bench.run(ONE)
    bench.grant(TWO)
    drain(bench)
    assert bench.state_and_activity() == ["Drained/Retiring", "Claimed/Retiring", "Claimed/Idle"]
    bench.feed(ev.JobPrepared(TWO.key))
    bench.feed(ev.PayloadStarted(TWO.key))
    bench.pass_time(1000)
    assert bench.take(StopPayload) == []
    for job in (ONE, TWO):
        bench.exit(job)
    assert bench.state_and_activity() == ["Drained/Idle"]


def test_drain_lets_jobs_finish_under_policy(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\n")
    bench.run(job := job_in(1))
    drain(bench)
    assert bench.state_and_activity() == ["Claimed/Retiring", "Drained/Retiring"]
    bench.pass_time(1000)
    assert bench.take(StopPayload) == []
    bench.exit(job)
    assert bench.state_and_activity() == ["Drained/Idle"] * 2
    assert bench.machine.phase is Phase.DRAINING


def test_job_vacated_by_policy_gets_reason_of_drain(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\nMaxJobRetirementTime = -1\n")
    bench.run(job := job_in(1))
    drain(bench)
    assert bench.one(StopPayload).key == job.key
    bench.answer_recalled()
    bench.answer_heartbeat()
    bench.feed(ev.PayloadExited(job.key, None, 9))
    outcome = next(report for report in bench.reports() if report.outcome)
    assert (outcome.key, outcome.reason) == (job.key, "maintenance")


def test_evicting_drain_overrides_retirement_of_policy(tmp_path: Path) -> None:
    bench = a_node(tmp_path, "NUM_SLOTS = 2\nMaxJobRetirementTime = 500\n")
    bench.run(job := job_in(1))
    drain(bench, evict=True)
    assert bench.one(StopPayload).key == job.key
    assert bench.state_and_activity("slot1") == ["Preempting/Vacating"]
    bench.feed(ev.PayloadExited(job.key, None, 15))
    assert [attempt.ending for attempt in bench.machine.payloads] == [Ending(Outcome.EVICTED, "maintenance")]


def test_slot_of_stopped_job_is_vacating_until_exit() -> None:
    bench = PilotBench(cpus=1)
    bench.run(ONE)
    bench.feed(ev.LimitPassed(ONE.key, "it used 90 MiB"))
    assert bench.state_and_activity() == ["Unclaimed/Idle", "Preempting/Vacating"]
    bench.exit(ONE)
    assert bench.state_and_activity() == ["Unclaimed/Idle"], "the claim ends with the job"
