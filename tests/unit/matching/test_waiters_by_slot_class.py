"""Waiters by kind: whom a job is offered to, and in which order, is as if each had been asked for himself."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence

import pytest

from pilotage.resources.requirements import JobNeeds
from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage.values.offers import SlotOffer
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits
from pilotage_server.operations.matching.idle_pilots import PossibleSlots
from pilotage_server.rpc.matching.long_polls import FEW_CLASSES, WaitingCall, WaitingCalls

QUEUE = QueueId("S", "ce", "q")
FREE = PossibleSlots.FREE_SLOT


class ByMemory:
    """A slot takes what its memory is a multiple of; those are alike that differ in no more than their GPUs."""

    def of(self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]) -> PossibleSlots:
        suits = self.upper_bound(task_queue, credential, slots)
        return suits if all(slot.free.gpus != task_queue.needs.gpus for slot in slots) else PossibleSlots.NONE

    def upper_bound(
        self, task_queue: TaskQueue, _credential: PilotCredential, slots: Sequence[SlotOffer]
    ) -> PossibleSlots:
        memory = task_queue.needs.memory_mib or 1
        return FREE if all(slot.free.memory_mib % memory == 0 for slot in slots) else PossibleSlots.NONE

    def has_jobs(self, _task_queue: TaskQueue) -> bool:
        return True

    def slot_class(self, _credential: PilotCredential, slots: Sequence[SlotOffer]) -> Hashable:
        return tuple(slot.free.memory_mib for slot in slots)


def a_waiter(number: int, memory_mib: int, gpus: int) -> WaitingCall:
    return WaitingCall(number, PilotCredential(str(number), QUEUE), [SlotOffer("s", Amounts(1, memory_mib, 0, gpus))])


def a_task_queue(memory_mib: int, gpus: int) -> TaskQueue:
    needs = JobNeeds((), (), (), None, None, memory_mib, None, gpus)
    return TaskQueue(10 * memory_mib + gpus, Traits(Account("sky", "grp", "alice"), "", needs))


def takers(waiters: WaitingCalls, task_queue: TaskQueue) -> list[int]:
    return [
        waiter.number
        for waiter in waiters.candidates(task_queue, FREE)
        if waiters.could_match(waiter, task_queue, FREE)
    ]


@pytest.mark.parametrize("kinds", [3, 2 * FEW_CLASSES])
@pytest.mark.parametrize("seed", range(5))
def test_the_takers_are_those_that_say_so_themselves_in_the_order_in_which_they_came(kinds: int, seed: int) -> None:
    dice, chances = random.Random(seed), ByMemory()
    waiters, there = WaitingCalls(chances), dict[int, WaitingCall]()
    for number in range(1000):
        there[number] = a_waiter(number, dice.randrange(1, kinds + 1), dice.randrange(3))
        waiters.add(there[number])
        while there and dice.random() < 0.4:
            waiters.remove(there.pop(dice.choice(sorted(there))))
        if number % 10 == 0:
            task_queue = a_task_queue(dice.randrange(1, 4), dice.randrange(3))
            assert takers(waiters, task_queue) == [
                each.number for each in there.values() if chances.of(task_queue, each.credential, each.slots)
            ]


@pytest.mark.parametrize("kinds", [3, 2 * FEW_CLASSES])
def test_who_leaves_while_others_are_asked_is_not_offered_anything(kinds: int) -> None:
    waiters = WaitingCalls(ByMemory())
    there = [a_waiter(number, 1 + number % kinds, 0) for number in range(300)]
    for waiter in there:
        waiters.add(waiter)

    asked = waiters.candidates(a_task_queue(1, 1), FREE)
    first = [next(asked).number for _ in range(10)]
    for waiter in there[:200]:
        waiters.remove(waiter)

    assert first == list(range(10))
    assert [waiter.number for waiter in asked] == list(range(200, 300))
