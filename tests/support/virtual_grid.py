"""A whole grid in virtual time: real server operations and real pilot machines that exchange wire messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from pilotage.job_description import JobPolicy
from pilotage.values.amounts import Amounts
from pilotage_pilot.core import events as ev
from pilotage_pilot.core import instructions as ins
from pilotage_pilot.core.ads.attributes import NodeFacts
from pilotage_pilot.core.ads.node_ads import BuiltInAds
from pilotage_pilot.core.ads.policy_ads import SlotAds
from pilotage_pilot.core.machine import PilotMachine
from pilotage_pilot.core.node.node_slots import NodeSlots
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.core.rules import Lifetime
from pilotage_pilot.core.rules import PilotRules as PilotRules
from pilotage_pilot.core.slots.layout import lay_out
from pilotage_pilot.link import convert as pilot_wire
from pilotage_pilot.link.base import NodeDescription as LinkFacts
from pilotage_pilot.policy.loading import Loaded, load_policy
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobState
from pilotage_server.operations.resources.pools import get_submit_pools_for_queue
from pilotage_server.rpc.matching import wire as server_wire
from pilotage_server.storage.database.engine import Database
from support.grid import LONG, Grid, Pilot, PolicyGrid
from support.jobs import a_user
from support.virtual_clock import VirtualClock
from support.virtual_node import VirtualNode, node_time

MAINTENANCE_INTERVAL = timedelta(seconds=60)
"""How often, by default, the server expires leases and evaluates the jobs' policies."""

_LOADED: dict[tuple[str, Amounts], Loaded] = {}

MAX_STEPS_AT_ONE_TIME = 1000
"""The largest number of steps without progress of the clock."""


@dataclass
class InProcessServer:
    """The server for one node's shell: the real conversions and operations, without the network."""

    grid: Grid
    pilot: Pilot
    facts: LinkFacts

    @property
    def identity(self) -> Identity:
        """The identity of the calling pilot."""
        return self.pilot.identity

    def request_jobs(self, call: ins.RequestJobs) -> ev.JobsGranted:
        """Answer a request for jobs at once, without a long poll."""
        work = server_wire.work_request_from_wire(pilot_wire.request_to_wire(call))
        answer = self.pilot.request(work)
        return pilot_wire.granted_from_wire(call.request_id, server_wire.work_answer_to_wire(answer))

    def beat(self, call: ins.SendHeartbeat) -> ev.HeartbeatAnswered:
        """Answer a heartbeat."""
        heartbeat = server_wire.heartbeat_from_wire(pilot_wire.heartbeat_to_wire(call, self.facts))
        answer = self.pilot.send(heartbeat)
        message = server_wire.heartbeat_answer_to_wire(answer, self.grid.clock())
        return pilot_wire.answered_from_wire(call.request_id, message)

    def pools(self) -> ev.PoolsRead:
        """Return the pools of the node's queue."""
        assert self.identity.pilot is not None
        queue = self.identity.pilot.queue
        (mine,) = get_submit_pools_for_queue(self.grid.state, self.identity, [queue])
        return ev.PoolsRead(mine.known, tuple(mine.pool_ids))


