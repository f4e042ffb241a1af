"""Long polls for any order of steps: no job waits beside a slot that takes it, and free slots come before evictions.

The event loop's steps, the matches in the writer's thread and the commits are separate rules. Where estimates say that
a slot could take a job, its match may still refuse.
"""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from dataclasses import dataclass

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pilotage.values.amounts import Amounts
from pilotage.values.offers import OccupiedSlot, SlotOffer
from pilotage_server.core.identity import PilotCredential
from pilotage_server.rpc.matching.long_polls import LongPolls
from pilotage_server.rpc.matching.waiting_calls import WaitingCall
from support.long_polls import QUEUE, FakeMatchEstimator, a_task_queue

TASK_QUEUES = {1: a_task_queue(1, cpus=1), 2: a_task_queue(2, cpus=1), 3: a_task_queue(3, cpus=4)}


@dataclass(eq=False)
class Caller:
    """A pilot with one slot and its call. `refuses` = task queues whose jobs its match refuses against the estimate.

    Its look has a result from its match until its end.
    """

    offer: SlotOffer
    generation: int
    refuses: set[int]
    call: WaitingCall | None = None
    context: AbstractContextManager[WaitingCall] | None = None
    is_looking: bool = True
    has_matched: bool = False
    has_answer: bool = False
    taken: int | None = None

    def takes(self, task_queue_id: int) -> bool:
        fits = self.offer.free.cpus >= (TASK_QUEUES[task_queue_id].needs.cpus or 1)
        return fits and task_queue_id not in self.refuses

    @property
    def is_free(self) -> bool:
        return self.offer.occupied is None


