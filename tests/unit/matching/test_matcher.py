"""What the board remembers from one choice to the next, and what it does when one cannot be made to its end."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.resources.requirements import JobNeeds
from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage.values.offers import SlotOffer
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits
from pilotage_server.core.queueing.waiting_jobs import QueueHead
from pilotage_server.core.resources.tree import ActiveTree
from pilotage_server.core.rules import Sharing
from support.grid import a_slot
from support.match_board import END_MARGIN, World
from support.trees import a_tree
from support.virtual_clock import START

LONG = QueueId("CERN", "ce", "long")
ALICE = Account("lhcb", "users", "alice")


def a_world(*waiting: Traits) -> World:
    """Return a server state with one queue, where a job of each of these waits; the first came first."""
    state = World(Sharing(), ActiveTree(1, a_tree(sites={"CERN": {"ces": {"ce": {"queues": {"long": {}}}}}})))
    for number, traits in enumerate(waiting, 1):
        state.add(TaskQueue(number, traits))
        state.come(number, [QueueHead(0, number)])
    return state


def given(state: World, *slots: SlotOffer) -> list[tuple[str, int]]:
    """Return which slot gets which job."""
    return [(served.slot, served.job_id) for served in state.quickly(LONG, (), slots, START)]


def test_who_shares_a_group_with_one_who_was_just_given_a_job_waits_behind_other_groups() -> None:
    accounts = (Account("lhcb", group, owner) for group, owner in (("one", "ann"), ("one", "ben"), ("two", "cleo")))
    state = a_world(*(Traits(account, "", JobNeeds()) for account in accounts))
    assert given(state, a_slot("a"), a_slot("b"), a_slot("c")) == [("a", 1), ("b", 3), ("c", 2)]


def test_a_slot_with_a_little_less_time_than_another_does_not_get_what_that_may() -> None:
    state = a_world(Traits(ALICE, "", JobNeeds(), wall_time_s=600.0))
    state.come(1, [QueueHead(0, 2)])
    enough, too_little = (END_MARGIN + timedelta(seconds=seconds) for seconds in (600, 599))
    assert given(state, a_slot("a", time_left=enough), a_slot("b", time_left=too_little)) == [("a", 1)]


def test_slot_gets_one_job_and_those_ahead_of_it() -> None:
    state = a_world(Traits(ALICE, "", JobNeeds()))
    state.come(1, [QueueHead(0, number) for number in range(2, 6)])
    assert given(state, a_slot("a", ahead=2)) == [("a", 1), ("a", 2), ("a", 3)]


def test_who_takes_the_place_of_a_task_queue_that_is_gone_is_not_taken_for_it() -> None:
    state = a_world(Traits(ALICE, "", JobNeeds()))
    assert given(state, a_slot("a")) == [("a", 1)]
    state.index.remove([1])
    state.add(TaskQueue(2, Traits(ALICE, "", JobNeeds(), requirements_expression="TARGET.Cpus >= 2")))
    state.come(2, [QueueHead(0, 2)])
    assert given(state, a_slot("a")) == []


def test_a_pool_that_may_no_longer_run_on_a_queue_gets_nothing_there_any_more() -> None:
    state = a_world()
    state.map_pool("p", [LONG], START)
    state.add(TaskQueue(1, Traits(ALICE, "p", JobNeeds())))
    state.come(1, [QueueHead(0, 1)])
    state.come(1, [QueueHead(0, 2)])
    assert given(state, a_slot("a")) == [("a", 1)]
    state.map_pool("p", [], START + timedelta(seconds=1))
    assert given(state, a_slot("a")) == []


def test_what_was_taken_waits_again_when_a_later_slot_cannot_be_looked_at() -> None:
    state = a_world(Traits(ALICE, "", JobNeeds(), requirements_expression="TARGET.Cpus >= 1"))
    state.come(1, [QueueHead(0, 2)])
    never_told = a_slot("b", cpus=2, ad_parts=("0" * 64,))
    with pytest.raises(AssertionError):
        state.board.choose(state.ask(LONG, (), [a_slot("a"), never_told], START), state.reach)
    state.board.check()
    assert (state.index.count(1), state.shares.use(ALICE, START).cores) == (2, 0)
    assert given(state, a_slot("a"), a_slot("b")) == [("a", 1), ("b", 2)]
