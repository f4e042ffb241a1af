"""What the ads of a node's slots say: facts, states, claims, loads, and what a policy adds."""

from __future__ import annotations

import pytest

from pilotage.classad_evaluation import Ad, NoValue
from pilotage.classads import Expression
from pilotage.folding import fold
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.jobs import Account
from pilotage_pilot.core.slot_events import ContinueOrdered, SuspendOrdered
from pilotage_pilot.core.slot_facts import SlotFacts, SlotKind
from support.live_slots import ANN, BEGIN_S, LiveSlots, job_ad, policy_of

PER_CORE = {"NUM_SLOTS": "4"}


def _node(**texts: str) -> LiveSlots:
    return LiveSlots(policy_of(**texts))


def _seen(node: LiveSlots, slot: int, expression: str) -> object:
    """Return what the server makes of an expression in the ad that it is offered."""
    offer = node.ads.offer(f"slot{slot}", node.now)
    ad = Ad({})
    for key in offer.part_keys:
        text = node.ads.part(key)
        assert text is not None
        ad.update(text)
    ad.update(offer.changes)
    ad.set("Asked", Expression(expression))
    return ad.value("Asked")


def test_a_slot_says_its_size_its_number_and_what_it_is_a_part_of() -> None:
    ad = _node(**PER_CORE).plain(3)
    said = ("Name", "Machine", "SlotID", "VirtualMachineID", "SlotType", "Cpus", "Memory", "Disk", "TotalSlotCpus")
    assert [ad[name] for name in said] == ["slot3@node1", "node1", 3, 3, "Static", 2, 4000, 20_000 * 1024, 2]
    assert [ad[name] for name in ("DetectedCpus", "DetectedMemory", "TotalCpus", "TotalSlots")] == [8, 16000, 8, 4]


def test_times_are_whole_seconds_since_1970() -> None:
    node = _node()
    node.poll(2.75)
    node.start(1, job_ad())
    ad = node.plain(1)
    assert (ad["MyCurrentTime"], ad["EnteredCurrentState"], ad["EnteredCurrentActivity"]) == (BEGIN_S + 2,) * 3
    assert (ad["State"], ad["Activity"], ad["JobStart"]) == ("Claimed", "Busy", BEGIN_S + 2)


def test_a_claim_shows_for_whom_and_for_which_job() -> None:
    node = _node(RANK="TARGET.Prio")
    node.start(1, job_ad(Prio=3))
    ad = node.plain(1)
    names = ("RemoteOwner", "RemoteUser", "RemoteGroup", "JobId", "CurrentRank")
    assert [ad[name] for name in names] == ["ann", "ann@lhcb", "user", "7.0", 3.0]
    node.end(1)
    assert "JobId" not in node.plain(1)
    assert node.plain(1)["RemoteOwner"] == "ann"  # the claim is kept


def test_run_times_grow_without_the_ad_being_told_and_stand_still_while_suspended() -> None:
    node = _node(PREEMPT="TotalJobRunTime > 20", WANT_SUSPEND="True")
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
    assert _seen(node, 1, "TotalJobSuspendTime") == 30


def test_the_run_time_of_a_claim_is_that_of_all_its_jobs() -> None:
    node = _node(KILL="TotalClaimRunTime")
    for _ in range(2):
        node.start(1, job_ad())
        node.poll(15.0)
        node.end(1)
        node.poll(100.0)
    assert node.value(1, "KILL") == 30


def test_the_owners_load_goes_to_his_slots_first_and_the_loads_add_up() -> None:
    node = _node(**PER_CORE, SLOT3_START="False")
    assert node.doing(3) == "Owner/Idle"
    node.look(load=3.756, slot1=1.0, slot2=0.25)
    loads = [(node.plain(slot)["LoadAvg"], node.plain(slot)["CondorLoadAvg"]) for slot in (1, 2, 3, 4)]
    assert loads == [(2.0, 1.0), (0.76, 0.25), (1.0, 0.0), (0.0, 0.0)]
    assert (node.plain(4)["TotalLoadAvg"], node.plain(4)["TotalCondorLoadAvg"]) == (3.76, 1.25)


def test_the_last_slot_takes_all_the_load_that_is_left() -> None:
    node = _node(NUM_SLOTS="2")
    node.look(load=7.5)
    assert [node.plain(slot)["LoadAvg"] for slot in (1, 2)] == [1.0, 6.5]


def test_jobs_that_use_more_than_the_average_tells_leave_the_owner_nothing() -> None:
    node = _node()
    node.look(load=0.1, slot1=3.0)
    assert [node.plain(1)[name] for name in ("LoadAvg", "TotalLoadAvg")] == [3.0, 3.0]


def test_the_load_that_a_job_leaves_behind_is_not_its_owners_though_its_slot_is_gone() -> None:
    node = _node()
    node.look(load=2.0, slot1_7=1.5)
    names = ("LoadAvg", "CondorLoadAvg", "TotalLoadAvg", "TotalCondorLoadAvg")
    assert [node.plain(1)[name] for name in names] == [2.0, 1.5, 2.0, 1.5]


