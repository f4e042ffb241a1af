"""A small grid in memory: one server over a database, with queues, pilots and jobs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from itertools import count
from typing import Any, TypeVar

import pytest

from pilotage.errors import PilotageError
from pilotage.job_description import JobDescription
from pilotage.resources.tree import QueueId
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey, Outcome, ReportResult
from pilotage.values.dependencies import Dependency
from pilotage.values.offers import SlotOffer
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage_server.core.attempts.reports import JobReport, NodeState, ReportedSlot
from pilotage_server.core.health.black_holes import BlackHole, HealthRules, Location, LocationLevel
from pilotage_server.core.health.evidence import RunningAttempts, RunningFilter
from pilotage_server.core.health.throttles import Throttle, ThrottleChange, new_throttle
from pilotage_server.core.identity import Identity, PilotCredential, Role
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.record import JobRecord, PolicyWatch
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.core.rules import Rules
from pilotage_server.operations.attempts.expiry import Expired, expire_leases
from pilotage_server.operations.attempts.heartbeats import HeartbeatAnswer, ReceivedHeartbeat, report_states
from pilotage_server.operations.explain import Explanation, explain_job
from pilotage_server.operations.health import HealthWatch, list_health, store_changes
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.dependencies import advance
from pilotage_server.operations.jobs.new_jobs import store_part
from pilotage_server.operations.jobs.periodic_policies import apply_policies, scan_changed, scan_next
from pilotage_server.operations.jobs.queries import get_events
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.matching.request_jobs import request_many
from pilotage_server.operations.matching.work import Match, WorkAnswer, WorkRequest
from pilotage_server.operations.pilots.pilots import (
    GlideinReportResult,
    NewPilots,
    drain_pilots,
    register_pilots,
    report_glideins,
)
from pilotage_server.operations.put_tree import put_tree, try_tree
from pilotage_server.operations.queueing.rekeying import add_references
from pilotage_server.operations.resources.tree import parse_tree
from pilotage_server.operations.server_state import ServerState
from pilotage_server.operations.startup.loading import load_state
from pilotage_server.storage.attempts import load_history, load_running
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_job, load_jobs
from pilotage_server.storage.leases import swap_last_alive
from pilotage_server.storage.retention import WatchPosition, first_watched
from support.jobs import a_user, an_operator
from support.virtual_clock import VirtualClock

Result = TypeVar("Result")

LONG = "CERN/ce01/long"
NODE = Location(LocationLevel.NODE, "CERN", node="n1")
QUEUE = Location(LocationLevel.QUEUE, "CERN", "ce01", "long")
FAST = timedelta(minutes=1)
JOBS_AT_CERN = RunningFilter(sites=frozenset({"CERN"}))


def a_tree(*queues: str, **parameters: Any) -> dict[str, Any]:
    """Return the data of a tree in which each queue has these parameters."""
    sites: dict[str, Any] = {}
    for queue in map(QueueId.parse, queues):
        ces = sites.setdefault(queue.site, {"ces": {}})["ces"]
        ces.setdefault(queue.ce, {"queues": {}})["queues"][queue.queue] = dict(parameters)
    return {"sites": sites}


def a_slot(name: str = "slot1", cpus: int = 1, memory_mib: int = 0, **fields: Any) -> SlotOffer:
    """Return the offer of a free slot."""
    return SlotOffer(name, Amounts(cpus, memory_mib, fields.pop("disk_mib", 0), fields.pop("gpus", 0)), **fields)


def request_jobs(transaction: Transaction, state: ServerState, identity: Identity, request: WorkRequest) -> WorkAnswer:
    """Handle one pilot's request; raises the error if the answer is one."""
    (answer,) = request_many(transaction, state, [(identity, request)])
    if isinstance(answer, PilotageError):
        raise answer
    return answer


