"""The cache of slot policies: slots that differ only in literal values share the analysis of their expressions."""

from __future__ import annotations

import hashlib

from pilotage.resources.tree import QueueId
from pilotage_server.core.matching.slot_policy import MAX_FAULTY_POLICIES, SlotPolicies, SlotPolicy
from support.grid import a_slot
from support.match_bench import a_slot_with

QUEUE = QueueId("CERN", "ce01", "long")


class Node:
    """A node whose slots have one part of their ads in common."""

    def __init__(self, part: str) -> None:
        self.policies = SlotPolicies()
        self.key = hashlib.sha256(part.encode()).hexdigest()
        self.policies.parts.add(self.key, part)

    def policy(self, changes: str) -> SlotPolicy:
        found = self.policies.policy(a_slot(ad_parts=(self.key,), ad_changes=changes), QUEUE)
        assert found is not None
        return found


def test_expressions_are_shared_when_only_literal_values_change() -> None:
    node = Node("[Start = TARGET.Kind > LoadAvg]")
    idle, busy = node.policy("[LoadAvg = 0.1]"), node.policy("[LoadAvg = 2.0]")
    assert busy.expressions is idle.expressions
    assert (idle.view.get("loadavg"), busy.view.get("loadavg")) == (0.1, 2.0)


def test_added_attribute_may_replace_a_reference_to_jobs() -> None:
    node = Node("[Start = Kind =?= 1]")
    assert node.policy("[LoadAvg = 0.1]").job_names == {"kind"}
    assert node.policy("[Kind = 1]").job_names == frozenset()


def test_changed_expression_is_analysed_again() -> None:
    node = Node("[Start = Open]")
    assert node.policy("[Open = TARGET.Kind > 1]").job_names == {"kind"}
    assert node.policy("[Open = TARGET.Other > 1]").job_names == {"other"}
    assert node.policy("[Start = true]").start == ""
    assert node.policy("[Start = false]").start == "false"


def test_policy_with_eval_is_analysed_again() -> None:
    node = Node('[Start = eval(strcat("TARGET.Kind", Number)) > 1]')
    assert node.policy("[Number = 1]").job_names == {"kind1"}
    assert node.policy("[Number = 2]").job_names == {"kind2"}


def test_unreadable_changes_do_not_affect_other_slots() -> None:
    node = Node("[Start = TARGET.Kind > 1]")
    assert node.policy("[Broken = ]").fault
    assert node.policy("").fault == ""
    assert node.policy("[Broken = ]").fault


def test_number_of_policies_is_bounded() -> None:
    policies = SlotPolicies(most=1)
    one, other = a_slot("a"), a_slot("b")
    first = policies.policy(one, QUEUE)
    assert policies.policy(one, QUEUE) is first
    policies.policy(other, QUEUE)
    assert policies.policy(one, QUEUE) is not first


def test_unusable_policies_do_not_displace_usable_ones() -> None:
    policies = SlotPolicies(most=1)
    first = policies.policy(a_slot("a"), QUEUE)
    broken = [a_slot(ad_changes=f"[Broken{number} = ]") for number in range(2 * MAX_FAULTY_POLICIES)]
    faults = [policies.policy(slot, QUEUE) for slot in broken]
    assert all(policy is not None and policy.fault for policy in faults)
    assert policies.policy(broken[-1], QUEUE) is faults[-1]
    assert policies.policy(broken[0], QUEUE) is not faults[0]
    assert policies.policy(a_slot("a"), QUEUE) is first


def test_size_of_policies_is_bounded() -> None:
    policies = SlotPolicies(most_bytes=10_000)
    slots = [a_slot_with(f"s{number}", Own=f'"{"x" * 200}{number}"') for number in range(9)]
    first = policies.policy(slots[0], QUEUE)
    assert policies.policy(slots[0], QUEUE) is first
    for slot in slots:
        policies.policy(slot, QUEUE)
    reloaded = policies.policy(slots[0], QUEUE)
    assert reloaded is not None
    assert reloaded is not first
