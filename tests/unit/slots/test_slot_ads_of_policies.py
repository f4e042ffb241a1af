"""What a policy adds to the ads of a node's slots, and what the slots show each other."""

from __future__ import annotations

import pytest

from pilotage.classads.evaluation import NoValue
from pilotage.text import fold
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.ads.attributes import SlotFacts, SlotKind
from support.live_slots import BEGIN_S, a_node, job_ad, seen

PER_CORE = {"NUM_SLOTS": "4"}


def test_a_policy_adds_attributes_for_all_slots_or_for_one() -> None:
    node = a_node(**PER_CORE, STARTD_ATTRS="IsGood, Absent", IsGood="SlotID > 2", SLOT1_IsGood='"very"')
    assert [seen(node, slot, "IsGood") for slot in (1, 2, 3)] == ["very", False, True]
    assert seen(node, 1, "Absent") is NoValue.UNDEFINED


def test_a_policy_may_say_of_a_fact_what_it_wants() -> None:
    node = a_node(STARTD_ATTRS="Memory", Memory="100")
    assert (node.plain(1)["Memory"], seen(node, 1, "Memory")) == (100, 100)


def test_an_ad_shows_the_expressions_that_others_ask_about() -> None:
    node = a_node(START="TARGET.Good", RANK="5", IS_OWNER="False", SUSPEND="LoadAvg > 1", SlotWeight="Memory")
    names = ("Start", "Rank", "IsOwner", "PreemptionRequirements", "SlotWeight", "SUSPEND", "MaxJobRetirementTime")
    shown = [seen(node, 1, name) for name in names]
    assert shown == [NoValue.UNDEFINED, 5, False, False, 16_000, NoValue.UNDEFINED, NoValue.UNDEFINED]
    # The slot weight that everybody takes for granted is not said.
    assert seen(a_node(), 1, "SlotWeight") is NoValue.UNDEFINED


def test_a_slots_own_text_wins_over_the_rest_also_where_it_is_the_default() -> None:
    node = a_node(**PER_CORE, SlotWeight="7", SLOT2_SlotWeight="Cpus", START="False", SLOT2_START="True")
    assert [seen(node, slot, "SlotWeight") for slot in (1, 2)] == [7, 2]
    assert [node.doing(slot) for slot in (1, 2)] == ["Owner/Idle", "Unclaimed/Idle"]


@pytest.mark.parametrize("prefix", ["slot", "vm"])
def test_every_slot_sees_what_all_the_others_show(prefix: str) -> None:
    text = f'({prefix}2_State =?= "Claimed") && {prefix}1_state == "Unclaimed"'
    node = a_node(**PER_CORE, STARTD_SLOT_EXPRS="State", KILL=text)
    assert [node.value(slot, "KILL") for slot in (1, 2, 3)] == [False] * 3
    node.start(2, job_ad())
    assert [node.value(slot, "KILL") for slot in (1, 2, 3)] == [True] * 3
    assert [seen(node, slot, text) for slot in (1, 2, 3)] == [True] * 3


def test_what_a_slot_shows_of_its_policy_is_what_it_comes_to_there() -> None:
    node = a_node(**PER_CORE, STARTD_ATTRS="Mine", Mine="SlotID * 10", STARTD_SLOT_ATTRS="Mine, Unknown")
    ad = node.plain(1)
    assert [ad[f"slot{slot}_Mine"] for slot in (2, 3, 4)] == [20, 30, 40]
    assert "slot2_Unknown" not in ad


def test_a_slot_that_is_gone_shows_nothing() -> None:
    node = a_node(STARTD_SLOT_ATTRS="State", KILL='slot1_1_State == "Claimed"')
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
        node = a_node(PREEMPTION_REQUIREMENTS=text, STARTD_JOB_ATTRS=remembered)
        node.start(1, job_ad(BolognaBatchJob=True))
        running_is_kept = seen(node, 1, "PreemptionRequirements") is False
        assert running_is_kept is bool(remembered)
        node.end(1)
        assert seen(node, 1, "PreemptionRequirements") is True


def test_a_value_of_another_type_is_another_value() -> None:
    node = a_node(STARTD_JOB_ATTRS="Flag", KILL="Flag =?= True")
    node.start(1, job_ad(Flag=1))
    assert node.value(1, "KILL") is False
    node.ads.job_entered("slot1", job_ad(Flag=True), "8.0", node.now)
    assert node.value(1, "KILL") is True


def test_a_jobs_ad_cannot_change_what_the_slot_is() -> None:
    node = a_node(STARTD_JOB_ATTRS="State, RemoteOwner, JobStart, Cpus, App")
    node.start(1, job_ad(State="Owner", RemoteOwner="eve", JobStart=0, Cpus=99, App="x"), Account("lhcb", "", "ann"))
    names = ("State", "RemoteOwner", "JobStart", "Cpus", "App")
    assert [node.plain(1)[name] for name in names] == ["Claimed", "ann", BEGIN_S, 8, "x"]
    assert [seen(node, 1, name) for name in names] == ["Claimed", "ann", BEGIN_S, 8, "x"]


def test_without_shared_attributes_neighbours_do_not_matter() -> None:
    node = a_node(**PER_CORE)
    before = node.ads.version("slot2")
    node.start(1, job_ad())
    assert node.ads.version("slot2") == before


def test_what_slots_show_each_other_is_one_part_for_all() -> None:
    node = a_node(**PER_CORE, STARTD_SLOT_ATTRS="State")
    before = [node.ads.offer(f"slot{slot}", node.now).part_keys for slot in (1, 2)]
    node.start(3, job_ad())
    after = [node.ads.offer(f"slot{slot}", node.now).part_keys for slot in (1, 2)]
    assert len(set(after[0]) & set(after[1])) == 2
    assert [len(set(keys) - set(old)) for keys, old in zip(after, before, strict=True)] == [1, 1]
    assert node.ads.part(before[0][0]) is not None  # a request that is under way may still need it


def test_what_quotas_are_to_count_is_told_where_the_policy_says_it() -> None:
    node = a_node(GROUP_DYNAMIC_MACH_CONSTRAINT="Whole == False", STARTD_ATTRS="Whole", Whole="SlotID == 2", **PER_CORE)
    assert [seen(node, slot, "GroupDynamicMachConstraint") for slot in (1, 2)] == [True, False]
    assert seen(a_node(), 1, "GroupDynamicMachConstraint") is NoValue.UNDEFINED