@dataclass
class Pilot:
    """A pilot of a grid that keeps its attempts in `held` until they end or are lost."""

    grid: Grid
    identity: Identity
    held: list[AttemptKey] = field(default_factory=list)

    @property
    def stamp(self) -> str:
        assert self.identity.pilot is not None
        return self.identity.pilot.stamp

    def request_jobs(self, *slots: SlotOffer, reports: Iterable[JobReport] = ()) -> WorkAnswer:
        """Request jobs, by default for one single-core slot."""
        answer = self.request(WorkRequest(slots or (a_slot(),), tuple(reports)))
        self.held += [AttemptKey(match.job_id, match.attempt) for match in answer.matches]
        return answer

    def request(self, request: WorkRequest) -> WorkAnswer:
        """Request jobs as the RPC does: twice, if a policy refers to attributes that task queues do not have yet."""
        answer = self.grid.write(lambda transaction, state: request_jobs(transaction, state, self.identity, request))
        if not answer.unreferred:
            return answer
        self.grid.write(lambda transaction, state: add_references(transaction, state, answer.unreferred))
        repeated = request.after(timedelta(0))
        second = self.grid.write(lambda transaction, state: request_jobs(transaction, state, self.identity, repeated))
        return replace(second, results=answer.results)

    def take(self, *slots: SlotOffer) -> Match:
        """Request jobs and return the only match."""
        (match,) = self.request_jobs(*slots).matches
        return match

    def claim(self, *slots: SlotOffer) -> list[int]:
        """Request jobs and return the ids of the matched ones."""
        return [match.job_id for match in self.request_jobs(*slots).matches]

    def beat(self, *reports: JobReport, **fields: Any) -> HeartbeatAnswer:
        """Send a heartbeat with all held leases, and drop the lost ones."""
        answer = self.send(ReceivedHeartbeat(leases=tuple(self.held), reports=reports, **fields))
        lost = {AttemptKey(lease.job_id, lease.attempt) for lease in answer.lost}
        self.held = [lease for lease in self.held if lease not in lost]
        return answer

    def send(self, heartbeat: ReceivedHeartbeat) -> HeartbeatAnswer:
        """Send a heartbeat unchanged."""
        (answer,) = self.grid.write(
            lambda transaction, state: report_states(transaction, state, [(self.identity, heartbeat)])
        )
        return answer

    def report(self, match: Match | AttemptKey, outcome: Outcome | None = None, **fields: Any) -> ReportResult:
        """Report one attempt by heartbeat."""
        lease = AttemptKey(match.job_id, match.attempt)
        report = JobReport(lease.job_id, lease.attempt, outcome=outcome, **fields)
        if outcome is not None and lease in self.held:
            self.held.remove(lease)
        (result,) = self.beat(report).results
        return result

    def start(self, match: Match) -> ReportResult:
        """Report that the payload runs."""
        return self.report(match, state=JobState.RUNNING)

    def finish(self, match: Match, exit_code: int = 0) -> ReportResult:
        """Report that the payload has exited."""
        return self.report(match, Outcome.EXITED, exit_code=exit_code)

    def show(self, *slots: ReportedSlot, **fields: Any) -> HeartbeatAnswer:
        """Report a node with these slots."""
        name = fields.pop("name", f"node-of-{self.stamp}")
        return self.beat(node=NodeState(name, Amounts(8), slots=slots, **fields))


