"""A director with a batch system, a server and a clock in memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pilotage.errors import LeadershipLostError, NotFoundError, ServerUnreachableError
from pilotage.job_description import Value
from pilotage.resources.tree import QueueId
from pilotage.values.amounts import Amounts
from pilotage.values.demand import Demand, DemandAnswer, EmptyReturns, IdleSlots, LimitRoom, QueueSupply
from pilotage.values.pilots import GlideinReport
from pilotage_agents.runtime.link import RegisteredPilot, TreeQueue
from pilotage_agents.site_director.director import SiteDirector
from pilotage_agents.site_director.glideins import GlideinFolders
from pilotage_agents.site_director.ports import DirectorContext, GlideinReportAnswer, PoolsOfQueues
from pilotage_agents.site_director.sender import PilotSender
from pilotage_agents.site_director.settings import DirectorSettings, SiteDirectorSettings, TaskQueueDirectorSettings
from pilotage_agents.site_director.task_queue_director import TaskQueueDirector
from pilotage_agents.site_director.watch import GlideinWatch, WatchLimits
from support.fake_batch_systems import FakeBatchSystem

_SUBMITTED_WITHIN = timedelta(minutes=10)


ONE_CORE: dict[str, Value] = {"CEType": "local", "CPUs": 1}
QUEUE = QueueId("Lyon", "ce1", "short")


@dataclass
class FakeDirectorLink:
    """A server that counts the pilots of each queue from registrations and reports.

    Pilots never start by themselves. As at the real server, a pilot without a report for ten minutes is lost.
    `waiting` one-core jobs match every queue, and all `limits` count them; `waiting_at` one queue each. `idle` and
    `busy` are the stamps of the running pilots without and with a job. `calls` records the names of the calls in order.
    A pilot of a set of queues has the queue None until a test gives it one.
    """

    tree: tuple[TreeQueue, ...]
    waiting: int = 0
    waiting_at: dict[QueueId, int] = field(default_factory=dict)
    tree_version: int = 1
    pools: tuple[str, ...] = ("pool",)
    is_reachable: bool = True
    is_leader: bool = True
    banned: set[QueueId] = field(default_factory=set)
    throttled: dict[QueueId, str] = field(default_factory=dict)
    held: set[QueueId] = field(default_factory=set)
    empty: dict[QueueId, EmptyReturns] = field(default_factory=dict)
    idle: set[str] = field(default_factory=set)
    busy: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    clock: Callable[[], datetime] = lambda: datetime(2026, 1, 1, tzinfo=UTC)
    set_empty: EmptyReturns | None = None
    limits: tuple[LimitRoom, ...] = ()
    queue_sets: list[tuple[str, ...]] = field(default_factory=list)
    registered: dict[str, QueueId | None] = field(default_factory=dict)
    registered_at: dict[str, datetime] = field(default_factory=dict)
    lifetimes_s: list[float] = field(default_factory=list)
    reports: list[GlideinReport] = field(default_factory=list)
    logs: dict[str, str] = field(default_factory=dict)

    @property
    def ended(self) -> dict[str, str]:
        """Reasons of the glideins reported as ended, by stamp."""
        return {report.stamp: report.reason for report in self.reports if report.ended}

    async def queues(self) -> tuple[TreeQueue, ...]:
        self._called("queues")
        return self.tree

    async def pools_of(self, queues: Sequence[QueueId]) -> PoolsOfQueues:
        self._called("pools_of")
        pools = tuple(self.pools if self._has_queue(queue) else None for queue in queues)
        return PoolsOfQueues(self.tree_version, pools)

    async def demand(self, queues: Sequence[QueueId], queue_set: Sequence[str] = ()) -> DemandAnswer:
        self._called("demand")
        known = tuple(place for place, queue in enumerate(queues) if self._has_queue(queue))
        counted = tuple(range(len(self.limits)))
        of_all = Demand("pool", "vo", self.waiting, Amounts(cpus=1), known, limit_indexes=counted)
        of_one = (
            Demand(f"pool of {queue}", "vo", jobs, Amounts(cpus=1), (queues.index(queue),))
            for queue, jobs in self.waiting_at.items()
            if queue in queues
        )
        demands = tuple(demand for demand in (of_all, *of_one) if demand.waiting)
        of_set = replace(self._supply(None), known=True, empty_returns=self.set_empty)
        return DemandAnswer(demands, tuple(self._supply(queue) for queue in queues), of_set, self.limits)

    async def register_pilots(
        self, queue: QueueId | None, count: int, vos: Sequence[str], lifetime_s: float, queue_set: Sequence[str] = ()
    ) -> tuple[RegisteredPilot, ...]:
        self._called("register_pilots")
        if not self.is_leader:
            raise LeadershipLostError("site director")
        if queue_set:
            self.queue_sets.append(tuple(queue_set))
        elif not self._has_queue(queue):
            raise NotFoundError("queue", str(queue))
        self.lifetimes_s.append(lifetime_s)
        stamps = [f"stamp{len(self.registered) + place}" for place in range(count)]
        self.registered |= dict.fromkeys(stamps, queue)
        self.registered_at |= dict.fromkeys(stamps, self.clock())
        return tuple(RegisteredPilot(stamp, f"token of {stamp}") for stamp in stamps)

    async def renew_credentials(self, stamps: Sequence[str], lifetime_s: float) -> tuple[RegisteredPilot, ...]:
        self._called("renew_credentials")
        self.lifetimes_s.append(lifetime_s)
        live = [stamp for stamp in stamps if stamp in self.registered and stamp not in self.ended]
        return tuple(RegisteredPilot(stamp, f"token {len(self.lifetimes_s)} of {stamp}") for stamp in live)

    async def report_glideins(self, reports: Sequence[GlideinReport]) -> GlideinReportAnswer:
        self._called("report_glideins")
        self.reports += reports
        unknown = tuple(report.stamp for report in reports if report.stamp not in self.registered)
        return GlideinReportAnswer(
            unknown,
            tuple(each.stamp for each in reports if each.ended and each.stamp in self.busy),
            tuple(each.stamp for each in reports if each.ended and each.glidein_id),
        )

    async def put_pilot_logs(self, logs: Mapping[str, str]) -> None:
        self._called("put_pilot_logs")
        self.logs.update(logs)

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if not self.is_reachable:
            raise ServerUnreachableError("the server does not answer")

    def _supply(self, queue: QueueId | None) -> QueueSupply:
        """Return the supply of a queue; None = of the set, whose pilots have not landed."""
        ended = {*self.ended, *self._given_up()}
        living = [stamp for stamp, its_queue in self.registered.items() if its_queue == queue and stamp not in ended]
        idle, busy = self.idle.intersection(living), self.busy.intersection(living)
        slots = (IdleSlots(Amounts(cpus=1), len(idle)),) if idle else ()
        return QueueSupply(
            self._has_queue(queue),
            queue in self.banned,
            pilots_waiting=len(living) - len(idle) - len(busy),
            pilots_running=len(idle) + len(busy),
            idle=slots,
            throttled=self.throttled.get(queue, "") if queue else "",
            held=queue in self.held,
            empty_returns=self.empty.get(queue) if queue else None,
        )

    def _given_up(self) -> set[str]:
        reported = {report.stamp for report in self.reports}
        old = {stamp for stamp, since in self.registered_at.items() if self.clock() - since > _SUBMITTED_WITHIN}
        return old - reported

    def _has_queue(self, queue: QueueId | None) -> bool:
        return queue in {each.id for each in self.tree}


def a_queue(queue: QueueId = QUEUE, *, enabled: bool = True, **parameters: Any) -> TreeQueue:
    return TreeQueue(queue, enabled, {**ONE_CORE, **parameters})


@dataclass
class DirectorGrid:
    """A site director with its folder, batch system, server and clock."""

    folder: Path
    link: FakeDirectorLink = field(default_factory=lambda: FakeDirectorLink((a_queue(),)))
    batch: FakeBatchSystem = field(default_factory=FakeBatchSystem)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)

    def director(self, **settings: Any) -> SiteDirector:
        """Return a new director, as a start of the agent creates it."""
        self.link.clock = lambda: self.now
        parsed = SiteDirectorSettings.model_validate(
            {"folder": self.folder, "batch_systems": {"local": {"type": "local"}}, **settings}
        )
        return SiteDirector(parsed, *self._parts(parsed))

    def task_queue_director(self, **settings: Any) -> TaskQueueDirector:
        """Return a new director of a set of queues."""
        self.link.clock = lambda: self.now
        parsed = TaskQueueDirectorSettings.model_validate(
            {"folder": self.folder, "batch_systems": {"local": {"type": "local"}}, **settings}
        )
        return TaskQueueDirector(parsed, *self._parts(parsed))

    def _parts(self, settings: DirectorSettings) -> tuple[DirectorContext, GlideinWatch, PilotSender]:
        folders = self.folders()
        folders.open()
        context = DirectorContext(folders, self.link, {"local": self.batch}, lambda: self.now)
        lost_after, credential = timedelta(seconds=settings.lost_after_s), timedelta(seconds=settings.credential_s)
        watch = GlideinWatch(context, WatchLimits(settings.keep_ended, lost_after, credential))
        return context, watch, PilotSender(settings, {"server": ["127.0.0.1:1"]}, context, watch)

    def folders(self) -> GlideinFolders:
        return GlideinFolders(self.folder / "pilots")

    @property
    def submitted(self) -> list[str]:
        """The stamps of the glideins that the batch system has accepted."""
        return [request.stamp for request in self.batch.requests.values()]