class LongPollModel(RuleBasedStateMachine):
    """Jobs and calls that come, look, take jobs or order evictions, and end."""

    def __init__(self) -> None:
        super().__init__()
        self.estimator = FakeMatchEstimator()
        self.polls = LongPolls(self.estimator)
        self.jobs: Counter[int] = Counter()
        self.ordered: Counter[int] = Counter()
        self.commits: list[tuple[int, int]] = []
        self.callers: list[Caller] = []
        self.stamps = 0

    @rule(task_queue_id=st.sampled_from(sorted(TASK_QUEUES)), count=st.integers(1, 3))
    def commit(self, task_queue_id: int, count: int) -> None:
        self.jobs[task_queue_id] += count
        self.update_estimator()
        self.polls.announce_jobs(TASK_QUEUES[task_queue_id], count)
        self.commits.append((task_queue_id, count))

    @precondition(lambda self: self.commits)
    @rule()
    def wake(self) -> None:
        task_queue_id, count = self.commits.pop(0)
        self.polls.wake_for_jobs(TASK_QUEUES[task_queue_id], count)

    @rule(cpus=st.sampled_from([1, 4]), occupied=st.booleans(), refuses=st.sets(st.sampled_from(sorted(TASK_QUEUES))))
    def arrive(self, cpus: int, occupied: bool, refuses: set[int]) -> None:
        offer = SlotOffer("slot1", Amounts(cpus=cpus), occupied=OccupiedSlot(1, 1) if occupied else None)
        self.callers.append(Caller(offer, self.polls.generation, refuses))

    @precondition(lambda self: self.woken())
    @rule(data=st.data())
    def begin_look(self, data: st.DataObject) -> None:
        self.look(data.draw(st.sampled_from(self.woken())))

    def look(self, caller: Caller) -> None:
        assert caller.call is not None
        self.polls.begin_look(caller.call)
        caller.is_looking, caller.has_matched = True, False

    @precondition(lambda self: self.unmatched())
    @rule(data=st.data(), is_lost=st.booleans())
    def match(self, data: st.DataObject, is_lost: bool) -> None:
        """Match in the writer's thread; where it `is_lost`, the database had taken the job for another match."""
        caller = data.draw(st.sampled_from(self.unmatched()))
        self.decide(caller)
        if is_lost and caller.taken is not None:
            task_queue_id, caller.taken, caller.has_answer = caller.taken, None, False
            self.commit(task_queue_id, 1)

    def decide(self, caller: Caller) -> None:
        caller.has_matched, caller.taken, caller.has_answer = True, None, False
        for task_queue_id in TASK_QUEUES:
            if not caller.takes(task_queue_id) or not self.jobs[task_queue_id]:
                continue
            if caller.is_free:
                self.jobs[task_queue_id] -= 1
                caller.taken, caller.has_answer = task_queue_id, True
            elif self.wants_eviction(task_queue_id) and not self.polls.is_offered(task_queue_id):
                assert not self.free_takers(task_queue_id), "a job evicts another one beside a free slot"
                self.ordered[task_queue_id] += 1
                caller.has_answer = True
            if caller.has_answer:
                break
        self.update_estimator()

    @precondition(lambda self: self.matched())
    @rule(data=st.data())
    def end_look(self, data: st.DataObject) -> None:
        self.finish(data.draw(st.sampled_from(self.matched())))

    def finish(self, caller: Caller) -> None:
        caller.is_looking = False
        if caller.call is not None:
            self.polls.end_look(caller.call, {} if caller.taken is None else {caller.taken: 1})
        elif not caller.has_answer:
            self.stamps += 1
            credential = PilotCredential(str(self.stamps), QUEUE)
            caller.context = self.polls.waiting(credential, [caller.offer], caller.generation)
            caller.call = caller.context.__enter__()
        if caller.has_answer:
            self.end(caller)

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def time_out(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(self.waiting())))

    def end(self, caller: Caller) -> None:
        self.callers.remove(caller)
        if caller.context is not None:
            caller.context.__exit__(None, None, None)

    @rule()
    def change_everything(self) -> None:
        """No match refuses any more, as after a new resource tree."""
        for caller in self.callers:
            caller.refuses = set()
        self.polls.wake_all()

    @rule()
    def settle(self) -> None:
        """Let all steps end that have begun or are due; then no job waits beside a free slot that takes it.

        An occupied slot may have asked while the jobs were offered to free slots, and older jobs may be left for it:
        its next call finds them.
        """
        while self.commits or self.woken() or self.unmatched() or self.matched():
            while self.commits:
                self.wake()
            for caller in self.woken():
                self.look(caller)
            for caller in self.unmatched():
                self.decide(caller)
            for caller in self.matched():
                self.finish(caller)
        for task_queue_id in TASK_QUEUES:
            assert not self.polls.is_offered(task_queue_id)
            if self.jobs[task_queue_id]:
                assert not any(caller.is_free and caller.takes(task_queue_id) for caller in self.waiting())

    @invariant()
    def all_calls_are_registered(self) -> None:
        assert len(self.polls) == sum(caller.call is not None for caller in self.callers)

    def teardown(self) -> None:
        self.settle()

    def update_estimator(self) -> None:
        self.estimator.empty = {task_queue_id for task_queue_id in TASK_QUEUES if not self.jobs[task_queue_id]}

    def wants_eviction(self, task_queue_id: int) -> bool:
        return self.jobs[task_queue_id] > self.ordered[task_queue_id]

    def free_takers(self, task_queue_id: int) -> list[Caller]:
        """Return the free slots that take the jobs and have not been woken for another reason."""
        return [
            caller
            for caller in self.waiting()
            if caller.is_free
            and caller.takes(task_queue_id)
            and caller.call is not None
            and (not caller.call.has_to_look or task_queue_id in caller.call.searches)
        ]

    def waiting(self) -> list[Caller]:
        return [caller for caller in self.callers if not caller.is_looking]

    def woken(self) -> list[Caller]:
        return [caller for caller in self.waiting() if caller.call is not None and caller.call.has_to_look]

    def unmatched(self) -> list[Caller]:
        return [caller for caller in self.callers if caller.is_looking and not caller.has_matched]

    def matched(self) -> list[Caller]:
        return [caller for caller in self.callers if caller.is_looking and caller.has_matched]


TestLongPolls = LongPollModel.TestCase
