"""Calls that wait for work, without a server: each has one slot, and its chances hang on the cores alone."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import ExitStack

from pilotage.resources.requirements import JobNeeds
from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage.values.offers import OccupiedSlot, SlotOffer
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits
from pilotage_server.operations.matching.idle_pilots import PossibleSlots
from pilotage_server.rpc.matching.long_polls import LongPolls, WaitingCall

QUEUE = QueueId("S", "ce", "q")
AT_ONCE_S = 0.0


def a_task_queue(id_: int = 1, cpus: int = 1) -> TaskQueue:
    needs = JobNeeds((), (), (), None, cpus, None, None, None)
    return TaskQueue(id_, Traits(Account("sky", "grp", "alice"), "", needs))


class ByCores:
    """Chances that hang on the cores alone; `asked` counts how often anybody was asked.

    Task queues: of those `gone` no jobs are left; of those `unclear` it fails to tell.
    """

    def __init__(self) -> None:
        self.asked = 0
        self.gone: set[int] = set()
        self.unclear: set[int] = set()

    def of(self, task_queue: TaskQueue, _credential: PilotCredential, slots: Sequence[SlotOffer]) -> PossibleSlots:
        self.asked += 1
        if task_queue.id in self.unclear:
            raise KeyError(task_queue.id)
        found = PossibleSlots.NONE
        for slot in slots:
            if slot.free.cpus >= (task_queue.needs.cpus or 1):
                found |= PossibleSlots.FREE_SLOT if slot.occupied is None else PossibleSlots.OCCUPIED_SLOT
        return found

    def upper_bound(
        self, task_queue: TaskQueue, credential: PilotCredential, slots: Sequence[SlotOffer]
    ) -> PossibleSlots:
        return self.of(task_queue, credential, [slot._replace(free=Amounts(cpus=1000)) for slot in slots])

    def has_jobs(self, task_queue: TaskQueue) -> bool:
        return task_queue.id not in self.gone

    def slot_class(self, _credential: PilotCredential, slots: Sequence[SlotOffer]) -> Hashable:
        return tuple(slot.occupied is None for slot in slots)


class Waiting:
    """Calls that wait, each by its stamp."""

    def __init__(self) -> None:
        self.chances = ByCores()
        self.polls = LongPolls(self.chances)
        self._stack = ExitStack()

    def __enter__(self) -> Waiting:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def enter(self, stamp: str, cpus: int = 1, *, is_occupied: bool = False) -> WaitingCall:
        return self.enter_late(self.polls.generation, stamp, cpus, is_occupied=is_occupied)

    def enter_late(self, since: int, stamp: str, cpus: int = 1, *, is_occupied: bool = False) -> WaitingCall:
        offer = SlotOffer("slot1", Amounts(cpus=cpus), occupied=OccupiedSlot(1, 1) if is_occupied else None)
        return self._stack.enter_context(self.polls.waiting(PilotCredential(stamp, QUEUE), [offer], since))


async def woken(*waiters: WaitingCall) -> list[bool]:
    return [await waiter.wait(AT_ONCE_S) for waiter in waiters]
