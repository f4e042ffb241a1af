"""What the board does when a choice cannot be made to its end."""

from __future__ import annotations

import pytest

from pilotage.job_needs import JobNeeds
from pilotage.resource_tree import QueueId
from pilotage_server.core.accounting import Account
from pilotage_server.core.rules import Sharing
from pilotage_server.core.task_queues import TaskQueue, Traits
from pilotage_server.core.tree_in_force import TreeInForce
from pilotage_server.core.waiting import Head
from support.grid import a_slot
from support.trees import a_tree
from support.two_ways import World
from support.virtual_clock import START

LONG = QueueId("CERN", "ce", "long")
ALICE = Account("lhcb", "users", "alice")


def test_what_was_taken_waits_again_when_a_later_slot_cannot_be_looked_at() -> None:
    tree = TreeInForce(1, a_tree(sites={"CERN": {"ces": {"ce": {"queues": {"long": {}}}}}}))
    world = World(Sharing(), tree)
    picky = Traits(ALICE, "", JobNeeds(), requirements_expression="TARGET.Cpus >= 1")
    world.add(TaskQueue(1, picky))
    world.come(1, [Head(0, 1)])
    world.come(1, [Head(0, 2)])
    never_told = a_slot("b", cpus=2, ad_parts=("0" * 64,))
    with pytest.raises(AssertionError):
        world.board.choose(world.ask(LONG, (), [a_slot("a"), never_told], START), world.reach)
    world.board.check()
    assert (world.index.count(1), world.shares.use(ALICE, START).cores) == (2, 0)
    assert [served.job_id for served in world.quickly(LONG, (), [a_slot("a"), a_slot("b")], START)] == [1, 2]
