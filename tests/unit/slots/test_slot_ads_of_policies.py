"""Attributes that a policy adds to slot ads, and attributes shared between the slots of a node."""

from __future__ import annotations

import pytest

from pilotage.classads.evaluation import NoValue
from pilotage.text import fold
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.ads.attributes import SlotFacts, SlotKind
from support.live_slots import BEGIN_S, a_node, job_ad, value_at_server

PER_CORE = {"NUM_SLOTS": "4"}


def test_policy_adds_attributes_for_all_slots_or_one() -> None:
    node = a_node(**PER_CORE, STARTD_ATTRS="IsGood, Absent", IsGood="SlotID > 2", SLOT1_IsGood='"very"')
    assert [value_at_server(node, slot, "IsGood") for slot in (1, 2, 3)] == ["very", False, True]
    assert value_at_server(node, 1, "Absent") is NoValue.UNDEFINED


def test_policy_may_override_facts() -> None:
    node = a_node(STARTD_ATTRS="Memory", Memory="100")
    assert (node.ad_values(1)["Memory"], value_at_server(node, 1, "Memory")) == (100, 100)


def test_slot_ad_has_policy_expressions_for_matching() -> None:
    node = a_node(START="TARGET.Good", RANK="5", IS_OWNER="False", SUSPEND="LoadAvg > 1", SlotWeight="Memory")
    names = ("Start", "Rank", "IsOwner", "PreemptionRequirements", "SlotWeight", "SUSPEND", "MaxJobRetirementTime")
    shown = [value_at_server(node, 1, name) for name in names]
    assert shown == [NoValue.UNDEFINED, 5, False, False, 16_000, NoValue.UNDEFINED, NoValue.UNDEFINED]
    assert value_at_server(a_node(), 1, "SlotWeight") == 8, "the cores"


def test_slot_expression_overrides_general_one() -> None:
    node = a_node(**PER_CORE, SlotWeight="7", SLOT2_SlotWeight="Cpus", START="False", SLOT2_START="True")
    assert [value_at_server(node, slot, "SlotWeight") for slot in (1, 2)] == [7, 2]
    assert [node.state_and_activity(slot) for slot in (1, 2)] == ["Owner/Idle", "Unclaimed/Idle"]


@pytest.mark.parametrize("prefix", ["slot", "vm"])
def test_slots_see_shared_attributes_of_all_slots(prefix: str) -> None:
    text = f'({prefix}2_State =?= "Claimed") && {prefix}1_state == "Unclaimed"'
    node = a_node(**PER_CORE, STARTD_SLOT_EXPRS="State", KILL=text)
    assert [node.value(slot, "KILL") for slot in (1, 2, 3)] == [False] * 3
    node.start(2, job_ad())
    assert [node.value(slot, "KILL") for slot in (1, 2, 3)] == [True] * 3
    assert [value_at_server(node, slot, text) for slot in (1, 2, 3)] == [True] * 3


def test_shared_attribute_is_evaluated_in_its_own_slot() -> None:
    node = a_node(**PER_CORE, STARTD_ATTRS="Mine", Mine="SlotID * 10", STARTD_SLOT_ATTRS="Mine, Unknown")
    ad = node.ad_values(1)
    assert [ad[f"slot{slot}_Mine"] for slot in (2, 3, 4)] == [20, 30, 40]
    assert "slot2_Unknown" not in ad


def test_deleted_slot_shares_nothing() -> None:
    node = a_node(STARTD_SLOT_ATTRS="State", KILL='slot1_1_State == "Claimed"')
    parent = node.layout.slots[0]
    node.ads.add(SlotFacts("slot1_1", parent.key, Amounts(1), SlotKind.DYNAMIC, number=1))
    assert node.value(1, "KILL") is False
    node.ads.remove("slot1_1")
    assert node.value(1, "KILL") is NoValue.UNDEFINED
    assert not [name for name in node.ad_values(1) if fold(name).startswith("slot1_1_")]


def test_slot_ad_has_startd_job_attrs() -> None:
    # Without it the policy cannot distinguish the running job from the candidate.
    text = "BolognaBatchJob =!= True"
    for job_attributes in ("", "BolognaBatchJob"):
        node = a_node(PREEMPTION_REQUIREMENTS=text, STARTD_JOB_ATTRS=job_attributes)
        node.start(1, job_ad(BolognaBatchJob=True))
        running_is_kept = value_at_server(node, 1, "PreemptionRequirements") is False
        assert running_is_kept is bool(job_attributes)
        node.end(1)
        assert value_at_server(node, 1, "PreemptionRequirements") is True


def test_job_attribute_keeps_its_type() -> None:
    node = a_node(STARTD_JOB_ATTRS="Flag", KILL="Flag =?= True")
    node.start(1, job_ad(Flag=1))
    assert node.value(1, "KILL") is False
    node.ads.job_entered("slot1", job_ad(Flag=True), "8.0", node.now)
    assert node.value(1, "KILL") is True


def test_job_ad_cannot_override_slot_attributes() -> None:
    node = a_node(STARTD_JOB_ATTRS="State, RemoteOwner, JobStart, Cpus, App")
    node.start(1, job_ad(State="Owner", RemoteOwner="eve", JobStart=0, Cpus=99, App="x"), Account("lhcb", "", "ann"))
    names = ("State", "RemoteOwner", "JobStart", "Cpus", "App")
    assert [node.ad_values(1)[name] for name in names] == ["Claimed", "ann", BEGIN_S, 8, "x"]
    assert [value_at_server(node, 1, name) for name in names] == ["Claimed", "ann", BEGIN_S, 8, "x"]


def test_unshared_state_of_other_slot_keeps_version() -> None:
    node = a_node(**PER_CORE)
    before = node.ads.version("slot2")
    node.start(1, job_ad())
    assert node.ads.version("slot2") == before


def test_shared_attributes_are_one_common_ad_part() -> None:
    node = a_node(**PER_CORE, STARTD_SLOT_ATTRS="State")
    before = [node.ads.offer(f"slot{slot}", node.now).part_keys for slot in (1, 2)]
    node.start(3, job_ad())
    after = [node.ads.offer(f"slot{slot}", node.now).part_keys for slot in (1, 2)]
    assert len(set(after[0]) & set(after[1])) == 2
    assert [len(set(keys) - set(old)) for keys, old in zip(after, before, strict=True)] == [1, 1]
    assert node.ads.part(before[0][0]) is not None  # a request that is under way may still need it


def test_slot_ad_has_quota_constraint_of_policy() -> None:
    node = a_node(GROUP_DYNAMIC_MACH_CONSTRAINT="Whole == False", STARTD_ATTRS="Whole", Whole="SlotID == 2", **PER_CORE)
    assert [value_at_server(node, slot, "GroupDynamicMachConstraint") for slot in (1, 2)] == [True, False]
    assert value_at_server(a_node(), 1, "GroupDynamicMachConstraint") is NoValue.UNDEFINED
