"""What a slot's policy says is found out once for slots that change in plain values alone."""

from __future__ import annotations

import hashlib

from pilotage.resources.tree import QueueId
from pilotage_server.core.matching.slot_policy import SlotPolicies, SlotPolicy
from support.grid import a_slot

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


def test_other_plain_values_leave_what_is_said_as_it_is() -> None:
    node = Node("[Start = TARGET.Kind > LoadAvg]")
    quiet, busy = node.policy("[LoadAvg = 0.1]"), node.policy("[LoadAvg = 2.0]")
    assert busy.expressions is quiet.expressions
    assert (quiet.view.get("loadavg"), busy.view.get("loadavg")) == (0.1, 2.0)


def test_an_attribute_more_may_be_one_that_was_looked_for_in_jobs() -> None:
    node = Node("[Start = Kind =?= 1]")
    assert node.policy("[LoadAvg = 0.1]").job_names == {"kind"}
    assert node.policy("[Kind = 1]").job_names == frozenset()


def test_a_changed_expression_is_found_out_each_time() -> None:
    node = Node("[Start = Open]")
    assert node.policy("[Open = TARGET.Kind > 1]").job_names == {"kind"}
    assert node.policy("[Open = TARGET.Other > 1]").job_names == {"other"}
    assert node.policy("[Start = true]").start == ""
    assert node.policy("[Start = false]").start == "false"


def test_a_policy_that_evaluates_texts_is_found_out_each_time() -> None:
    node = Node('[Start = eval(strcat("TARGET.Kind", Number)) > 1]')
    assert node.policy("[Number = 1]").job_names == {"kind1"}
    assert node.policy("[Number = 2]").job_names == {"kind2"}


def test_changes_that_cannot_be_read_are_the_fault_of_nobody_else() -> None:
    node = Node("[Start = TARGET.Kind > 1]")
    assert node.policy("[Broken = ]").fault
    assert node.policy("").fault == ""
    assert node.policy("[Broken = ]").fault