def test_only_slots_at_the_keyboard_notice_people() -> None:
    node = _node(NUM_SLOTS="3", SLOTS_CONNECTED_TO_KEYBOARD="2", SLOTS_CONNECTED_TO_CONSOLE="many")
    node.look(keyboard_idle_s=5)
    assert [node.plain(slot)["KeyboardIdle"] for slot in (1, 2, 3)] == [5, 5, 50_000 + 1200]
    assert [node.plain(slot)["ConsoleIdle"] for slot in (1, 2, 3)] == [5, 5, 5]


def test_a_partitionable_slot_shows_what_is_free_and_its_dynamic_ones_what_they_have() -> None:
    node = _node()
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
    node = _node()
    before = node.ads.version("slot1")
    node.ads.resize("slot1", Amounts(1, 1000, 500))
    assert node.ads.version("slot1") == before
    assert (_seen(node, 1, "Cpus"), _seen(node, 1, "Disk")) == (1, 500 * 1024)


def test_what_the_server_knows_better_is_not_said() -> None:
    node = _node(START="LastHeardFrom is undefined && RemoteUserPrio is undefined")
    assert node.ads.starts("slot1", job_ad(), node.now) is True


def test_a_policy_adds_attributes_for_all_slots_or_for_one() -> None:
    node = _node(**PER_CORE, STARTD_ATTRS="IsGood, Absent", IsGood="SlotID > 2", SLOT1_IsGood='"very"')
    assert [_seen(node, slot, "IsGood") for slot in (1, 2, 3)] == ["very", False, True]
    assert _seen(node, 1, "Absent") is NoValue.UNDEFINED


def test_a_policy_may_say_of_a_fact_what_it_wants() -> None:
    node = _node(STARTD_ATTRS="Memory", Memory="100")
    assert (node.plain(1)["Memory"], _seen(node, 1, "Memory")) == (100, 100)


def test_an_ad_shows_the_expressions_that_others_ask_about() -> None:
    node = _node(START="TARGET.Good", RANK="5", IS_OWNER="False", SUSPEND="LoadAvg > 1", SlotWeight="Memory")
    names = ("Start", "Rank", "IsOwner", "PreemptionRequirements", "SlotWeight", "SUSPEND", "MaxJobRetirementTime")
    shown = [_seen(node, 1, name) for name in names]
    assert shown == [NoValue.UNDEFINED, 5, False, False, 16_000, NoValue.UNDEFINED, NoValue.UNDEFINED]
    # The slot weight that everybody takes for granted is not said.
    assert _seen(_node(), 1, "SlotWeight") is NoValue.UNDEFINED


def test_a_slots_own_text_wins_over_the_rest_also_where_it_is_the_default() -> None:
    node = _node(**PER_CORE, SlotWeight="7", SLOT2_SlotWeight="Cpus", START="False", SLOT2_START="True")
    assert [_seen(node, slot, "SlotWeight") for slot in (1, 2)] == [7, 2]
    assert [node.doing(slot) for slot in (1, 2)] == ["Owner/Idle", "Unclaimed/Idle"]


@pytest.mark.parametrize("prefix", ["slot", "vm"])
def test_every_slot_sees_what_all_the_others_show(prefix: str) -> None:
    text = f'({prefix}2_State =?= "Claimed") && {prefix}1_state == "Unclaimed"'
    node = _node(**PER_CORE, STARTD_SLOT_EXPRS="State", KILL=text)
    assert [node.value(slot, "KILL") for slot in (1, 2, 3)] == [False] * 3
    node.start(2, job_ad())
    assert [node.value(slot, "KILL") for slot in (1, 2, 3)] == [True] * 3
    assert [_seen(node, slot, text) for slot in (1, 2, 3)] == [True] * 3


def test_what_a_slot_shows_of_its_policy_is_what_it_comes_to_there() -> None:
    node = _node(**PER_CORE, STARTD_ATTRS="Mine", Mine="SlotID * 10", STARTD_SLOT_ATTRS="Mine, Unknown")
    ad = node.plain(1)
    assert [ad[f"slot{slot}_Mine"] for slot in (2, 3, 4)] == [20, 30, 40]
    assert "slot2_Unknown" not in ad


def test_a_slot_that_is_gone_shows_nothing() -> None:
    node = _node(STARTD_SLOT_ATTRS="State", KILL='slot1_1_State == "Claimed"')
    parent = node.layout.slots[0]
    node.ads.add(SlotFacts("slot1_1", parent.key, Amounts(1), SlotKind.DYNAMIC, number=1))
    assert node.value(1, "KILL") is False
    node.ads.remove("slot1_1")
    assert node.value(1, "KILL") is NoValue.UNDEFINED
    assert not [name for name in node.plain(1) if fold(name).startswith("slot1_1_")]


def test_a_slot_remembers_of_its_job_what_the_policy_wants_it_to() -> None:
    # Without it a running job cannot be told from the one that wants its slot.
    text = "BolognaBatchJob =!= True"
    for remembered in ("", "BolognaBatchJob"):
        node = _node(PREEMPTION_REQUIREMENTS=text, STARTD_JOB_ATTRS=remembered)
        node.start(1, job_ad(BolognaBatchJob=True))
        running_is_kept = _seen(node, 1, "PreemptionRequirements") is False
        assert running_is_kept is bool(remembered)
        node.end(1)
        assert _seen(node, 1, "PreemptionRequirements") is True


