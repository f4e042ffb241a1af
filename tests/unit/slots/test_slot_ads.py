"""What the ads of a node's slots say: facts, states, claims, loads, and what a policy adds."""

from __future__ import annotations

from pilotage.classads.evaluation import Ad
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.ads.attributes import SlotFacts, SlotKind
from pilotage_pilot.core.slots.events import ContinueOrdered, SuspendOrdered
from support.live_slots import ANN, BEGIN_S, a_node, job_ad, seen

PER_CORE = {"NUM_SLOTS": "4"}


def test_a_slot_says_its_size_its_number_and_what_it_is_a_part_of() -> None:
    ad = a_node(**PER_CORE).plain(3)
    said = ("Name", "Machine", "SlotID", "VirtualMachineID", "SlotType", "Cpus", "Memory", "Disk", "TotalSlotCpus")
    assert [ad[name] for name in said] == ["slot3@node1", "node1", 3, 3, "Static", 2, 4000, 20_000 * 1024, 2]
    assert [ad[name] for name in ("DetectedCpus", "DetectedMemory", "TotalCpus", "TotalSlots")] == [8, 16000, 8, 4]


def test_times_are_whole_seconds_since_1970() -> None:
    node = a_node()
    node.poll(2.75)
    node.start(1, job_ad())
    ad = node.plain(1)
    assert (ad["MyCurrentTime"], ad["EnteredCurrentState"], ad["EnteredCurrentActivity"]) == (BEGIN_S + 2,) * 3
    assert (ad["State"], ad["Activity"], ad["JobStart"]) == ("Claimed", "Busy", BEGIN_S + 2)


def test_a_claim_shows_for_whom_and_for_which_job() -> None:
    node = a_node(RANK="TARGET.Prio")
    node.start(1, job_ad(Prio=3))
    ad = node.plain(1)
    names = ("RemoteOwner", "RemoteUser", "RemoteGroup", "JobId", "CurrentRank")
    assert [ad[name] for name in names] == ["ann", "ann@lhcb", "user", "7.0", 3.0]
    node.end(1)
    assert "JobId" not in node.plain(1)
    assert node.plain(1)["RemoteOwner"] == "ann"  # the claim is kept


def test_run_times_grow_without_the_ad_being_told_and_stand_still_while_suspended() -> None:
    node = a_node(PREEMPT="TotalJobRunTime > 20", WANT_SUSPEND="True")
    node.start(1, job_ad())
    node.poll(10.0)
    node.tell(1, SuspendOrdered())
    node.poll(30.0)
    assert [node.value(1, "PREEMPT")] == [False]
    node.tell(1, ContinueOrdered())
    node.poll(10.0)
    assert node.value(1, "PREEMPT") is False
    node.poll(1.0)
    assert node.value(1, "PREEMPT") is True
    assert seen(node, 1, "TotalJobSuspendTime") == 30


def test_the_run_time_of_a_claim_is_that_of_all_its_jobs() -> None:
    node = a_node(KILL="TotalClaimRunTime")
    for _ in range(2):
        node.start(1, job_ad())
        node.poll(15.0)
        node.end(1)
        node.poll(100.0)
    assert node.value(1, "KILL") == 30


def test_the_owners_load_goes_to_his_slots_first_and_the_loads_add_up() -> None:
    node = a_node(**PER_CORE, SLOT3_START="False")
    assert node.doing(3) == "Owner/Idle"
    node.look(load=3.756, slot1=1.0, slot2=0.25)
    loads = [(node.plain(slot)["LoadAvg"], node.plain(slot)["CondorLoadAvg"]) for slot in (1, 2, 3, 4)]
    assert loads == [(2.0, 1.0), (0.76, 0.25), (1.0, 0.0), (0.0, 0.0)]
    assert (node.plain(4)["TotalLoadAvg"], node.plain(4)["TotalCondorLoadAvg"]) == (3.76, 1.25)


def test_the_last_slot_takes_all_the_load_that_is_left() -> None:
    node = a_node(NUM_SLOTS="2")
    node.look(load=7.5)
    assert [node.plain(slot)["LoadAvg"] for slot in (1, 2)] == [1.0, 6.5]


def test_jobs_that_use_more_than_the_average_tells_leave_the_owner_nothing() -> None:
    node = a_node()
    node.look(load=0.1, slot1=3.0)
    assert [node.plain(1)[name] for name in ("LoadAvg", "TotalLoadAvg")] == [3.0, 3.0]


def test_the_load_that_a_job_leaves_behind_is_not_its_owners_though_its_slot_is_gone() -> None:
    node = a_node()
    node.look(load=2.0, slot1_7=1.5)
    names = ("LoadAvg", "CondorLoadAvg", "TotalLoadAvg", "TotalCondorLoadAvg")
    assert [node.plain(1)[name] for name in names] == [2.0, 1.5, 2.0, 1.5]


