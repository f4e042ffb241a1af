"""Slot classes: which slots are equal for matching, and which waiting calls a job is offered to."""

from __future__ import annotations

import random
from collections.abc import Hashable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from pilotage.resources.requirements import JobNeeds
from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account, OwnerId
from pilotage.values.amounts import Amounts
from pilotage.values.isolation import Isolation
from pilotage.values.offers import SlotOffer
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits
from pilotage_server.operations.matching.idle_pilots import PossibleSlots
from pilotage_server.rpc.matching.waiting_calls import WaitingCall, WaitingCalls
from support.grid import a_slot

QUEUE = QueueId("S", "ce", "q")
FREE = PossibleSlots.FREE_SLOT


class ByMemory:
    """A slot takes jobs whose memory divides its own and whose GPUs differ; its class is its memory."""

    def of(self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]) -> PossibleSlots:
        possible = self.upper_bound(task_queue, credential, slots)
        return possible if all(slot.free.gpus != task_queue.needs.gpus for slot in slots) else PossibleSlots.NONE

    def upper_bound(
        self, task_queue: TaskQueue, _credential: PilotCredential, slots: Sequence[SlotOffer]
    ) -> PossibleSlots:
        memory = task_queue.needs.memory_mib or 1
        return FREE if all(slot.free.memory_mib % memory == 0 for slot in slots) else PossibleSlots.NONE

    def jobs_left(self, _task_queue: TaskQueue) -> int:
        return 1

    def slot_class(self, _credential: PilotCredential, slots: Sequence[SlotOffer]) -> Hashable:
        return tuple(slot.free.memory_mib for slot in slots)


def a_waiting_call(number: int, memory_mib: int, gpus: int) -> WaitingCall:
    return WaitingCall(
        number, PilotCredential(str(number), QUEUE), [SlotOffer("s", Amounts(1, memory_mib, 0, gpus))], 0
    )


def a_task_queue(memory_mib: int, gpus: int) -> TaskQueue:
    needs = JobNeeds((), (), (), None, None, memory_mib, None, gpus)
    return TaskQueue(10 * memory_mib + gpus, Traits(Account("sky", "grp", "alice"), "", needs))


def matching_calls(calls: WaitingCalls, task_queue: TaskQueue) -> list[int]:
    return [call.number for call in calls.with_slots(task_queue, FREE)]


@pytest.mark.parametrize("slot_classes", [3, 128])
@pytest.mark.parametrize("seed", range(5))
def test_candidates_equal_individual_evaluation_in_order_of_arrival(slot_classes: int, seed: int) -> None:
    rng, evaluator = random.Random(seed), ByMemory()
    calls, registered = WaitingCalls(evaluator), dict[int, WaitingCall]()
    for number in range(1000):
        registered[number] = a_waiting_call(number, rng.randrange(1, slot_classes + 1), rng.randrange(3))
        calls.add(registered[number])
        while registered and rng.random() < 0.4:
            calls.remove(registered.pop(rng.choice(sorted(registered))))
        if number % 10 == 0:
            task_queue = a_task_queue(rng.randrange(1, 4), rng.randrange(3))
            assert matching_calls(calls, task_queue) == [
                call.number for call in registered.values() if evaluator.of(task_queue, call.credential, call.slots)
            ]


@pytest.mark.parametrize("slot_classes", [3, 128])
def test_call_removed_during_iteration_is_not_a_candidate(slot_classes: int) -> None:
    calls = WaitingCalls(ByMemory())
    registered = [a_waiting_call(number, 1 + number % slot_classes, 0) for number in range(300)]
    for call in registered:
        calls.add(call)

    candidates = calls.with_slots(a_task_queue(1, 1), FREE)
    first = [next(candidates).number for _ in range(10)]
    for call in registered[:200]:
        calls.remove(call)

    assert first == list(range(10))
    assert [call.number for call in candidates] == list(range(200, 300))


SLOT = a_slot("a")
IRRELEVANT: dict[str, Any] = {"name": "b", "job_ad_wanted": True}
OCCUPIED_ONLY = {"occupied"}
OTHER_VALUES: dict[str, Any] = {
    "free": Amounts(2, 0, 0, 0),
    "partitionable": True,
    "time_left": timedelta(hours=1),
    "cpu_power": 2.0,
    "max_jobs": 1,
    "declined_task_queues": frozenset({1}),
    "ad_parts": ("0" * 64,),
    "ad_changes": "[Start = false]",
    "claim": Account("lhcb", "users", "ann"),
    "ahead": 1,
    "isolation": Isolation.UID,
    "bound_to": OwnerId("lhcb", "ann"),
    "has_containers": True,
}


@pytest.mark.parametrize("field", sorted({*SlotOffer._fields} - {*IRRELEVANT} - OCCUPIED_ONLY))
def test_match_key_depends_on_each_relevant_field(field: str) -> None:
    assert SLOT._replace(**{field: OTHER_VALUES[field]}).match_key != SLOT.match_key


@pytest.mark.parametrize("field", IRRELEVANT)
def test_match_key_ignores_irrelevant_fields(field: str) -> None:
    assert SLOT._replace(**{field: IRRELEVANT[field]}).match_key == SLOT.match_key
