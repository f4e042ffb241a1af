"""Dependencies: what a submission waits for, which jobs may run, and the path to the root cause of a blocked one.

Rules
-----
A submission with dependencies locks its existing parents, so that each of them either counts as it is now or records
its next event. `advance` examines the recorded events soon after: a transaction of its own, because it locks what
decides where jobs belong before it locks jobs, and reports do not. One transaction at a time examines events.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlmodel import Session

from pilotage.errors import InvalidInputError, InvalidRequirementsError, StateConflictError, Violation
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.selections import JobSelection
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.changes import may_change
from pilotage_server.core.jobs.dependencies import Blocker, blocked_reason, faults_of
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import FINAL, JobCause, JobState
from pilotage_server.operations.attempts.transitions import Transition, apply_transitions
from pilotage_server.operations.queueing.placement import Placer, lock_placement
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import change_locked, load_jobs
from pilotage_server.storage.leases import lock_jobs
from pilotage_server.storage.submission import dependencies as stored
from pilotage_server.storage.submission.dependencies import MET, Block, FoundParents, Parents, Source, Watch
from pilotage_server.storage.submission.parts import clusters_in_parts, has_any_parts
from pilotage_server.storage.submission.templates import load_descriptions

ACTOR = "server"
EVENTS_AT_ONCE = 1000
MET_AT_ONCE = 1000
FREED_AT_ONCE = 1000
"""The most events, met dependencies of each kind, and freed jobs of one transaction: others wait for it."""


def find_parents(
    transaction: Transaction, identity: Identity, dependencies: Sequence[Dependency]
) -> dict[JobSelection, Parents]:
    """Return the existing parents of a submission.

    Raises
    ------
    InvalidInputError
        With all faults: parents that the caller cannot see, cycles, too many dependencies.
    StateConflictError
        Not all jobs of a parent are stored yet.
    """
    faults = faults_of(dependencies)
    wanted = {parent for each in dependencies for parent in each.parents}
    found = stored.find_parents(transaction.session, wanted) if wanted and not faults else {}
    visible = {
        name: each.parents for name, each in found.items() if may_change(identity, each.owner, each.vo)
    }  # others count as missing
    for index, each in enumerate(dependencies if not faults else ()):
        faults += (_missing(index, parent) for parent in each.parents if parent not in visible)
    if faults:
        raise InvalidInputError(*faults)
    _check_stored(transaction, {name: found[name] for name, parents in visible.items() if not parents.is_single})
    return visible


def _check_stored(transaction: Transaction, several: Mapping[JobSelection, FoundParents]) -> None:
    """Raise StateConflictError unless all jobs of these clusters and workflows are stored."""
    clusters = clusters_in_parts(transaction.session, {(each.vo, each.owner) for each in several.values()})
    for name in several:
        if has_any_parts(transaction.session, name.id) if name.workflow else name.id in clusters:
            what = name if name.workflow else f"cluster {name.id}"
            raise StateConflictError(f"{what} is still being stored; repeat the call in a moment")


def _missing(index: int, parent: JobSelection) -> Violation:
    return Violation(f"dependencies[{index}]", f"there is no job or cluster {parent}")


ParentKey = tuple[DependencyKind, Parents]
InnerKey = tuple[DependencyKind, int, int]
"""What is asked of the jobs of descriptions, and the first and the last of these."""


@dataclass(slots=True)
class DependencyPlan:
    """The unmet dependencies of a submission, before its jobs have ids. Descriptions are named by their index.

    `parents` = the number of parents of each description. `watched` = existing parents and what to watch of them,
    `waiting` the descriptions that wait for them, `inner` those that wait for other descriptions.
    """

    parents: dict[int, int] = field(default_factory=dict)
    watched: dict[ParentKey, Watch] = field(default_factory=dict)
    waiting: dict[ParentKey, list[int]] = field(default_factory=dict)
    inner: dict[InnerKey, list[int]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def blocked(self) -> frozenset[int]:
        """The descriptions with unmet dependencies."""
        return frozenset[int]().union(*self.waiting.values(), *self.inner.values())

    @property
    def is_futile(self) -> bool:
        """Whether some of its dependencies cannot be met as things stand."""
        return any(watch.futile for watch in self.watched.values())


def plan_dependencies(
    transaction: Transaction, dependencies: Sequence[Dependency], found: Mapping[JobSelection, Parents]
) -> DependencyPlan:
    """Return the dependencies that are unmet now, and lock the existing parents that are to be watched.

    Raises InvalidInputError for parents that retention has removed since they were found.
    """
    plan = DependencyPlan()
    asked: dict[ParentKey, dict[int, None]] = {}
    inner: dict[InnerKey, dict[int, None]] = {}
    for each in dependencies:
        for parent in each.parents:
            asked.setdefault((each.kind, found[parent]), {})[each.description] = None
        for first, last in (*zip(each.descriptions, each.descriptions, strict=True), *each.ranges):
            inner.setdefault((each.kind, first, last), {})[each.description] = None
    for children in (*asked.values(), *inner.values()):
        for child in children:
            plan.parents[child] = plan.parents.get(child, 0) + 1
    sources = [Source(number, 0, kind, parents) for number, (kind, parents) in enumerate(asked)]
    watches: dict[int, Watch] = {}
    # A parent may end before it is locked. Another one is locked after it then, which may meet a deadlock: the
    # transaction is repeated.
    while left := [each for each in sources if each.id not in watches]:
        locked = set(stored.candidates(transaction.session, left).values())
        lock_jobs(transaction.session, locked)
        watches |= stored.next_watched(transaction.session, left, locked)
    for key, source in zip(asked, sources, strict=True):
        if watches[source.id] != MET:
            plan.watched[key] = watches[source.id]
            plan.waiting[key] = list(asked[key])
    plan.inner = {key: list(children) for key, children in inner.items()}
    jobs = load_jobs(transaction.session, [watch.job for watch in plan.watched.values()])
    gone = {key for key, watch in plan.watched.items() if watch.job not in jobs}
    if gone:
        asked_of = ((index, each.kind, parent) for index, each in enumerate(dependencies) for parent in each.parents)
        raise InvalidInputError(
            *(_missing(index, name) for index, kind, name in asked_of if (kind, found[name]) in gone)
        )
    plan.warnings = _warnings(plan, jobs)
    return plan


def _warnings(plan: DependencyPlan, jobs: Mapping[int, JobRecord]) -> list[str]:
    """Return which parents have ended already, but not as it is asked of them."""
    warnings: list[str] = []
    for (kind, _), watch in plan.watched.items():
        job = jobs[watch.job]
        if job.state in FINAL:
            what = f"its children with {kind} stay blocked until it is rescheduled and ends well"
            warnings.append(f"parent {job.id} is {job.state}: {what}")
    return warnings


def insert_plan(transaction: Transaction, plan: DependencyPlan, ids_by_index: Mapping[int, Sequence[int]]) -> None:
    """Store the dependencies of a submission, given the ids of the jobs of each description."""
    submission = min(ids[0] for ids in ids_by_index.values())
    sources = [Source(0, submission, kind, parents, *watch) for (kind, parents), watch in plan.watched.items()]
    for kind, first, last in plan.inner:
        parents = Parents(ids_by_index[first][0], ids_by_index[last][-1])
        sources.append(Source(0, submission, kind, parents, parents.last))
    source_ids = stored.insert_sources(transaction.session, sources)
    children = [*plan.waiting.values(), *plan.inner.values()]
    edges = [
        (source_id, ids_by_index[child][0])
        for source_id, same in zip(source_ids, children, strict=True)
        for child in same
    ]
    unmet: dict[int, int] = {}
    for _, block in edges:
        unmet[block] = unmet.get(block, 0) + 1
    blocks = [
        Block(ids[0], ids[-1], submission, plan.parents[index], unmet[ids[0]])
        for index, ids in ids_by_index.items()
        if ids[0] in unmet
    ]
    stored.insert_blocks(transaction.session, blocks, edges)
    stored.mark_watched(transaction.session, [watch.job for watch in plan.watched.values()])


def advance(transaction: Transaction, state: ServerState) -> bool:
    """Let jobs wait whose dependencies are met, and examine events of parents; return whether more is to be done.

    Jobs whose dependencies turn out to be met wait after the next transaction: all jobs are locked at once, by id.
    """
    lock_placement(transaction)
    session = transaction.session
    stored.lock_examination(session)
    free, more = stored.next_free(session, FREED_AT_ONCE)
    happened = stored.take_parent_events(session, EVENTS_AT_ONCE)
    sources = stored.lock_sources_of(session, happened)
    parents = set(stored.candidates(session, sources).values())
    lock_jobs(session, parents.union(free))
    if free:
        _unblock(transaction, state, free)
    follows = _examine(session, [each for each in sources if each.kind is not DependencyKind.AFTER_SETTLED], parents)
    # Later: a child that has just become free, or can run again, is not settled.
    follows |= _examine(session, [each for each in sources if each.kind is DependencyKind.AFTER_SETTLED], parents)
    return more or follows or len(happened) == EVENTS_AT_ONCE


def _examine(session: Session, sources: Sequence[Source], locked: Collection[int]) -> bool:
    """Update sources by the present states of their locked parents; return whether another transaction must follow."""
    watches = stored.next_watched(session, sources, locked)
    found = [(each, watches[each.id]) for each in sources if each.id in watches]
    turned = [each.id for each, watch in found if watch.futile is not each.futile]
    follows = stored.insert_events_of_children(session, turned)
    met = {each.id for each, watch in found if watch == MET}
    blocks, is_left = stored.meet(session, sorted(met), MET_AT_ONCE)
    if all(each.kind is DependencyKind.AFTER_SETTLED for each in sources):  # else none is
        follows |= stored.insert_events_of_futile(session, blocks)  # their jobs may be settled now
    moved = {each.id: watch for each, watch in found if watch not in (MET, (each.watched, each.futile))}
    stored.move_watches(session, moved)
    again = {each.watched for each in sources if each.id not in watches or (is_left and each.id in met)}
    stored.insert_parent_events(session, sorted(again))
    return follows or bool(met or again)


def _unblock(transaction: Transaction, state: ServerState, job_ids: Sequence[int]) -> None:
    jobs = [job for job in load_jobs(transaction.session, job_ids).values() if job.blocked_by]
    blocked = [job for job in jobs if job.state is JobState.BLOCKED]
    others = [job.id for job in jobs if job.state is not JobState.BLOCKED]  # held or removed meanwhile
    change_locked(transaction.session, others, {"blocked_by": [0] * len(others)})
    descriptions = load_descriptions(transaction.session, {job.template_id for job in blocked})
    placer = Placer(transaction, state)
    transitions: list[Transition] = []
    for job in blocked:
        changes: dict[str, Any] = {"blocked_by": 0}
        try:
            changes["pool_id"] = placer.pool_of(job.vo, descriptions[job.template_id])
        except InvalidRequirementsError as error:
            # A new tree declares a parameter in another way. It holds the jobs that wait, so this one is held as well.
            why = f"its requirements have no meaning in tree version {state.tree.version}: {error}"
            transitions.append(Transition(job, JobCause.HELD, ACTOR, why, changes))
        else:
            transitions.append(Transition(job, JobCause.UNBLOCKED, ACTOR, "its dependencies are met", changes))
    apply_transitions(transaction, state, transitions)


def with_reasons(transaction: Transaction, jobs: Iterable[JobRecord]) -> tuple[JobRecord, ...]:
    """Return the jobs with the present reasons of those that are blocked."""
    shown = tuple(jobs)
    blocks = {job.blocked_by for job in shown if job.state is JobState.BLOCKED}
    if not blocks:
        return shown
    reasons = {id_: blocked_reason(status) for id_, status in stored.load_statuses(transaction.session, blocks).items()}
    return tuple(
        job._replace(reason=reasons.get(job.blocked_by, "")) if job.state is JobState.BLOCKED else job for job in shown
    )


def path_to_root_cause(transaction: Transaction, job: JobRecord) -> tuple[Blocker, ...]:
    """Return the parents on the shortest path from a blocked job to what blocks it for good, else to what delays it.

    That is a parent that has ended badly, else one that is held, else the first one that is neither.
    """
    seen: set[int] = set()
    level: dict[int, tuple[Blocker, ...]] = {job.blocked_by: ()} if job.state is JobState.BLOCKED else {}
    held: tuple[Blocker, ...] = ()
    running: tuple[Blocker, ...] = ()
    while level:
        seen |= level.keys()
        unmet = stored.load_unmet(transaction.session, level)
        parents = load_jobs(transaction.session, {watched for _, _, watched in unmet})
        following: dict[int, tuple[Blocker, ...]] = {}
        for block, kind, watched in unmet:
            if watched not in parents:
                continue  # it is not stored yet
            path = (*level[block], Blocker(kind, parents[watched]))
            parent = parents[watched]
            if parent.state in FINAL:
                return path
            if parent.state is JobState.BLOCKED:
                following.setdefault(parent.blocked_by, path)
            elif parent.state is JobState.HELD:
                held = held or path
            else:
                running = running or path
        level = {block: path for block, path in following.items() if block not in seen}
    return held or running