def test_only_slots_at_the_keyboard_notice_people() -> None:
    node = a_node(NUM_SLOTS="3", SLOTS_CONNECTED_TO_KEYBOARD="2", SLOTS_CONNECTED_TO_CONSOLE="many")
    node.look(keyboard_idle_s=5)
    assert [node.plain(slot)["KeyboardIdle"] for slot in (1, 2, 3)] == [5, 5, 50_000 + 1200]
    assert [node.plain(slot)["ConsoleIdle"] for slot in (1, 2, 3)] == [5, 5, 5]


def test_a_partitionable_slot_shows_what_is_free_and_its_dynamic_ones_what_they_have() -> None:
    node = a_node()
    parent = node.layout.slots[0]
    given = Amounts(2, 3000, 500)
    node.ads.add(SlotFacts("slot1_4", parent.key, given, SlotKind.DYNAMIC, number=4))
    node.ads.resize("slot1", parent.amounts - given)
    ad, child = node.plain(1), node.ads.plain("slot1_4", node.now)
    assert [ad[name] for name in ("Cpus", "Memory", "TotalSlotCpus", "NumDynamicSlots")] == [6, 13_000, 8, 1]
    assert [child[name] for name in ("Name", "Cpus", "SlotID", "DSlotID")] == ["slot1_4@node1", 2, 1, 4]
    assert [child["DynamicSlot"], child["PartitionableSlot"], child["SlotType"]] == [True, False, "Dynamic"]
    node.ads.remove("slot1_4")
    assert node.plain(1)["NumDynamicSlots"] == 0


def test_what_is_free_of_a_partitionable_slot_makes_no_new_version() -> None:
    node = a_node()
    before = node.ads.version("slot1")
    node.ads.resize("slot1", Amounts(1, 1000, 500))
    assert node.ads.version("slot1") == before
    assert (seen(node, 1, "Cpus"), seen(node, 1, "Disk")) == (1, 500 * 1024)


def test_what_the_server_knows_better_is_not_said() -> None:
    node = a_node(START="LastHeardFrom is undefined && RemoteUserPrio is undefined")
    assert node.ads.starts("slot1", job_ad(), node.now) is True


def test_only_what_matters_to_a_match_makes_a_new_version() -> None:
    node = a_node(**PER_CORE, STARTD_SLOT_ATTRS="State, LoadAvg")
    before = node.ads.version("slot2")
    node.look(load=5.0, keyboard_idle_s=1)
    node.poll(5.0)
    assert node.ads.version("slot2") == before
    node.start(1, job_ad())  # a neighbour that START may look at
    assert node.ads.version("slot2") > before


def test_parts_stay_the_same_while_states_and_loads_change() -> None:
    node = a_node(**PER_CORE, STARTD_ATTRS="Good", Good="True")
    before = [node.ads.offer(f"slot{slot}", node.now) for slot in (1, 2)]
    node.look(load=2.0)
    node.start(1, job_ad())
    node.poll(5.0)
    after = [node.ads.offer(f"slot{slot}", node.now) for slot in (1, 2)]
    assert [offer.part_keys for offer in after] == [offer.part_keys for offer in before]
    assert before[0].part_keys[0] == before[1].part_keys[0]
    assert after[0].changes != before[0].changes


def test_a_report_tells_neither_state_nor_loads_nor_neighbours() -> None:
    node = a_node(**PER_CORE, STARTD_SLOT_ATTRS="State", STARTD_ATTRS="Good", Good="True")
    before = node.ads.full_text("slot1")
    node.look(load=3.0)
    node.start(2, job_ad())
    assert node.ads.full_text("slot1") == before
    assert Ad.read(before).value("Good") is True
    assert not Ad.read(before).plain().keys() & {"State", "Activity", "LoadAvg", "slot2_State", "EnteredCurrentState"}


def test_a_jobs_machine_ad_is_all_of_it() -> None:
    node = a_node(**PER_CORE, STARTD_SLOT_ATTRS="State")
    node.start(2, job_ad())
    ad = Ad.read(node.ads.machine_ad("slot2", node.now))
    said = [ad.value(name) for name in ("SlotID", "State", "slot2_State", "slot1_State", "MyCurrentTime", "JobId")]
    assert said == [2, "Claimed", "Claimed", "Unclaimed", BEGIN_S, "7.0"]


def test_readings_are_told_by_name() -> None:
    node = a_node()
    node.look(load=1.5, keyboard_idle_s=9, slot1=0.5)
    assert dict(node.ads.readings("slot1")) == {
        "LoadAvg": 1.5,
        "CondorLoadAvg": 0.5,
        "TotalLoadAvg": 1.5,
        "TotalCondorLoadAvg": 0.5,
        "KeyboardIdle": 9,
        "ConsoleIdle": 9,
    }


def test_accounts_of_slots_are_those_of_their_claims() -> None:
    node = a_node()
    node.start(1, job_ad(), ANN)
    assert seen(node, 1, "RemoteUser") == "ann@lhcb"
