"""Long polls for any order of steps: no job waits beside a slot that takes it, and free slots come before evictions.

The event loop's steps, the matches in the writer's thread and the commits are separate rules. Where estimates say that
a slot could take a job, its match may still refuse. Where jobs wait in memory, another server may have taken them: then
the match goes on with other jobs, and those jobs may come back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pilotage.values.amounts import Amounts
from pilotage.values.offers import OccupiedSlot, SlotOffer
from pilotage_server.core.identity import PilotCredential
from pilotage_server.rpc.matching.long_polls import LongPolls
from pilotage_server.rpc.matching.waiting_calls import WaitingCall
from support.long_polls import QUEUE, FakeMatchEstimator, a_task_queue

TASK_QUEUES = {1: a_task_queue(1, cpus=1), 2: a_task_queue(2, cpus=1), 3: a_task_queue(3, cpus=4)}
OFFERS = st.tuples(st.sampled_from([1, 4]), st.booleans(), st.sets(st.sampled_from(sorted(TASK_QUEUES))))
"""The cores of a slot, whether it is occupied, and the task queues whose jobs it refuses."""


@dataclass(eq=False)
class Caller:
    """A pilot with one slot and its call. `refuses` = task queues whose jobs its match refuses against the estimate.

    `has_refused` = those that it refused until everything changed. Its look has a result from its match until its end.
    """

    offer: SlotOffer
    generation: int
    refuses: set[int]
    has_refused: set[int] = field(default_factory=set)
    registered: int = 0
    call: WaitingCall | None = None
    context: AbstractContextManager[WaitingCall] | None = None
    look: AbstractContextManager[Counter[int]] | None = None
    counts: Counter[int] | None = None
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
        self.elsewhere: Counter[int] = Counter()
        self.ordered: Counter[int] = Counter()
        self.latest: dict[int, int] = {}
        self.step = 0
        self.commits: list[tuple[int, int]] = []
        self.callers: list[Caller] = []
        self.stamps = 0

    @initialize(offers=st.lists(OFFERS, max_size=4))
    def have_waiting_calls(self, offers: list[tuple[int, bool, set[int]]]) -> None:
        for offer in offers:
            self.arrive(offer)
            self.decide(self.callers[-1])
            self.finish(self.callers[-1])

    @rule(task_queue_id=st.sampled_from(sorted(TASK_QUEUES)), count=st.integers(1, 3), is_at_once=st.booleans())
    def submit(self, task_queue_id: int, count: int, is_at_once: bool) -> None:
        self.commit(task_queue_id, count)
        while is_at_once and self.commits:
            self.wake()

    def commit(self, task_queue_id: int, count: int) -> None:
        self.step += 1
        self.latest[task_queue_id] = self.step
        self.jobs[task_queue_id] += count
        self.update_estimator()
        self.polls.announce_jobs(TASK_QUEUES[task_queue_id], count)
        self.commits.append((task_queue_id, count))

    @precondition(lambda self: self.commits)
    @rule()
    def wake(self) -> None:
        task_queue_id, count = self.commits.pop(0)
        before = len(self.woken())
        self.polls.wake_for_jobs(TASK_QUEUES[task_queue_id], count)
        assert len(self.woken()) <= before + self.jobs[task_queue_id], "more calls are woken than jobs wait"

    @rule(offer=OFFERS)
    def arrive(self, offer: tuple[int, bool, set[int]]) -> None:
        cpus, is_occupied, refuses = offer
        slot = SlotOffer("slot1", Amounts(cpus=cpus), occupied=OccupiedSlot(1, 1) if is_occupied else None)
        self.callers.append(Caller(slot, self.polls.generation, refuses))

    @precondition(lambda self: self.woken())
    @rule(data=st.data(), is_short=st.booleans())
    def begin_look(self, data: st.DataObject, is_short: bool) -> None:
        caller = data.draw(st.sampled_from(self.woken()))
        self.look(caller)
        if is_short:
            self.decide(caller)
            self.finish(caller)

    def look(self, caller: Caller) -> None:
        assert caller.call is not None
        caller.look = self.polls.look(caller.call)
        caller.counts = caller.look.__enter__()
        caller.is_looking, caller.has_matched = True, False

    @precondition(lambda self: self.unmatched())
    @rule(data=st.data(), lost=st.sets(st.sampled_from(sorted(TASK_QUEUES))))
    def match(self, data: st.DataObject, lost: set[int]) -> None:
        """Match in the writer's thread; jobs of the task queues `lost` are taken by matches of another server."""
        self.decide(data.draw(st.sampled_from(self.unmatched())), lost)

    def decide(self, caller: Caller, lost: Collection[int] = ()) -> None:
        caller.has_matched, caller.taken, caller.has_answer = True, None, False
        for task_queue_id in TASK_QUEUES:
            if not caller.takes(task_queue_id) or not self.jobs[task_queue_id]:
                continue
            if caller.is_free and task_queue_id in lost:
                self.elsewhere[task_queue_id] += self.jobs.pop(task_queue_id)
            elif caller.is_free:
                self.jobs[task_queue_id] -= 1
                caller.taken, caller.has_answer = task_queue_id, True
            elif self.wants_eviction(task_queue_id) and not self.polls.is_offered(task_queue_id):
                assert not self.free_takers(task_queue_id), "a job evicts another one beside a free slot"
                self.ordered[task_queue_id] += 1
                caller.has_answer = True
            if caller.has_answer:
                break
        self.update_estimator()

    @precondition(lambda self: self.elsewhere)
    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        """The matches of another server fail."""
        task_queue_id = data.draw(st.sampled_from(sorted(self.elsewhere)))
        self.commit(task_queue_id, self.elsewhere.pop(task_queue_id))

    @precondition(lambda self: self.matched())
    @rule(data=st.data())
    def end_look(self, data: st.DataObject) -> None:
        self.finish(data.draw(st.sampled_from(self.matched())))

    def finish(self, caller: Caller) -> None:
        caller.is_looking = False
        if caller.look is not None and caller.counts is not None:
            if caller.taken is not None:
                caller.counts[caller.taken] += 1
            caller.look.__exit__(None, None, None)
            caller.look = None
        elif not caller.has_answer:
            self.stamps += 1
            credential = PilotCredential(str(self.stamps), QUEUE)
            caller.context = self.polls.waiting(credential, [caller.offer], caller.generation)
            caller.call = caller.context.__enter__()
            self.step += 1
            caller.registered = self.step
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
            caller.has_refused |= caller.refuses
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
        self.estimator.jobs = {task_queue_id: self.jobs[task_queue_id] for task_queue_id in TASK_QUEUES}

    def wants_eviction(self, task_queue_id: int) -> bool:
        return self.jobs[task_queue_id] > self.ordered[task_queue_id]

    def free_takers(self, task_queue_id: int) -> list[Caller]:
        """Return the free slots that wait since before the latest jobs and have taken them whenever they looked."""
        return [
            caller
            for caller in self.callers
            if caller.is_free
            and caller.call is not None
            and caller.takes(task_queue_id)
            and task_queue_id not in caller.has_refused
            and caller.registered < self.latest[task_queue_id]
            and not (caller.is_looking and caller.has_matched)
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
