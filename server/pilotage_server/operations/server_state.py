"""The state of a server: what one server process holds in memory beside the database, and its listeners.

All of it can be rebuilt from the database (`load_state`); nothing here is the truth about a job. The writer thread that
has committed changes it under `lock`, after the commit. One exception: jobs that are reserved, or stop waiting for
another reason, leave the waiting jobs at once and come back when their transaction fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from pilotage.job_description import JobDescription
from pilotage.resources.eligibility import Ban
from pilotage.values.accounts import Account
from pilotage.values.attempts import TailStream
from pilotage_server.core.accounting.fair_share import FairShare
from pilotage_server.core.accounting.limits import LimitIndex, counts_for
from pilotage_server.core.attempts.tails import NO_TAILS, WantedTails
from pilotage_server.core.containers import MAX_CACHED_BYTES, MAX_CACHED_VALUES, BoundedCache
from pilotage_server.core.health.black_holes import Location
from pilotage_server.core.health.throttles import Throttle
from pilotage_server.core.jobs.periodic_policies import PeriodicPolicyEvaluator, PolicyQueue
from pilotage_server.core.jobs.record import FeedCursor, FeedEvent
from pilotage_server.core.matching.matcher import Matcher
from pilotage_server.core.matching.preemption import VacateOrders
from pilotage_server.core.matching.slot_policy import SlotPolicies
from pilotage_server.core.queueing.index import TaskQueueIndex
from pilotage_server.core.queueing.job_ads import JobAdTexts
from pilotage_server.core.queueing.reach import QueueAccess
from pilotage_server.core.queueing.task_queue import TaskQueue
from pilotage_server.core.queueing.waiting_jobs import QueueHead, WaitingTaskQueue
from pilotage_server.core.resources.mappings import PoolMappings
from pilotage_server.core.resources.tree import NO_TREE, ActiveTree
from pilotage_server.core.revocations import NO_REVOCATIONS, Revocations
from pilotage_server.core.rules import Rules, RunningLimit
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.submission.templates import (
    SizedDescription,
    load_sized_descriptions,
    load_small_descriptions,
)

_SMALL = 16 * 1024
"""A description of at most so many characters is read together with its size, because it is likely to be needed."""


class DescriptionCache:
    """A cache of descriptions by the ids of their templates; a template never changes, and its id is never reused."""

    def __init__(self, most: int = MAX_CACHED_VALUES, most_bytes: int = MAX_CACHED_BYTES) -> None:
        self._cache = BoundedCache[int, SizedDescription](most, most_bytes)

    def load(self, transaction: Transaction, template_ids: Collection[int]) -> Mapping[int, JobDescription]:
        """Return the descriptions of these templates."""
        return {id_: sized.description for id_, sized in self.load_sized(transaction, template_ids).items()}

    def load_sized(self, transaction: Transaction, template_ids: Collection[int]) -> Mapping[int, SizedDescription]:
        """Return the descriptions of these templates with their sizes and trace contexts."""
        known = self._cache.known
        found = {template_id: known[template_id] for template_id in template_ids if template_id in known}
        if len(found) < len(template_ids):
            missing = [each for each in template_ids if each not in found]
            for template_id, sized in load_sized_descriptions(transaction.session, missing).items():
                self._cache.put(template_id, sized, sized.size)
                found[template_id] = sized
        return found

    def sizes(self, transaction: Transaction, template_ids: Collection[int]) -> Mapping[int, int]:
        """Return the lengths in characters of the descriptions of these templates; large ones are not read."""
        known = self._cache.known
        found = {template_id: known[template_id].size for template_id in template_ids if template_id in known}
        if len(found) < len(template_ids):
            unknown = [each for each in template_ids if each not in found]
            for template_id, read in load_small_descriptions(transaction.session, unknown, _SMALL).items():
                if isinstance(read, int):
                    found[template_id] = read
                else:
                    found[template_id] = read.size
                    self._cache.put(template_id, read, read.size)
        return found


PoolsVersion = tuple[object, ...]
"""Changes whenever a pool is added, removed or mapped."""


@dataclass(eq=False)
class ServerState:
    """The state of one server.

    Listeners are called in the writer thread after the commit and must not block: `waiting_listeners` with a task queue
    and the number of new waiting jobs, `command_listeners` with the stamp of a pilot that has a command,
    `access_listeners` when any waiting job may now fit any queue, `event_listeners` with events in the order of the
    feed, `parent_listeners` when a job has done what a dependency watches for.

    Sets of attributes have folded names: `significant_attributes` of jobs, which policies of slots refer to, and
    `published_attributes`, which the ads of slots have. `throttles` are those of locations that get no job or only
    probes. `is_offered(task_queue_id)` = new jobs of the task queue are still offered to free slots first.
    `pending_counts` = task queues whose number of waiting jobs is not known yet. `feed_cursor` = how far the events of
    other servers have been read, None = there can be no other server; changed under `sync_lock`. `pools_version` =
    that of the pools in the database when they were last read. `tails` are those that followers want; `new_tails`, by
    the stamps of their pilots, are in no answer to a pilot yet. `synced_limits` = the counts of limits when those of
    other servers were last read.
    """

    rules: Rules = field(default_factory=Rules)
    tree: ActiveTree = NO_TREE
    mappings: PoolMappings = field(default_factory=PoolMappings)
    bans: tuple[Ban, ...] = ()
    revocations: Revocations = NO_REVOCATIONS
    tails: WantedTails = NO_TAILS
    new_tails: dict[str, set[TailStream]] = field(default_factory=dict)
    throttles: Mapping[Location, Throttle] = field(default_factory=dict)
    waiting: TaskQueueIndex = field(default_factory=TaskQueueIndex)
    pending_counts: set[int] = field(default_factory=set)
    feed_cursor: FeedCursor | None = None
    pools_version: PoolsVersion | None = None
    significant_attributes: frozenset[str] = frozenset()
    published_attributes: frozenset[str] = frozenset()
    lock: threading.RLock = field(default_factory=threading.RLock)
    sync_lock: threading.Lock = field(default_factory=threading.Lock)
    waiting_listeners: list[Callable[[TaskQueue, int], None]] = field(default_factory=list)
    command_listeners: list[Callable[[str], None]] = field(default_factory=list)
    access_listeners: list[Callable[[], None]] = field(default_factory=list)
    event_listeners: list[Callable[[Sequence[FeedEvent]], None]] = field(default_factory=list)
    parent_listeners: list[Callable[[], None]] = field(default_factory=list)
    policy_checks: PolicyQueue = field(default_factory=PolicyQueue)
    policy_evaluator: PeriodicPolicyEvaluator = field(init=False)
    policies: SlotPolicies = field(default_factory=SlotPolicies)
    orders: VacateOrders = field(default_factory=VacateOrders)
    is_offered: Callable[[int], bool] = field(default=lambda _: False)
    descriptions: DescriptionCache = field(default_factory=DescriptionCache)
    ad_texts: JobAdTexts = field(default_factory=JobAdTexts)
    limits: LimitIndex = field(init=False)
    synced_limits: Mapping[RunningLimit, int] = field(default_factory=dict)
    shares: FairShare = field(init=False)
    matcher: Matcher = field(init=False)
    _queue_access: QueueAccess | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.limits = LimitIndex(self.rules.running_limits)
        self.shares = FairShare(self.rules.sharing)
        self.matcher = Matcher(self.waiting, self.shares, self.policies, self.rules.end_margin)
        policies = self.rules.policies
        self.policy_evaluator = PeriodicPolicyEvaluator(policies.of_operators, policies.max_releases)

    @property
    def queue_access(self) -> QueueAccess:
        """The predicate on task queues and batch queues, over the active tree and its mappings."""
        with self.lock:
            if self._queue_access is None or not self._queue_access.is_based_on(self.tree, self.mappings):
                self._queue_access = QueueAccess(self.tree, self.mappings, self.rules.required_isolation)
            return self._queue_access

    def add_waiting(self, task_queue_id: int, job_id: int, priority: int, count: int = 1) -> None:
        """Add waiting jobs: this one and, for an array, the next ones up to `count`."""
        with self.lock:
            self.waiting.add_jobs(task_queue_id, QueueHead(priority, job_id), count)
        self.publish_waiting(task_queue_id, count)

    def publish_waiting(self, task_queue_id: int, count: int) -> None:
        """Notify the listeners of new waiting jobs; jobs of an unknown task queue may fit any queue."""
        task_queue = self.waiting.task_queue(task_queue_id)
        if task_queue is None:
            self.publish_access_change()
            return
        for observer in self.waiting_listeners:
            observer(task_queue, count)

    def publish_eased_limit(self, limit: RunningLimit, jobs: int) -> None:
        """Notify the listeners that a limit admits so many more jobs."""
        with self.lock:
            counted = [each for each in self.waiting.waiting() if counts_for(limit, each.task_queue.traits)]
        self._publish_eased(counted, jobs)

    def _publish_eased(self, eased: Iterable[WaitingTaskQueue], jobs: int) -> None:
        for waiting in eased:
            task_queue_id = waiting.task_queue.id
            self.publish_waiting(task_queue_id, min(jobs, self.waiting.count(task_queue_id)))

    def remove_waiting(self, task_queue_id: int, job_id: int) -> None:
        """Remove a job from the waiting ones."""
        with self.lock:
            self.waiting.remove_job(task_queue_id, job_id)

    def restore_waiting(self, task_queue_id: int, job_id: int, priority: int) -> None:
        """Add a job again whose removal was rolled back."""
        with self.lock:
            self.waiting.restore(task_queue_id, QueueHead(priority, job_id))
        self.publish_waiting(task_queue_id, 1)

    def remove_task_queues(self, task_queue_ids: Iterable[int]) -> None:
        """Remove task queues that the database no longer has."""
        with self.lock:
            self.waiting.remove(task_queue_ids)

    def remove_accounts(self, accounts: Iterable[Account]) -> None:
        """Remove accounts whose use the database no longer has."""
        with self.lock:
            self.shares.remove(accounts)

    def start_charge(self, account: Account, weight: float, now: datetime, since: datetime | None = None) -> None:
        """Charge the account for weighted cores from now on, or from `since` on."""
        with self.lock:
            self.shares.start_run(account, weight, now, since)

    def end_charge(self, account: Account, weight: float, now: datetime, runs: int = 1) -> None:
        """Stop charging the account for these weighted cores of `runs` runs.

        If a quota barred the group, so many more jobs of the group may run now.
        """
        with self.lock:
            self.shares.end_runs(account, weight, now, runs)
            eased: list[WaitingTaskQueue] = []
            if self.shares.settings.hard_limit(account.group_id):
                members = sorted(each for each in self.waiting.accounts() if each.group_id == account.group_id)
                eased = [waiting for member in members for waiting in self.waiting.of_account(member)]
        self._publish_eased(eased, runs)

    def add_policy_checks(self, job_ids: Iterable[int]) -> None:
        """Request an evaluation of the policies of these jobs."""
        with self.lock:
            self.policy_checks.add(job_ids)

    def defer_policy_checks(self, job_ids: Iterable[int], then: datetime) -> None:
        """Defer the next evaluation of these jobs, which policies have just moved, until `then`."""
        with self.lock:
            self.policy_checks.defer(job_ids, then)

    def take_policy_checks(self, now: datetime, most: int) -> list[int]:
        """Remove and return the next jobs whose policies are to be evaluated."""
        with self.lock:
            return self.policy_checks.pop(now, most)

    def publish_access_change(self) -> None:
        """Notify the listeners that any waiting job may now fit any queue."""
        for observer in self.access_listeners:
            observer()

    def take_new_tails(self, stamp: str) -> tuple[TailStream, ...]:
        """Remove and return the tails of a pilot that are in no answer to it yet."""
        if not self.new_tails:
            return ()
        with self.lock:
            return tuple(sorted(self.new_tails.pop(stamp, ())))

    def publish_command(self, stamp: str) -> None:
        """Notify the listeners of a command for a pilot."""
        for observer in self.command_listeners:
            observer(stamp)

    def publish_events(self, events: Sequence[FeedEvent]) -> None:
        """Notify the listeners of events of jobs."""
        for listener in self.event_listeners:
            listener(events)

    def publish_parent_events(self) -> None:
        """Notify the listeners that dependencies are to be examined."""
        for listener in self.parent_listeners:
            listener()