def test_a_value_of_another_type_is_another_value() -> None:
    node = _node(STARTD_JOB_ATTRS="Flag", KILL="Flag =?= True")
    node.start(1, job_ad(Flag=1))
    assert node.value(1, "KILL") is False
    node.ads.job_entered("slot1", job_ad(Flag=True), "8.0", node.now)
    assert node.value(1, "KILL") is True


def test_a_jobs_ad_cannot_change_what_the_slot_is() -> None:
    node = _node(STARTD_JOB_ATTRS="State, RemoteOwner, JobStart, Cpus, App")
    node.start(1, job_ad(State="Owner", RemoteOwner="eve", JobStart=0, Cpus=99, App="x"), Account("lhcb", "", "ann"))
    names = ("State", "RemoteOwner", "JobStart", "Cpus", "App")
    assert [node.plain(1)[name] for name in names] == ["Claimed", "ann", BEGIN_S, 8, "x"]
    assert [_seen(node, 1, name) for name in names] == ["Claimed", "ann", BEGIN_S, 8, "x"]


def test_only_what_matters_to_a_match_makes_a_new_version() -> None:
    node = _node(**PER_CORE, STARTD_SLOT_ATTRS="State, LoadAvg")
    before = node.ads.version("slot2")
    node.look(load=5.0, keyboard_idle_s=1)
    node.poll(5.0)
    assert node.ads.version("slot2") == before
    node.start(1, job_ad())  # a neighbour that START may look at
    assert node.ads.version("slot2") > before


def test_without_shared_attributes_neighbours_do_not_matter() -> None:
    node = _node(**PER_CORE)
    before = node.ads.version("slot2")
    node.start(1, job_ad())
    assert node.ads.version("slot2") == before


def test_parts_stay_the_same_while_states_and_loads_change() -> None:
    node = _node(**PER_CORE, STARTD_ATTRS="Good", Good="True")
    before = [node.ads.offer(f"slot{slot}", node.now) for slot in (1, 2)]
    node.look(load=2.0)
    node.start(1, job_ad())
    node.poll(5.0)
    after = [node.ads.offer(f"slot{slot}", node.now) for slot in (1, 2)]
    assert [offer.part_keys for offer in after] == [offer.part_keys for offer in before]
    assert before[0].part_keys[0] == before[1].part_keys[0]
    assert after[0].changes != before[0].changes


def test_what_slots_show_each_other_is_one_part_for_all() -> None:
    node = _node(**PER_CORE, STARTD_SLOT_ATTRS="State")
    before = [node.ads.offer(f"slot{slot}", node.now).part_keys for slot in (1, 2)]
    node.start(3, job_ad())
    after = [node.ads.offer(f"slot{slot}", node.now).part_keys for slot in (1, 2)]
    assert len(set(after[0]) & set(after[1])) == 2
    assert [len(set(keys) - set(old)) for keys, old in zip(after, before, strict=True)] == [1, 1]
    assert node.ads.part(before[0][0]) is not None  # a request that is under way may still need it


def test_a_report_tells_neither_state_nor_loads_nor_neighbours() -> None:
    node = _node(**PER_CORE, STARTD_SLOT_ATTRS="State", STARTD_ATTRS="Good", Good="True")
    before = node.ads.full_text("slot1")
    node.look(load=3.0)
    node.start(2, job_ad())
    assert node.ads.full_text("slot1") == before
    assert Ad.read(before).value("Good") is True
    assert not Ad.read(before).plain().keys() & {"State", "Activity", "LoadAvg", "slot2_State", "EnteredCurrentState"}


def test_a_jobs_machine_ad_is_all_of_it() -> None:
    node = _node(**PER_CORE, STARTD_SLOT_ATTRS="State")
    node.start(2, job_ad())
    ad = Ad.read(node.ads.machine_ad("slot2", node.now))
    said = [ad.value(name) for name in ("SlotID", "State", "slot2_State", "slot1_State", "MyCurrentTime", "JobId")]
    assert said == [2, "Claimed", "Claimed", "Unclaimed", BEGIN_S, "7.0"]


def test_readings_are_told_by_name() -> None:
    node = _node()
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
    node = _node()
    node.start(1, job_ad(), ANN)
    assert _seen(node, 1, "RemoteUser") == "ann@lhcb"


def test_what_quotas_are_to_count_is_told_where_the_policy_says_it() -> None:
    node = _node(GROUP_DYNAMIC_MACH_CONSTRAINT="Whole == False", STARTD_ATTRS="Whole", Whole="SlotID == 2", **PER_CORE)
    assert [_seen(node, slot, "GroupDynamicMachConstraint") for slot in (1, 2)] == [True, False]
    assert _seen(_node(), 1, "GroupDynamicMachConstraint") is NoValue.UNDEFINED
