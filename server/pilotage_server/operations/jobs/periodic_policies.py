"""Periodic policies of jobs: evaluated without locks, applied after a second evaluation under locks."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from pilotage.job_description import JobDescription
from pilotage_server.core.classads.evaluation import FoldedAd
from pilotage_server.core.jobs.attributes import has_macro
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.periodic_policies import UNDER_POLICY, PeriodicPolicyAction
from pilotage_server.core.jobs.record import JobRecord, PolicyWatch
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.core.jobs.usage import AttemptUsage
from pilotage_server.core.queueing.job_ads import described_ad, full_job_ad, present_ad
from pilotage_server.operations.attempts.transitions import Transition, apply_transitions
from pilotage_server.operations.jobs.changes import decided_changes
from pilotage_server.operations.queueing.placement import Placer, lock_placement
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage import retention
from pilotage_server.storage.attempts import load_usages
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.leases import lock_jobs
from pilotage_server.storage.submission.templates import load_descriptions

ACTOR = "server"

MAX_AT_ONCE = 1000
"""Jobs of a submission that are evaluated before they can be matched; the others follow within moments."""


@dataclass(frozen=True, slots=True)
class PolicyScan:
    """The result of an evaluation: `due` = ids of jobs with a decision.

    `position` = where the next evaluation of the pass continues, None = the pass is over.
    """

    jobs: int
    due: tuple[int, ...]
    position: retention.WatchPosition | None = None


def scan_changed(transaction: Transaction, state: ServerState, most: int) -> PolicyScan:
    """Evaluate the next changed jobs."""
    jobs = load_jobs(transaction.session, state.take_policy_checks(transaction.now, most)).values()
    return PolicyScan(len(jobs), tuple(_decisions(transaction, state, jobs, _descriptions(transaction, jobs))))


def scan_next(transaction: Transaction, state: ServerState, place: retention.WatchPosition, most: int) -> PolicyScan:
    """Evaluate the next jobs of a pass over all watched jobs, at most `most`."""
    jobs = retention.next_watched(transaction.session, place, most)
    if not jobs:
        return PolicyScan(0, ())
    due = tuple(_decisions(transaction, state, jobs, _descriptions(transaction, jobs)))
    return PolicyScan(len(jobs), due, (jobs[-1].watch.value, jobs[-1].id))


def apply_to_new_jobs(transaction: Transaction, state: ServerState, job_ids: Sequence[int]) -> None:
    """Apply the policies of new jobs at once, so that none starts first."""
    jobs = load_jobs(transaction.session, job_ids[:MAX_AT_ONCE]).values()
    due = tuple(_decisions(transaction, state, jobs, _descriptions(transaction, jobs)))
    if due:
        apply_policies(transaction, state, due)


def apply_policies(transaction: Transaction, state: ServerState, job_ids: Sequence[int]) -> tuple[JobRecord, ...]:
    """Apply the present decisions of the policies of these jobs; return the jobs that have changed."""
    lock_placement(transaction)
    lock_jobs(transaction.session, job_ids, rivals=transaction.is_retry)
    jobs = load_jobs(transaction.session, job_ids)
    descriptions = _descriptions(transaction, jobs.values())
    decisions = _decisions(transaction, state, jobs.values(), descriptions)
    placer = Placer(transaction, state)
    transitions = [
        Transition(jobs[job_id], action.cause, ACTOR, action.reason, changes)
        for job_id, action in decisions.items()
        if (changes := _changes(placer, jobs[job_id], action, descriptions)) is not None
    ]
    moved = tuple(record for record in apply_transitions(transaction, state, transitions) if record is not None)
    next_time = transaction.now + state.rules.policies.interval
    transaction.after_commit(lambda: state.defer_policy_checks([record.id for record in moved], next_time))
    return moved


def watch_all(transaction: Transaction, state: ServerState) -> int:
    """Put every live job under the operators' policies; return for how many jobs they are new."""
    least = state.policy_evaluator.system_watch
    return retention.watch_all(transaction.session, least) if least > PolicyWatch.NEVER else 0


def _decisions(
    transaction: Transaction,
    state: ServerState,
    jobs: Collection[JobRecord],
    descriptions: Mapping[int, JobDescription],
) -> dict[int, PeriodicPolicyAction]:
    decisions: dict[int, PeriodicPolicyAction] = {}
    evaluator = state.policy_evaluator
    reading = {id_ for id_, description in descriptions.items() if evaluator.reads_usage(description)}
    usages = load_usages(transaction.session, [job for job in jobs if job.template_id in reading], transaction.now)
    ads = _Ads(transaction.now, usages)
    for job in jobs:
        description = descriptions.get(job.template_id)
        if description is None or job.state not in UNDER_POLICY:
            continue  # edited or removed since it was loaded; it will be evaluated again
        action = evaluator.action(job, description, ads.of(job, description), transaction.now)
        if action is not None:
            decisions[job.id] = action
    return decisions


class _Ads:
    """The ads of the jobs of one evaluation. Attributes of a description are converted once."""

    def __init__(self, now: datetime, usages: Mapping[int, AttemptUsage]) -> None:
        self._now = now
        self._usages = usages
        self._shared: dict[int, FoldedAd | None] = {}

    def of(self, job: JobRecord, description: JobDescription) -> FoldedAd:
        if job.template_id not in self._shared:
            values = described_ad(job, description)
            self._shared[job.template_id] = None if any(map(has_macro, values.values())) else FoldedAd(values)
        shared = self._shared[job.template_id]
        usage = self._usages[job.id].attributes() if job.id in self._usages else {}
        if shared is None:
            return FoldedAd(full_job_ad(job, description, self._now) | usage)
        return FoldedAd(present_ad(job, self._now) | usage, shared)


def _descriptions(transaction: Transaction, jobs: Iterable[JobRecord]) -> dict[int, JobDescription]:
    return load_descriptions(transaction.session, {job.template_id for job in jobs})


def _changes(
    placer: Placer, job: JobRecord, action: PeriodicPolicyAction, descriptions: Mapping[int, JobDescription]
) -> Mapping[str, Any] | None:
    """Return the changes of the job's record beside its state; None = the decision cannot be applied."""
    match action.cause:
        case JobCause.HELD:
            return {"hold_code": int(action.code), "hold_subcode": action.subcode}
        case JobCause.RELEASED:
            placed = decided_changes(placer, job, JobChange.RELEASE, descriptions[job.template_id])
            return None if isinstance(placed, str) else placed
        case _:
            return {}