class Grid:
    """One server over `database`, with a tree of these queues."""

    def __init__(
        self, database: Database, clock: VirtualClock, *queues: str, rules: Rules | None = None, **parameters: Any
    ) -> None:
        self.database = database
        self.clock = clock
        self.state: ServerState = database.read(lambda transaction: load_state(transaction, rules or Rules()))
        self._stamps = count(1)
        if self.state.tree.version == 0:
            self.put(a_tree(*(queues or (LONG,)), **parameters))

    def write(self, operation: Callable[[Transaction, ServerState], Result]) -> Result:
        """Run an operation in one transaction."""
        return self.database.write(lambda transaction: operation(transaction, self.state))

    def read(self, operation: Callable[[Transaction, ServerState], Result]) -> Result:
        """Run an operation that changes nothing."""
        return self.database.read(lambda transaction: operation(transaction, self.state))

    def put(self, tree: dict[str, Any]) -> None:
        """Make this tree the active one."""
        new = parse_tree(json.dumps(tree), "json")
        plan = self.read(lambda transaction, state: try_tree(transaction, state, new))
        self.write(lambda transaction, state: put_tree(transaction, state, an_operator(), new, plan))

    def submit(
        self,
        user: Identity | None = None,
        count: int | None = None,
        dependencies: Sequence[Dependency] = (),
        **fields: Any,
    ) -> list[int]:
        """Submit a job, or an array of `count` jobs, and return the ids."""
        description = JobDescription("/bin/true", count=count, **fields)
        identity = user or a_user()
        submitted = self.write(
            lambda transaction, state: submit_jobs(
                transaction, state, identity, single_groups([description]), dependencies=dependencies
            )
        )
        while self.write(lambda transaction, state: store_part(transaction, state, submitted.job_ids[0])):
            pass
        return list(submitted.job_ids)

    def advance(self) -> None:
        """Let jobs wait whose dependencies are met, as a server does at once."""
        while self.write(advance):
            pass

    def job(self, job_id: int) -> JobRecord:
        return self.read(lambda transaction, _: load_job(transaction.session, job_id))

    def jobs(self, ids: Iterable[int]) -> dict[int, JobRecord]:
        return self.read(lambda transaction, _: load_jobs(transaction.session, ids))

    def history(self, job_id: int) -> list[tuple[int, str]]:
        """Return number and outcome of each attempt of a job; "" = it holds its lease."""
        attempts = self.read(lambda transaction, _: load_history(transaction.session, job_id))
        return [(attempt.attempt, attempt.outcome) for attempt in attempts]

    def change(self, change: JobChange, *ids: int, user: Identity | None = None) -> None:
        """Remove, hold, release or reschedule jobs."""
        self.write(
            lambda transaction, state: change_jobs(
                transaction, state, user or an_operator(), ids, change, "so it is wanted"
            )
        )

    def start_pilot(self, queue: str = LONG, *vos: str) -> Pilot:
        wanted = NewPilots(QueueId.parse(queue), 1, vos)
        stamp = f"p{next(self._stamps)}"
        (credential,) = self.write(
            lambda transaction, state: register_pilots(transaction, state, an_operator(), wanted, lambda: stamp)
        )
        return self.pilot_of(credential)

    def pilot_of(self, credential: PilotCredential) -> Pilot:
        """Return a pilot with this credential, which need not be registered."""
        identity = Identity(f"pilot:{credential.stamp}", "", (), frozenset({Role.PILOT}), credential)
        return Pilot(self, identity)

    def glidein_ended(self, pilot: Pilot, reason: str = "exit code 1") -> None:
        """Report that a pilot's glidein has ended, and that no process of it is left."""
        self.glidein(GlideinReport(pilot.stamp, "42", PilotState.ENDED, reason, processes_ended=True))

    def glidein(self, *reports: GlideinReport) -> GlideinReportResult:
        return self.write(lambda transaction, state: report_glideins(transaction, state, an_operator(), reports))

    def drain(self, *pilots: Pilot, evict: bool = False) -> None:
        stamps = [pilot.stamp for pilot in pilots]
        self.write(
            lambda transaction, state: drain_pilots(
                transaction, state, an_operator(), stamps, "maintenance", evict=evict
            )
        )

    def sweep(self) -> Expired:
        """Expire the leases that have run out."""
        return self.write(expire_leases)

    def pass_time(self, **amounts: float) -> Expired:
        """Advance the clock while the server is alive, then expire the leases that have run out."""
        self.clock.advance(timedelta(**amounts))
        self.write(lambda transaction, _: swap_last_alive(transaction.session, transaction.now))
        return self.sweep()

    def why(self, job_id: int, user: Identity | None = None) -> Explanation:
        return self.read(lambda transaction, state: explain_job(transaction, state, user or an_operator(), job_id))

    def restarted(self) -> Grid:
        """Return the grid with a new server over the same database."""
        other = Grid(self.database, self.clock, rules=self.state.rules)
        other._stamps = self._stamps
        return other


