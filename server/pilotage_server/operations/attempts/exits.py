"""Applies the exit policies of jobs to the ends of their attempts that pilots and job routers report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from pilotage.errors import InvalidRequirementsError
from pilotage.job_description import JobDescription
from pilotage.resources.eligibility import Eligible, active_bans, full_verdict
from pilotage.resources.requirements import job_needs, read_requirements
from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage.values.attempts import Outcome
from pilotage_server.core.attempts.reports import JobReport, reported_usage
from pilotage_server.core.classads.evaluation import FoldedAd
from pilotage_server.core.jobs.descriptions import description_to_json
from pilotage_server.core.jobs.exit_policy import ExitPolicyEvaluator, after_memory_limit
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.core.queueing.job_ads import full_job_ad
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.pilots import load_slots
from pilotage_server.storage.submission.templates import (
    NewTemplate,
    insert_templates,
    load_descriptions,
    load_traceparent,
    release_templates,
)


class AttemptEnd(NamedTuple):
    """The last step of a job whose attempt has ended: cause, reason, and fields of its record that change with it."""

    cause: JobCause
    reason: str
    changes: Mapping[str, Any]


class ExitPolicies:
    """The exit policies of some jobs, in one transaction; `jobs` are all whose ends may be decided here."""

    def __init__(self, transaction: Transaction, state: ServerState, jobs: Collection[JobRecord]) -> None:
        self._transaction = transaction
        self._state = state
        templates = {job.template_id for job in jobs if job.exit_check}
        self._descriptions = load_descriptions(transaction.session, templates) if templates else {}
        self._evaluator = ExitPolicyEvaluator()
        self._largest_mib: dict[int, int] = {}
        self._left: Counter[int] = Counter()

    def decided(self, job: JobRecord, report: JobReport, end: AttemptEnd) -> AttemptEnd:
        """Return what follows instead of `end`, which holds for jobs without an exit policy."""
        description = self._descriptions[job.template_id]
        if report.outcome is Outcome.EXITED:
            return self._after_exit(job, description, report, end)
        if report.outcome is Outcome.LIMIT_EXCEEDED and report.memory_limit_mib and description.retry_memory:
            return self._after_memory_limit(job, description, report.memory_limit_mib, end)
        return end

    def release_templates(self) -> None:
        """Remove the templates that no job has any more; call it after the jobs are stored."""
        if self._left:
            release_templates(self._transaction.session, self._left)

    def _after_exit(
        self, job: JobRecord, description: JobDescription, report: JobReport, end: AttemptEnd
    ) -> AttemptEnd:
        counted = {"completions": job.completions + 1}
        now = self._transaction.now
        exited = job.changed({**end.changes, **counted})
        ad = FoldedAd(full_job_ad(exited, description, now) | reported_usage(report).attributes())
        cause, reason, changes = self._evaluator.decision(exited, description, ad, end.reason, now)
        kept = counted if cause in {JobCause.RETRIED, JobCause.HELD} else {}
        return AttemptEnd(cause, reason, {**end.changes, **kept, **changes})

    def _after_memory_limit(
        self, job: JobRecord, description: JobDescription, limit_mib: int, end: AttemptEnd
    ) -> AttemptEnd:
        if job.template_id not in self._largest_mib:
            self._largest_mib[job.template_id] = self._largest_memory_mib(job.vo, description)
        largest_mib = self._largest_mib[job.template_id]
        decision, larger = after_memory_limit(job, description, end.reason, limit_mib, largest_mib)
        changes = {**end.changes, **decision.changes}
        if decision.cause is JobCause.RETRIED:
            changes["template_id"] = self._own_template(job, larger)
        return AttemptEnd(decision.cause, decision.reason, changes)

    def _own_template(self, job: JobRecord, description: JobDescription) -> int:
        """Store a description for this job alone and return its template; the job leaves its array's."""
        owner = Account(job.vo, job.group, job.owner)
        text = description_to_json(replace(description, count=None))
        traceparent = load_traceparent(self._transaction.session, job.template_id)
        new = NewTemplate(text, description.input_files, traceparent=traceparent)
        (template_id,) = insert_templates(self._transaction.session, owner, [new])
        self._left[job.template_id] += 1
        self._descriptions[template_id] = description
        return template_id

    def _largest_memory_mib(self, vo: str, description: JobDescription) -> int:
        """Return the most memory that a queue offers such a job; 0 = no queue takes it.

        A queue that states no memory offers that of its largest slot.
        """
        now, tree = self._transaction.now, self._state.tree
        section, needs = description.requirements, replace(job_needs(description), memory_mib=None)
        try:
            requirements = read_requirements(section, vo, tree.declarations) if section else None
        except InvalidRequirementsError:
            return 0
        largest, unstated = 0, set[QueueId]()
        for queue, effective in tree.view_for(vo).items():
            bans = active_bans(self._state.bans, queue, now)
            if not isinstance(full_verdict(requirements, needs, effective, bans, now), Eligible):
                continue
            stated = effective.stated_amount("Memory")
            if stated is None:
                unstated.add(queue)
            else:
                largest = max(largest, int(stated))
        slots = load_slots(self._transaction.session) if unstated else ()
        return max([largest, *(info.slot.amounts.memory_mib for info in slots if info.queue in unstated)])
