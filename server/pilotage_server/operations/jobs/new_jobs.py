"""New jobs: templates, rows and first events of accepted descriptions.

Rules
-----
A transaction stores at most PART_JOBS jobs, because other callers wait for it. The first transaction accepts the whole
submission: it stores all templates, reserves all ids, stores the first part of the jobs, and records what is left. Each
of the following transactions stores one part and removes it from this record. So whatever fails after the first
commit, the submission is completed: by its call, by a repetition of the call, or by a periodic task of any server.

The pool and the task queue of a part are found when it is stored: the tree and the significant attributes may have
changed since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate, chain
from typing import ClassVar

from pilotage.errors import InvalidRequirementsError
from pilotage.job_description import InputFile, JobDescription
from pilotage.telemetry import current_trace
from pilotage.values.accounts import Account
from pilotage_server.core.jobs.descriptions import OVERRIDE_ATTRIBUTES, DescriptionGroup, canonical_texts
from pilotage_server.core.jobs.exit_policy import exit_check
from pilotage_server.core.jobs.record import FeedEvent
from pilotage_server.core.jobs.states import HoldCode, JobCause, JobState, next_state
from pilotage_server.core.queueing.waiting_jobs import QueueHead
from pilotage_server.core.races.races import URGENT, RaceSet, is_flagged
from pilotage_server.operations.attempts.events import publish_new_jobs
from pilotage_server.operations.jobs.dependencies import DependencyPlan, insert_plan
from pilotage_server.operations.jobs.periodic_policies import apply_to_new_jobs
from pilotage_server.operations.queueing.arrivals import add_waiting_group
from pilotage_server.operations.queueing.placement import Placement, Placer, lock_placement
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import NewJobs, insert_jobs, take_ids
from pilotage_server.storage.races import insert_set
from pilotage_server.storage.submission.dependencies import (
    has_sources,
    lock_examination,
    mark_new_jobs,
    repeat_parent_events,
)
from pilotage_server.storage.submission.parts import JobBlock, cut_into_parts, has_parts, insert_parts, take_part
from pilotage_server.storage.submission.templates import (
    NewTemplate,
    insert_templates,
    load_description,
    load_descriptions,
)

PART_JOBS = 1000
"""The most new jobs of one transaction; it takes about 12 ms of a processor."""


@dataclass(frozen=True, slots=True)
class AcceptedJobs:
    """A group of accepted descriptions, each for a job or an array, and their task queue.

    `hold_reason` "" = they wait; else they are held. `repeatable` = race copies of them are allowed. `blocked` = they
    have unmet dependencies.
    """

    descriptions: DescriptionGroup
    placement: Placement
    hold_reason: str = ""
    repeatable: bool = False
    blocked: bool = False

    @property
    def is_urgent(self) -> bool:
        """Whether the description marks the jobs as urgent."""
        return is_flagged(self.descriptions.model, URGENT)

    def split(self, blocked: frozenset[int]) -> Iterator[AcceptedJobs]:
        """Yield those of the descriptions that are blocked, given by their indexes, and the others."""
        for wanted in (True, False):
            own = [each for each in self.descriptions.overrides if (each.submission_index in blocked) is wanted]
            if own:
                model = replace(self.descriptions.model, arguments=own[0].arguments, name=own[0].name)
                yield replace(self, descriptions=DescriptionGroup(model, own), blocked=wanted)


def record_new_jobs(
    transaction: Transaction,
    state: ServerState,
    account: Account,
    accepted: Sequence[AcceptedJobs],
    plan: DependencyPlan | None = None,
) -> range:
    """Store the jobs of a submission and return their ids in the order of descriptions and array indexes.

    `plan` = the unmet dependencies of the blocked ones; None = there are none. The bound trace is stored as
    that of the submission.

    Of more than PART_JOBS jobs, the first ones are stored; `store_part` stores the others.
    """
    ids = take_ids(transaction.session, sum(each.descriptions.job_count for each in accepted))
    ids_by_index = _ids_by_index(ids, accepted)
    clusters = _clusters(accepted, ids_by_index)
    templates = _templates(transaction, account, accepted)
    sets = _race_sets(transaction, account, accepted, ids_by_index)
    blocks = [_block(*each, ids_by_index, clusters) for each in zip(accepted, templates, sets, strict=True)]
    first, *others = cut_into_parts(blocks, PART_JOBS)
    new = [
        _new_jobs(state, block, each.descriptions.model, each.placement)
        for block, each in zip(first, accepted, strict=False)
    ]
    watched = _store(transaction, state, account, new)
    if plan is not None:
        insert_plan(transaction, plan, ids_by_index)
        mark_new_jobs(transaction.session, ids[0], list(_ids_of(new)))
        if plan.is_futile and not others:
            _repeat_parent_events(transaction, state, ids[0])
    if watched:
        apply_to_new_jobs(transaction, state, watched)
    insert_parts(transaction.session, account, ids, others)
    return ids


def _ids_of(new: Iterable[NewJobs]) -> Iterator[int]:
    for each in new:
        yield from chain.from_iterable(each.ids)


def _ids_by_index(ids: range, accepted: Sequence[AcceptedJobs]) -> dict[int, range]:
    """Return the ids of the jobs of each description, by its index in the submission, in this order."""
    counts = sorted(
        (overrides.submission_index, each.descriptions.model.count or 1)
        for each in accepted
        for overrides in each.descriptions.overrides
    )
    ends = accumulate(count for _, count in counts)
    return {index: ids[end - count : end] for (index, count), end in zip(counts, ends, strict=True)}


def _clusters(accepted: Sequence[AcceptedJobs], ids_by_index: Mapping[int, range]) -> Callable[[int], tuple[int, int]]:
    """Return the function from the index of a description to its cluster: its id, and the number of its jobs."""
    continuing = {
        overrides.submission_index
        for each in accepted
        for overrides in each.descriptions.overrides
        if overrides.continues_cluster
    }
    if not continuing:  # most submissions: each description is a cluster
        return lambda index: (ids_by_index[index].start, len(ids_by_index[index]))
    cluster_of: dict[int, int] = {}
    ends: dict[int, int] = {}
    cluster = 0
    for index, ids in ids_by_index.items():
        cluster = cluster if index in continuing else ids.start
        cluster_of[index], ends[cluster] = cluster, ids.stop
    return lambda index: (cluster_of[index], ends[cluster_of[index]] - cluster_of[index])


def _templates(transaction: Transaction, account: Account, accepted: Sequence[AcceptedJobs]) -> list[list[int]]:
    """Store the templates and return their ids by group; equal descriptions share one."""
    texts = [list(canonical_texts(each.descriptions)) for each in accepted]
    jobs: Counter[str] = Counter()
    files: dict[str, Sequence[InputFile]] = {}
    for each, same in zip(accepted, texts, strict=True):
        for text in same:
            jobs[text] += each.descriptions.model.count or 1
            files[text] = each.descriptions.model.input_files
    traceparent = str(current_trace() or "")
    new = [NewTemplate(text, files[text], count, traceparent) for text, count in jobs.items()]
    ids = dict(zip(jobs, insert_templates(transaction.session, account, new), strict=True))
    return [[ids[text] for text in same] for same in texts]


def _race_sets(
    transaction: Transaction,
    account: Account,
    accepted: Sequence[AcceptedJobs],
    ids_by_index: Mapping[int, range],
) -> list[int]:
    """Store the sets of repeatable jobs, and return the set of each group; 0 = none.

    A submission has one set, and another one of its urgent jobs. A single job needs a set only if it is urgent.
    """
    sets: list[int] = [0] * len(accepted)
    for urgent in (False, True):
        indexes = [index for index, each in enumerate(accepted) if each.repeatable and each.is_urgent is urgent]
        arrays = [
            ids_by_index[overrides.submission_index]
            for index in indexes
            for overrides in accepted[index].descriptions.overrides
        ]
        jobs = sum(map(len, arrays))
        if jobs > 1 or (jobs and urgent):
            first, last = min(ids[0] for ids in arrays), max(ids[-1] for ids in arrays)
            insert_set(transaction.session, account, RaceSet(first, last, jobs, urgent), transaction.now)
            sets = [first if index in indexes else id_ for index, id_ in enumerate(sets)]
    return sets


def _block(
    accepted: AcceptedJobs,
    template_ids: Sequence[int],
    race_set: int,
    ids_by_index: Mapping[int, range],
    cluster_of: Callable[[int], tuple[int, int]],
) -> JobBlock:
    return JobBlock(
        ids=[ids_by_index[overrides.submission_index] for overrides in accepted.descriptions.overrides],
        clusters=[cluster_of(overrides.submission_index) for overrides in accepted.descriptions.overrides],
        template_ids=template_ids,
        names=[overrides.name for overrides in accepted.descriptions.overrides],
        hold_reason=accepted.hold_reason,
        race_set=race_set,
        blocked_by=[
            ids_by_index[overrides.submission_index][0]
            for overrides in (accepted.descriptions.overrides if accepted.blocked else ())
        ],
    )


def _new_jobs(state: ServerState, block: JobBlock, description: JobDescription, placement: Placement) -> NewJobs:
    code = HoldCode.SUBMITTED_ON_HOLD if block.hold_reason else None
    cause = JobCause.BLOCKED if block.blocked_by else JobCause.ENQUEUED
    return NewJobs(
        ids=block.ids,
        clusters=block.clusters,
        template_ids=block.template_ids,
        names=block.names,
        state=next_state(JobState.RECEIVED, JobCause.HELD if block.hold_reason else cause),
        reason=block.hold_reason,
        priority=description.priority,
        task_queue_id=placement.task_queue_id,
        pool_id=placement.pool_id,
        lease=description.lease,
        watch=state.policy_evaluator.watch(description),
        hold_code=None if code is None else code.value,
        race_set=block.race_set,
        max_starts=description.max_starts,
        exit_check=exit_check(description),
        blocked_by=block.blocked_by,
    )


def _store(transaction: Transaction, state: ServerState, account: Account, new: Sequence[NewJobs]) -> list[int]:
    """Store jobs and publish them to the feed, the policies and the matcher; return those with policies."""
    insert_jobs(transaction.session, account, new, transaction.now)
    watched: list[int] = []
    for each in new:
        ids = list(chain.from_iterable(each.ids))
        publish_new_jobs(transaction, state, _first_event(transaction, account, each), ids)
        if each.watch:
            transaction.after_commit(partial(state.add_policy_checks, ids))
            watched += ids
        if each.state is JobState.WAITING:
            add_waiting_group(transaction, state, each.task_queue_id, QueueHead(each.priority, ids[0]), len(ids))
    return watched


_FIRST_CAUSES = {
    JobState.HELD: JobCause.HELD,
    JobState.BLOCKED: JobCause.BLOCKED,
    JobState.WAITING: JobCause.ENQUEUED,
}


def _first_event(transaction: Transaction, account: Account, stored: NewJobs) -> FeedEvent:
    """Return the event of the first of the jobs; the others get equal ones."""
    return FeedEvent(
        position=0,
        job_id=stored.ids[0][0],
        time=transaction.now,
        from_state=JobState.RECEIVED,
        to_state=stored.state,
        cause=_FIRST_CAUSES[stored.state],
        reason=stored.reason,
        attempt=0,
        actor=account.owner,
    )


@dataclass(frozen=True, slots=True)
class PartStorage:
    """The batch that stores parts of submissions, given by their ids; a group commit has at most one of them.

    Its results tell whether more parts of the submission are due.
    """

    state: ServerState
    most: ClassVar[int] = 1

    def run(self, transaction: Transaction, submissions: Sequence[int]) -> list[bool]:
        """Store the next part of each submission."""
        return [store_part(transaction, self.state, each) for each in submissions]


def store_part(transaction: Transaction, state: ServerState, submission: int) -> bool:
    """Store the next part of a submission and return whether more parts are due."""
    lock_placement(transaction)  # always first
    if has_sources(transaction.session, submission):
        lock_examination(transaction.session)
    part = take_part(transaction.session, submission, transaction.now)
    if part is not None:
        placer = Placer(transaction, state)
        placed = (each for block in part.blocks for each in _placed(transaction, placer, part.account, block))
        new = [replace(each, attempt_floor=part.attempt_floor) for each in placed]
        _store(transaction, state, part.account, new)
        mark_new_jobs(transaction.session, submission, list(_ids_of(new)))
    more = has_parts(transaction.session, submission, transaction.now)
    if part is not None and not more:
        _repeat_parent_events(transaction, state, submission)
    return more


def _repeat_parent_events(transaction: Transaction, state: ServerState, submission: int) -> None:
    if repeat_parent_events(transaction.session, submission):
        transaction.after_commit(state.publish_parent_events)


def _placed(transaction: Transaction, placer: Placer, account: Account, block: JobBlock) -> list[NewJobs]:
    """Return the jobs with their present task queue; they are split where a slot's expression reads the overrides."""
    if not placer.splits_by(OVERRIDE_ATTRIBUTES):
        return [_placed_alike(placer, account, block, load_description(transaction.session, block.template_ids[0]))]
    descriptions = load_descriptions(transaction.session, block.template_ids)
    return [_placed_alike(placer, account, each, descriptions[each.template_ids[0]]) for each in block.split()]


def _placed_alike(placer: Placer, account: Account, block: JobBlock, description: JobDescription) -> NewJobs:
    try:
        placement = placer.place(account, description)
    except InvalidRequirementsError as error:
        # A new tree declares a parameter in another way. It holds the jobs that wait, so these are held as well.
        why = f"its requirements have no meaning in tree version {placer.state.tree.version}: {error}"
        block = replace(block, hold_reason=block.hold_reason or why)
        placement = placer.place(account, replace(description, requirements=None))
    return _new_jobs(placer.state, block, description, placement)