def an_idle_slot(name: str = "slot1", cpus: int = 1, memory_mib: int = 0) -> ReportedSlot:
    """Return the report of an unclaimed slot."""
    amounts = Amounts(cpus, memory_mib)
    return ReportedSlot(name, "Unclaimed", "Idle", amounts, amounts)


def a_busy_slot(name: str = "slot1", cpus: int = 1) -> ReportedSlot:
    """Return the report of a slot that runs a job."""
    return replace(an_idle_slot(name, cpus), state="Claimed", activity="Busy", free=Amounts(), job_id=1)


class PolicyGrid(Grid):
    """A grid in which a test starts the periodic evaluation of policies."""

    def evaluate_changed(self) -> list[int]:
        """Evaluate the policies of changed jobs and apply the result; return the ids of the jobs with a transition."""
        moved: list[int] = []
        while (seen := self.read(lambda transaction, state: scan_changed(transaction, state, 100))).jobs:
            moved += self.act(seen.due)
        return moved

    def evaluate_watched(self, least: PolicyWatch = PolicyWatch.EACH_MINUTE, batch: int = 3) -> list[int]:
        """Evaluate the policies of all jobs with at least this watch, in batches; return as `evaluate_changed` does."""
        place: WatchPosition | None = first_watched(least)
        moved: list[int] = []
        while place is not None:
            seen = self.read(partial(scan_next, place=place, most=batch))
            moved += self.act(seen.due)
            place = seen.position
        return moved

    def act(self, wanting: tuple[int, ...]) -> list[int]:
        """Apply the policies of these jobs; return the ids of the jobs with a transition."""
        return [job.id for job in self.write(lambda transaction, state: apply_policies(transaction, state, wanting))]

    def run_for(self, pilot: Pilot, seconds: float) -> Match:
        """Let the pilot run a job for some seconds; the job stays running."""
        match = pilot.take()
        pilot.start(match)
        left = seconds
        while left > 0:
            step = min(left, 600.0)
            self.pass_time(seconds=step)
            pilot.beat()
            left -= step
        return match

    def causes(self, job_id: int) -> list[JobCause]:
        """Return the causes of all events of a job."""
        return [
            event.cause for event in self.read(lambda transaction, _: get_events(transaction, an_operator(), job_id))
        ]


@pytest.fixture
def grid(database: Database, clock: VirtualClock) -> Grid:
    """Return a grid with waiting jobs."""
    grid = Grid(database, clock)
    grid.submit(count=50)
    return grid


def a_pilot(grid: Grid, node: str = "n1") -> Pilot:
    """Register a pilot that has reported a node."""
    pilot = grid.start_pilot()
    pilot.beat(node=NodeState(node, Amounts(1)))
    return pilot


def open_breaker(grid: Grid, place: Location = NODE) -> Throttle:
    """Open the circuit breaker of a location, as a server does for a black hole."""

    def store(transaction: Transaction) -> Throttle:
        found = new_throttle(BlackHole(place, 6, 7), HealthRules(), transaction.now)
        (made,) = store_changes(transaction, grid.state, [ThrottleChange(None, found)])
        assert made.new is not None
        return made.new

    return grid.database.write(store)


def open_breakers(grid: Grid) -> list[Throttle]:
    """Return all circuit breakers that are not closed."""
    return list(grid.read(lambda transaction, _: list_health(transaction)))


def evidence_of_running(grid: Grid, wanted: RunningFilter = JOBS_AT_CERN) -> list[RunningAttempts]:
    """Return the running attempts as evidence about their locations."""
    return grid.read(lambda transaction, _: load_running(transaction.session, FAST, transaction.now, wanted))


def review_health(grid: Grid, watch: HealthWatch) -> list[ThrottleChange]:
    """Let a server review the evidence and keep its position, without storing the changes."""
    found = grid.read(watch.review)
    watch.commit(found)
    return list(found.changes)