class VirtualGrid:
    """A server over `database` and nodes with pilots; time passes only in `pass_time` and `until`."""

    def __init__(
        self,
        database: Database,
        clock: VirtualClock,
        *,
        maintenance_interval: timedelta = MAINTENANCE_INTERVAL,
        **options: Any,
    ) -> None:
        self.clock = clock
        self._duties_interval = maintenance_interval
        self.grid = PolicyGrid(database, clock, **options)
        self.nodes: list[VirtualNode] = []
        self._has_news = False
        self._duties = clock() + maintenance_interval
        for observers in (
            self.grid.state.waiting_listeners,
            self.grid.state.command_listeners,
            self.grid.state.access_listeners,
        ):
            observers.append(self._notify)
        self._has_parent_events = False
        self.grid.state.parent_listeners.append(self._note_parent_events)

    def _note_parent_events(self) -> None:
        self._has_parent_events = True

    def _notify(self, *_: object) -> None:
        self._has_news = True

    # Nodes and jobs ---------------------------------------------------------------------------------------------

    def node(
        self,
        policy: Path | None = None,
        cpus: int = 8,
        memory_mib: int = 16054,
        *,
        name: str = "",
        queue: str = LONG,
        rules: PilotRules | None = None,
        after: VirtualNode | None = None,
    ) -> VirtualNode:
        """Start a pilot on a new node of this size, under the policy of a file or the built-in one.

        `after` = an earlier pilot on the same node.
        """
        size = Amounts(cpus, memory_mib, 100_000)
        loaded = _loaded(policy, size) if policy is not None else None
        layout = loaded.layout if loaded is not None else lay_out(Policy({}), size)
        name = name or f"node{len(self.nodes) + 1}"
        rules = rules or PilotRules()
        facts = NodeFacts.of(name, size, layout, isolation=rules.isolation)
        ads = SlotAds(loaded.policy, facts) if loaded is not None else BuiltInAds(facts)
        booted = self.clock() - timedelta(days=1)
        now = node_time(self.clock, booted)
        slots = NodeSlots(layout, ads, now, after.claim_ends if after is not None else {})
        machine = PilotMachine(f"pilot-{name}", slots, rules, Lifetime(), now)
        described = LinkFacts(name, size, isolation=rules.isolation)
        server = InProcessServer(self.grid, self.grid.start_pilot(queue), described)
        node = VirtualNode(name, self.clock, server, slots, machine, booted)
        self.nodes.append(node)
        node.start()
        self.settle()
        return node

    def submit(
        self,
        run_s: float = 60.0,
        *,
        term_s: float = 0.0,
        user: Identity | None = None,
        expression: str | None = None,
        policy: JobPolicy | None = None,
        **fields: Any,
    ) -> int:
        """Submit a job that needs `run_s` of run time; returns its id."""
        if policy is not None:
            fields["policy"] = policy
        arguments = f"{run_s:g} {term_s:g}"
        (job_id,) = self.grid.submit(
            user or a_user(), arguments=arguments, requirements_expression=expression, **fields
        )
        self.settle()
        return job_id

    def drain(self, node: VirtualNode, *, evict: bool = False) -> None:
        """Drain a node's pilot, as an operator."""
        assert isinstance(node.server, InProcessServer), "this node has another server"
        self.grid.drain(node.server.pilot, evict=evict)
        self.settle()

    def job(self, job_id: int) -> JobRecord:
        return self.grid.job(job_id)

    def states(self, *job_ids: int) -> list[str]:
        return [self.job(job_id).state.value for job_id in job_ids]

    def place(self, job_id: int) -> str:
        """Return node and slot of a running job, such as "node1/slot3"; "" = it does not run."""
        places = [
            f"{node.name}/{slot}" for node in self.nodes for slot, each in node.running().items() if each == job_id
        ]
        return places[0] if places else ""

    # Time -------------------------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Deliver all notifications that need no time."""
        while self._has_news or self._has_parent_events:
            if self._has_parent_events:
                self._has_parent_events = False
                self.grid.advance()
            self._has_news = False
            for node in self.nodes:
                node.look()

    def pass_time(self, seconds: float) -> None:
        """Let time pass, with all events on the way."""
        self._pass_until(self.clock() + timedelta(seconds=seconds), lambda: False)

    def until(self, happened: Callable[[], bool], within_s: float = 3600.0) -> float:
        """Let time pass until `happened` returns True, at most `within_s`; returns the seconds."""
        start = self.clock()
        self._pass_until(start + timedelta(seconds=within_s), happened)
        assert happened(), f"timeout after {within_s:g} s"
        return (self.clock() - start).total_seconds()

    def finished(self, *job_ids: int) -> bool:
        """Return whether all these jobs are DONE."""
        return all(job.state is JobState.DONE for job in self.grid.jobs(job_ids).values())

    def _pass_until(self, end: datetime, happened: Callable[[], bool]) -> None:
        self.settle()
        steps = Counter[datetime]()
        while not happened():
            at = min(self._times())
            steps[at] += 1
            assert steps[at] < MAX_STEPS_AT_ONE_TIME, f"the clock makes no progress at {at}"
            if at > end:
                self.clock.advance(end - self.clock())
                return
            self.clock.advance(max(timedelta(0), at - self.clock()))
            if at >= self._duties:
                self._run_maintenance()
            for node in self.nodes:
                if (due := node.due()) is not None and due <= self.clock():
                    node.advance()
            self.settle()

    def _times(self) -> Iterable[datetime]:
        yield self._duties
        yield from (due for node in self.nodes if (due := node.due()) is not None)

    def _run_maintenance(self) -> None:
        self._duties = self.clock() + self._duties_interval
        self.grid.pass_time(seconds=0)
        self.grid.evaluate_changed()
        self.grid.evaluate_watched()


def _loaded(policy: Path, size: Amounts) -> Loaded:
    """Load a policy for nodes of a size, each text only once: a child process parses it, which takes time."""
    key = (policy.read_text(), size)
    if key not in _LOADED:
        _LOADED[key] = load_policy(policy, size)
    return _LOADED[key]
