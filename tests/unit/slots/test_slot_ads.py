"""Slot ads: facts, states, claims, run times, loads, versions, and the built-in ads without a policy."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pilotage.classads.evaluation import Ad, NoValue
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.ads.attributes import NodeFacts, SlotFacts, SlotKind
from pilotage_pilot.core.ads.node_ads import BuiltInAds
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.core.slots.events import ContinueOrdered, SuspendOrdered
from pilotage_pilot.core.slots.layout import lay_out
from support.live_slots import ANN, BEGIN_S, NODE, LiveSlots, a_node, job_ad, policy_of, value_at_server

PER_CORE = {"NUM_SLOTS": "4"}


def test_static_slot_ad_has_sizes_of_slot_and_node() -> None:
    ad = a_node(**PER_CORE).ad_values(3)
    names = ("Name", "Machine", "SlotID", "VirtualMachineID", "SlotType", "Cpus", "Memory", "Disk", "TotalSlotCpus")
    assert [ad[name] for name in names] == ["slot3@node1", "node1", 3, 3, "Static", 2, 4000, 20_000 * 1024, 2]
    assert [ad[name] for name in ("DetectedCpus", "DetectedMemory", "TotalCpus", "TotalSlots")] == [8, 16000, 8, 4]


def test_times_are_whole_unix_seconds() -> None:
    node = a_node()
    node.poll(2.75)
    node.start(1, job_ad())
    ad = node.ad_values(1)
    assert (ad["MyCurrentTime"], ad["EnteredCurrentState"], ad["EnteredCurrentActivity"]) == (BEGIN_S + 2,) * 3
    assert (ad["State"], ad["Activity"], ad["JobStart"]) == ("Claimed", "Busy", BEGIN_S + 2)


def test_claimed_slot_ad_has_account_and_job() -> None:
    node = a_node(RANK="TARGET.Prio")
    node.start(1, job_ad(Prio=3))
    ad = node.ad_values(1)
    names = ("RemoteOwner", "RemoteUser", "RemoteGroup", "JobId", "CurrentRank")
    assert [ad[name] for name in names] == ["ann", "ann@lhcb", "user", "7.0", 3.0]
    node.end(1)
    assert "JobId" not in node.ad_values(1)
    assert node.ad_values(1)["RemoteOwner"] == "ann"  # the claim is kept


def test_run_time_grows_except_during_suspension() -> None:
    node = a_node(PREEMPT="TotalJobRunTime > 20", WANT_SUSPEND="True")
    node.start(1, job_ad())
    node.poll(10.0)
    node.feed(1, SuspendOrdered())
    node.poll(30.0)
    assert [node.value(1, "PREEMPT")] == [False]
    node.feed(1, ContinueOrdered())
    node.poll(10.0)
    assert node.value(1, "PREEMPT") is False
    node.poll(1.0)
    assert node.value(1, "PREEMPT") is True
    assert value_at_server(node, 1, "TotalJobSuspendTime") == 30


def test_claim_run_time_sums_over_jobs() -> None:
    node = a_node(KILL="TotalClaimRunTime")
    for _ in range(2):
        node.start(1, job_ad())
        node.poll(15.0)
        node.end(1)
        node.poll(100.0)
    assert node.value(1, "KILL") == 30


def test_owner_load_goes_to_owner_slots_first() -> None:
    node = a_node(**PER_CORE, SLOT3_START="False")
    assert node.state_and_activity(3) == "Owner/Idle"
    node.sample(load=3.756, slot1=1.0, slot2=0.25)
    loads = [(node.ad_values(slot)["LoadAvg"], node.ad_values(slot)["CondorLoadAvg"]) for slot in (1, 2, 3, 4)]
    assert loads == [(2.0, 1.0), (0.76, 0.25), (1.0, 0.0), (0.0, 0.0)]
    assert (node.ad_values(4)["TotalLoadAvg"], node.ad_values(4)["TotalCondorLoadAvg"]) == (3.76, 1.25)


def test_last_slot_gets_remaining_load() -> None:
    node = a_node(NUM_SLOTS="2")
    node.sample(load=7.5)
    assert [node.ad_values(slot)["LoadAvg"] for slot in (1, 2)] == [1.0, 6.5]


def test_owner_load_is_never_negative() -> None:
    node = a_node()
    node.sample(load=0.1, slot1=3.0)
    assert [node.ad_values(1)[name] for name in ("LoadAvg", "TotalLoadAvg")] == [3.0, 3.0]


def test_load_of_deleted_slot_is_no_owner_load() -> None:
    node = a_node()
    node.sample(load=2.0, slot1_7=1.5)
    names = ("LoadAvg", "CondorLoadAvg", "TotalLoadAvg", "TotalCondorLoadAvg")
    assert [node.ad_values(1)[name] for name in names] == [2.0, 1.5, 2.0, 1.5]


def test_only_connected_slots_have_keyboard_idle_time() -> None:
    node = a_node(NUM_SLOTS="3", SLOTS_CONNECTED_TO_KEYBOARD="2", SLOTS_CONNECTED_TO_CONSOLE="many")
    node.sample(keyboard_idle_s=5)
    assert [node.ad_values(slot)["KeyboardIdle"] for slot in (1, 2, 3)] == [5, 5, 50_000 + 1200]
    assert [node.ad_values(slot)["ConsoleIdle"] for slot in (1, 2, 3)] == [5, 5, 5]


def test_partitionable_slot_ad_has_free_resources() -> None:
    node = a_node()
    parent = node.layout.slots[0]
    child_amounts = Amounts(2, 3000, 500)
    node.ads.add(SlotFacts("slot1_4", parent.key, child_amounts, SlotKind.DYNAMIC, number=4))
    node.ads.resize("slot1", parent.amounts - child_amounts)
    ad, child = node.ad_values(1), node.ads.plain("slot1_4", node.now)
    assert [ad[name] for name in ("Cpus", "Memory", "TotalSlotCpus", "NumDynamicSlots")] == [6, 13_000, 8, 1]
    assert [child[name] for name in ("Name", "Cpus", "SlotID", "DSlotID")] == ["slot1_4@node1", 2, 1, 4]
    assert [child["DynamicSlot"], child["PartitionableSlot"], child["SlotType"]] == [True, False, "Dynamic"]
    node.ads.remove("slot1_4")
    assert node.ad_values(1)["NumDynamicSlots"] == 0


def test_resizing_partitionable_slot_keeps_version() -> None:
    node = a_node()
    before = node.ads.version("slot1")
    node.ads.resize("slot1", Amounts(1, 1000, 500))
    assert node.ads.version("slot1") == before
    assert (value_at_server(node, 1, "Cpus"), value_at_server(node, 1, "Disk")) == (1, 500 * 1024)


def test_slot_ad_omits_attributes_of_server() -> None:
    node = a_node(START="LastHeardFrom is undefined && RemoteUserPrio is undefined")
    assert node.ads.starts("slot1", job_ad(), node.now) is True


def test_version_changes_with_shared_state_only() -> None:
    node = a_node(**PER_CORE, STARTD_SLOT_ATTRS="State, LoadAvg")
    before = node.ads.version("slot2")
    node.sample(load=5.0, keyboard_idle_s=1)
    node.poll(5.0)
    assert node.ads.version("slot2") == before
    node.start(1, job_ad())  # another slot that START may refer to
    assert node.ads.version("slot2") > before


def test_ad_parts_are_independent_of_state_and_load() -> None:
    node = a_node(**PER_CORE, STARTD_ATTRS="Good", Good="True")
    before = [node.ads.offer(f"slot{slot}", node.now) for slot in (1, 2)]
    node.sample(load=2.0)
    node.start(1, job_ad())
    node.poll(5.0)
    after = [node.ads.offer(f"slot{slot}", node.now) for slot in (1, 2)]
    assert [offer.part_keys for offer in after] == [offer.part_keys for offer in before]
    assert before[0].part_keys[0] == before[1].part_keys[0]
    assert after[0].changes != before[0].changes


def test_reported_ad_omits_state_loads_and_other_slots() -> None:
    node = a_node(**PER_CORE, STARTD_SLOT_ATTRS="State", STARTD_ATTRS="Good", Good="True")
    before = node.ads.full_text("slot1")
    node.sample(load=3.0)
    node.start(2, job_ad())
    assert node.ads.full_text("slot1") == before
    assert Ad.read(before).value("Good") is True
    assert not Ad.read(before).plain().keys() & {"State", "Activity", "LoadAvg", "slot2_State", "EnteredCurrentState"}


def test_machine_ad_of_job_is_complete() -> None:
    node = a_node(**PER_CORE, STARTD_SLOT_ATTRS="State")
    node.start(2, job_ad())
    ad = Ad.read(node.ads.machine_ad("slot2", node.now))
    values = [ad.value(name) for name in ("SlotID", "State", "slot2_State", "slot1_State", "MyCurrentTime", "JobId")]
    assert values == [2, "Claimed", "Claimed", "Unclaimed", BEGIN_S, "7.0"]


@pytest.mark.parametrize(
    ("utc_offset_s", "minute", "day"), [(0, 720, 5), (5400, 810, 5), (12 * 3600, 0, 6), (-43_260, 1439, 4)]
)
def test_clock_of_slot_is_local_time_of_node(utc_offset_s: int, minute: int, day: int) -> None:
    node = a_node(START=f"ClockMin is {minute} && ClockDay is {day}")  # BEGIN is a Friday, at noon
    node.sample(utc_offset_s=utc_offset_s)
    assert node.value(1, "START") is True
    node.poll(after_s=60)
    assert node.value(1, "START") is False


def test_slot_shows_how_long_cpu_is_busy() -> None:
    node = a_node(CpuBusy="LoadAvg - CondorLoadAvg >= 0.5", SUSPEND="CpuBusyTime > 120", NUM_SLOTS="2")
    idle = "CpuBusyValue is false && CpuBusyTime is 0"
    assert value_at_server(node, 1, idle) is True
    node.sample(load=1.0)
    node.poll(after_s=100)
    node.sample(load=0.9)
    node.poll(after_s=30)
    assert (node.value(1, "SUSPEND"), node.value(2, "SUSPEND")) == (True, False)
    assert (value_at_server(node, 1, idle), value_at_server(node, 2, idle)) == (False, True)
    node.sample(load=0.0)
    assert (node.value(1, "SUSPEND"), value_at_server(node, 1, idle)) == (False, True)
    node.sample(load=1.0)
    node.ads.change_policy(policy_of(NUM_SLOTS="2"))
    node.sample(load=1.0)
    assert value_at_server(node, 1, idle) is True


def test_readings_have_attribute_names() -> None:
    node = a_node()
    node.sample(load=1.5, keyboard_idle_s=9, slot1=0.5)
    assert dict(node.ads.readings("slot1")) == {
        "LoadAvg": 1.5,
        "CondorLoadAvg": 0.5,
        "TotalLoadAvg": 1.5,
        "TotalCondorLoadAvg": 0.5,
        "KeyboardIdle": 9,
        "ConsoleIdle": 9,
    }


def test_remote_user_is_account_of_claim() -> None:
    node = a_node()
    node.start(1, job_ad(), ANN)
    assert value_at_server(node, 1, "RemoteUser") == "ann@lhcb"


# Nodes without a policy -----------------------------------------------------------------------------------------------


_WITHOUT_LIBRARY = """
import sys
sys.modules["htcondor2"] = None
from support.live_slots import NODE, BEGIN, BOOT_S
from pilotage.classads.library import is_available
from pilotage_pilot.core.ads.node_ads import BuiltInAds
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.core.ads.attributes import NodeFacts, NodeSample, SlotFacts
from pilotage_pilot.core.slots.layout import lay_out
now = Now(BEGIN, BOOT_S)
layout = lay_out(Policy({}), NODE)
ads = BuiltInAds(NodeFacts.of("node1", NODE, layout))
ads.add(SlotFacts.of(layout.slots[0]))
ads.sample(NodeSample(5.0, load=1.0), now)
ads.job_entered("slot1", "no ad at all", "1.0", now)
offer = ads.offer("slot1", now)
print(is_available(), ads.starts("slot1", "no ad", now), len(offer.part_keys), "LoadAvg = 1.0" in offer.changes)
"""


def _ads() -> BuiltInAds:
    layout = lay_out(Policy({}), NODE)
    ads = BuiltInAds(NodeFacts.of("node1", NODE, layout, {"Arch": "X86_64"}))
    ads.add(SlotFacts.of(layout.slots[0]))
    return ads


def test_built_in_ads_need_no_classad_library() -> None:
    command = [sys.executable, "-c", _WITHOUT_LIBRARY]
    path = {"PYTHONPATH": ":".join(sys.path)}
    output = subprocess.run(command, capture_output=True, text=True, env=path, check=True).stdout
    assert output.split() == ["False", "True", "2", "True"]


def test_built_in_ad_has_all_facts_and_no_policy() -> None:
    node, ads = LiveSlots(policy_of()), _ads()
    with_policy, without = node.ad_values(1), ads.plain("slot1", node.now)
    assert without["Arch"] == "X86_64"
    assert with_policy.keys() - without.keys() >= {"Start", "Rank", "SUSPEND"}
    assert without.keys() - with_policy.keys() == {"Arch"}
    offered = Ad.read(ads.part(ads.offer("slot1", node.now).part_keys[0]) or "")
    assert (offered.value("Start"), offered.value("DetectedCpus")) == (NoValue.UNDEFINED, 8)


def test_built_in_ads_rank_all_jobs_equally() -> None:
    node, ads = LiveSlots(policy_of()), _ads()
    assert (ads.rank("slot1", job_ad(), node.now), ads.renice("slot1", job_ad(), node.now)) == (0.0, 0)
    assert (ads.preempts, ads.settable, ads.evaluator("slot1", node.now).polls) == (False, (), False)
    assert list(ads.set_attributes({"Open": "True"})) == ["Open"]
