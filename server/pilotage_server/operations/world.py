"""What one server process holds in memory beside the database, and who hears when it changes.

All of it can be rebuilt from the database (`load_world`); nothing here is the truth about a job. It is changed
under `lock`, after commits only, by whichever writer thread has committed; but jobs that are chosen or wait no more for
another reason leave what waits at once, and come back when their transaction fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pilotage.bans import Ban
from pilotage_server.core.accounting import Account, GroupId
from pilotage_server.core.fair_share import FairShare
from pilotage_server.core.feed_positions import OthersEvents
from pilotage_server.core.health import Place
from pilotage_server.core.job_ad_texts import JobAdTexts
from pilotage_server.core.job_events import JobEvent
from pilotage_server.core.job_policies import PolicyJudge
from pilotage_server.core.limits import LimitBook, counts_for
from pilotage_server.core.match_board import MatchBoard
from pilotage_server.core.policy_looks import PolicyLooks
from pilotage_server.core.pool_mappings import PoolMappings
from pilotage_server.core.preemption import Orders
from pilotage_server.core.reach import Reach
from pilotage_server.core.rules import Rules, RunningLimit
from pilotage_server.core.slot_policies import SlotPolicies
from pilotage_server.core.task_queues import TaskQueue
from pilotage_server.core.throttles import Throttle
from pilotage_server.core.tree_in_force import NO_TREE, TreeInForce
from pilotage_server.core.waiting import Head, Waiting, WaitingIndex
from pilotage_server.operations.descriptions import Descriptions

PoolsStamp = tuple[object, ...]
"""Is another whenever pools have come, gone, or been mapped."""


@dataclass(eq=False)
class World:
    """One server's memory.

    The observers are called in the writer thread after the commit and must not block: `on_enqueued` with a task
    queue and how many jobs have come to it, `on_commands` with the stamp of a pilot that has something to stop,
    `on_reach_changed` when any waiting job may now fit any queue, `event_listeners` with events in feed order.
    `throttles` are those of places that get no more than single jobs. Folded names: `significant` of the attributes
    of jobs that policies of slots refer to, `published` of those that the ads of slots have. `is_offered` tells whether
    pilots with free slots, other than the one with this stamp, are about to look for jobs of a task queue. `uncounted`
    are task queues of which it is not known how many jobs wait. `others` is what is not known yet of other servers'
    doings, None = no other server can be there; who takes it in holds `following`. `pools_stamp` is that of the pools
    in the database when they were last read. `limits_seen` is what the limits counted when it was last looked what
    other servers have made of them.
    """

    rules: Rules = field(default_factory=Rules)
    tree: TreeInForce = NO_TREE
    mappings: PoolMappings = field(default_factory=PoolMappings)
    bans: tuple[Ban, ...] = ()
    throttles: Mapping[Place, Throttle] = field(default_factory=dict)
    waiting: WaitingIndex = field(default_factory=WaitingIndex)
    uncounted: set[int] = field(default_factory=set)
    others: OthersEvents | None = None
    pools_stamp: PoolsStamp | None = None
    significant: frozenset[str] = frozenset()
    published: frozenset[str] = frozenset()
    lock: threading.RLock = field(default_factory=threading.RLock)
    following: threading.Lock = field(default_factory=threading.Lock)
    on_enqueued: list[Callable[[TaskQueue, int], None]] = field(default_factory=list)
    on_commands: list[Callable[[str], None]] = field(default_factory=list)
    on_reach_changed: list[Callable[[], None]] = field(default_factory=list)
    event_listeners: list[Callable[[Sequence[JobEvent]], None]] = field(default_factory=list)
    policy_looks: PolicyLooks = field(default_factory=PolicyLooks)
    policy_judge: PolicyJudge = field(init=False)
    policies: SlotPolicies = field(default_factory=SlotPolicies)
    orders: Orders = field(default_factory=Orders)
    is_offered: Callable[[int, str], bool] = field(default=lambda _task_queue_id, _stamp: False)
    descriptions: Descriptions = field(default_factory=Descriptions)
    ad_texts: JobAdTexts = field(default_factory=JobAdTexts)
    limits: LimitBook = field(init=False)
    limits_seen: Mapping[RunningLimit, int] = field(default_factory=dict)
    shares: FairShare = field(init=False)
    board: MatchBoard = field(init=False)
    _reach: Reach | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.limits = LimitBook(self.rules.running_limits)
        self.shares = FairShare(self.rules.sharing)
        self.board = MatchBoard(self.waiting, self.shares, self.policies, self.rules.end_margin)
        policies = self.rules.policies
        self.policy_judge = PolicyJudge(policies.of_operators, policies.max_releases)

    @property
    def reach(self) -> Reach:
        """The predicate on task queues and batch queues, over the tree and the mappings in force."""
        with self.lock:
            if self._reach is None or not self._reach.is_over(self.tree, self.mappings):
                self._reach = Reach(self.tree, self.mappings)
            return self._reach

    def enqueued(self, task_queue_id: int, job_id: int, priority: int, count: int = 1) -> None:
        """Take note that jobs wait: this one, and for an array those that follow it."""
        with self.lock:
            self.waiting.enqueued(task_queue_id, Head(priority, job_id), count)
        self.tell_enqueued(task_queue_id, count)

    def tell_enqueued(self, task_queue_id: int, count: int) -> None:
        """Tell that jobs have come to wait; those of a task queue that is not known yet may fit any queue."""
        task_queue = self.waiting.task_queue(task_queue_id)
        if task_queue is None:
            self.reach_changed()
            return
        for observer in self.on_enqueued:
            observer(task_queue, count)

    def limit_eased(self, limit: RunningLimit, jobs: int) -> None:
        """Tell that so many more of the jobs that a limit counts may run: they can be taken now."""
        with self.lock:
            counted = [each for each in self.waiting.waiting() if counts_for(limit, each.task_queue.traits)]
        self._tell_eased(counted, jobs)

    def _tell_eased(self, eased: Iterable[Waiting], jobs: int) -> None:
        for waiting in eased:
            task_queue_id = waiting.task_queue.id
            self.tell_enqueued(task_queue_id, min(jobs, self.waiting.count(task_queue_id)))

    def doubt(self, task_queue_id: int) -> None:
        """Take note that the database has given nothing where jobs were known to wait: they are to be counted."""
        with self.lock:
            self.waiting.doubted.add(task_queue_id)

    def dequeued(self, task_queue_id: int, job_id: int) -> None:
        """Take note that a job waits no more."""
        with self.lock:
            self.waiting.dequeued(task_queue_id, job_id)

    def requeued(self, task_queue_id: int, job_id: int, priority: int) -> None:
        """Take note that a job waits all the same: the transaction failed in which it should not."""
        with self.lock:
            self.waiting.put_back(task_queue_id, [Head(priority, job_id)])
        self.tell_enqueued(task_queue_id, 1)

    def renew_head(self, task_queue_id: int, head: Head | None) -> None:
        """Take note of the first job of a task queue, as the database says."""
        with self.lock:
            self.waiting.renew_head(task_queue_id, head)

    def forget(self, task_queue_ids: Iterable[int]) -> None:
        """Drop task queues that the database no longer has."""
        with self.lock:
            self.waiting.forget(task_queue_ids)

    def forget_uses(self, accounts: Iterable[Account]) -> None:
        """Drop accounts whose use the database no longer has."""
        with self.lock:
            self.shares.forget(accounts)

    def run_started(self, account: Account, weight: float, now: datetime, since: datetime | None = None) -> None:
        """Charge the account for weighted cores from now on, or as if from `since` on."""
        with self.lock:
            self.shares.started(account, weight, now, since)

    def run_ended(self, account: Account, weight: float, now: datetime, runs: int = 1) -> None:
        """Charge the account for these weighted cores, of so many runs, no longer.

        Its group may have been at a quota that bars: then as many jobs may be taken now.
        """
        with self.lock:
            self.shares.ended(account, weight, now, runs)
            eased = self._of_group(account.group_id) if self.shares.settings.barring(account.group_id) else ()
        self._tell_eased(eased, runs)

    def _of_group(self, group: GroupId) -> tuple[Waiting, ...]:
        """Return what waits of the accounts of a group."""
        members = sorted(account for account in self.waiting.accounts() if account.group_id == group)
        return tuple(waiting for account in members for waiting in self.waiting.of_account(account))

    def look_at(self, job_ids: Iterable[int]) -> None:
        """Take note that the policies of these jobs are to be looked at."""
        with self.lock:
            self.policy_looks.note(job_ids)

    def look_again(self, job_ids: Iterable[int], then: datetime) -> None:
        """Take note that policies have just moved these jobs, and are to be looked at then, not before."""
        with self.lock:
            self.policy_looks.defer(job_ids, then)

    def changed_jobs(self, now: datetime, most: int) -> list[int]:
        """Return the next jobs whose policies are to be looked at, and forget them."""
        with self.lock:
            return self.policy_looks.take(now, most)

    def reach_changed(self) -> None:
        """Tell that any waiting job may now fit any queue."""
        for observer in self.on_reach_changed:
            observer()

    def call_pilot(self, stamp: str) -> None:
        """Tell that a pilot has something to stop."""
        for observer in self.on_commands:
            observer(stamp)

    def tell_events(self, events: Sequence[JobEvent]) -> None:
        """Tell what happened to jobs."""
        for listener in self.event_listeners:
            listener(events)
