"""Submission: descriptions pass the optimizer chain and the submit policy and become jobs, all of them or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import accumulate
from operator import itemgetter

from pilotage.classads.evaluation import CURRENT_TIME
from pilotage.classads.library import AdValue
from pilotage.errors import InvalidJobError, PermissionDeniedError, Violation
from pilotage.job_description import JobDescription
from pilotage.resources.requirements import Requirements, pool_id
from pilotage.text import fold
from pilotage.values.accounts import Account
from pilotage.values.dependencies import Dependency
from pilotage.values.jobs import SubmittedJobs
from pilotage.values.notifications import SubmittedSubscription
from pilotage.values.selections import JobSelection
from pilotage_server.core.identity import Holder, Identity
from pilotage_server.core.jobs.attributes import description_attributes
from pilotage_server.core.jobs.descriptions import (
    OVERRIDE_ATTRIBUTES,
    DescriptionGroup,
    Overrides,
    description_references,
    may_see_overrides,
)
from pilotage_server.core.jobs.workflow_graphs import graph_of
from pilotage_server.core.queueing.job_ads import traits_ad
from pilotage_server.core.queueing.task_queue import NO_NAMES, traits_of
from pilotage_server.core.races.races import MAY_BE_REPEATED, is_flagged
from pilotage_server.core.rules import Rules
from pilotage_server.core.submission.offers import too_large_sizes, unknown_sites, unstated_names
from pilotage_server.core.submission.optimizers import OptimizerContext, Rejection, SubmitCandidate, run_chain
from pilotage_server.core.submission.submit_policy import ACCOUNT_REQUEST_NAMES, SubmitPolicy, TransformResult
from pilotage_server.core.submission.validation import are_valid_overrides
from pilotage_server.operations.jobs.dependencies import DependencyPlan, find_parents, plan_dependencies
from pilotage_server.operations.jobs.new_jobs import AcceptedJobs, record_new_jobs
from pilotage_server.operations.jobs.notifications import add_subscriptions, check_subscriptions
from pilotage_server.operations.queueing.placement import Placer, lock_placement
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.submission.dependencies import Parents, lock_examination
from pilotage_server.storage.submission.templates import sizes_of
from pilotage_server.storage.submission.workflows import StoredWorkflow, insert_workflow


@dataclass(frozen=True, slots=True)
class SubmitTransformer:
    """Applies submit transforms to jobs of one account; equal inputs are computed once."""

    policy: SubmitPolicy
    account: Account
    now: datetime
    _derived: dict[str, TransformResult] = field(default_factory=dict)

    def without_account_request(self, description: JobDescription) -> JobDescription:
        """Return the description without the attributes that only the policy reads."""
        return _without(description, ACCOUNT_REQUEST_NAMES & self.policy.input_references.in_my)

    def transform(self, candidate: SubmitCandidate, asked: JobDescription) -> SubmitCandidate:
        """Return the candidate with the policy's results; `asked` is the description with the requested account."""
        cleaned = _without(candidate.description, self.policy.owned_names)
        if not self.policy.transforms:
            return replace(candidate, description=cleaned)
        derived = self._derive(self.policy.inputs(self._ad(cleaned, asked, candidate.requirements)))
        return replace(
            candidate,
            description=replace(cleaned, attributes={**cleaned.attributes, **derived.attributes}),
            warnings=candidate.warnings + derived.warnings,
        )

    def _derive(self, inputs: dict[str, AdValue]) -> TransformResult:
        key = repr(sorted(inputs.items()))
        if key not in self._derived:
            self._derived[key] = self.policy.apply(inputs)
        return self._derived[key]

    def _ad(
        self, description: JobDescription, asked: JobDescription, requirements: Requirements | None
    ) -> dict[str, AdValue]:
        pool = "" if requirements is None else pool_id(requirements)
        traits = traits_of(self.account, pool, description, NO_NAMES)
        requested = {name: value for name, value in asked.attributes.items() if fold(name) in ACCOUNT_REQUEST_NAMES}
        return {
            **traits_ad(traits),
            **description_attributes(description),
            **requested,
            CURRENT_TIME: int(self.now.timestamp()),
        }


def _without(description: JobDescription, names: frozenset[str]) -> JobDescription:
    """Return the description without attributes of these folded names."""
    kept = {name: value for name, value in description.attributes.items() if fold(name) not in names}
    return description if len(kept) == len(description.attributes) else replace(description, attributes=kept)


@dataclass(frozen=True, slots=True)
class CheckedJobs:
    """A submission that is not stored yet: its account, its descriptions after the chain, warnings, and parents."""

    account: Account
    groups: Sequence[OptimizedGroup]
    warnings: tuple[str, ...]
    parents: Mapping[JobSelection, Parents]


def check_jobs(
    transaction: Transaction,
    state: ServerState,
    identity: Identity,
    descriptions: Sequence[DescriptionGroup],
    group: str = "",
    *,
    dependencies: Sequence[Dependency] = (),
    files_follow: bool = False,
) -> CheckedJobs:
    """Return a submission that the server would accept; raises as `submit_jobs` does.

    `files_follow` = its input files need not be uploaded yet.
    """
    account = Account(identity.vo, group_of(identity, group), identity.owner)
    _check_counts(descriptions, state)
    groups = optimize(transaction, state, account, descriptions, files_follow=files_follow)
    parents = find_parents(transaction, identity, dependencies) if dependencies else {}
    return CheckedJobs(account, groups, _warnings(groups, state), parents)


def submit_jobs(
    transaction: Transaction,
    state: ServerState,
    identity: Identity,
    descriptions: Sequence[DescriptionGroup],
    group: str = "",
    *,
    dependencies: Sequence[Dependency] = (),
    workflow: str = "",
) -> SubmittedJobs:
    """Accept or reject a submission as a whole; owner and VO are always the caller's.

    `workflow` = the name of the workflow that the jobs are; "" = they are none.

    Of a long submission only the first jobs are stored; `new_jobs.store_part` stores the others.

    Raises
    ------
    InvalidJobError
        With all faults; `where` is a path such as `descriptions[3].requirements.Memory`.
    PermissionDeniedError
        The caller is not in the group.
    InvalidInputError, StateConflictError
        As `find_parents` raises them for dependencies.
    """
    checked = check_jobs(transaction, state, identity, descriptions, group, dependencies=dependencies)
    account = checked.account
    parents = {name: each.ids for name, each in checked.parents.items()}
    graph = graph_of(descriptions, dependencies, parents) if workflow else None
    if dependencies:
        lock_placement(transaction)  # before the examination of dependencies, and both before jobs are placed
    if checked.parents:
        lock_examination(transaction.session)
    placer = Placer(transaction, state)
    accepted = [each for one in checked.groups for each in _accepted(placer, account, one)]
    plan = plan_dependencies(transaction, dependencies, checked.parents) if dependencies else DependencyPlan()
    blocked = plan.blocked
    if blocked:
        accepted = [part for each in accepted for part in each.split(blocked)]
    ids = record_new_jobs(transaction, state, account, accepted, plan if blocked else None)
    if workflow:
        new = StoredWorkflow(ids, account.owner, account.vo, account.group, workflow, transaction.now)
        insert_workflow(transaction.session, new, graph)
    return SubmittedJobs(tuple(ids), (*checked.warnings, *plan.warnings), ids[0] if workflow else 0)


def subscribe_to_new_jobs(
    transaction: Transaction,
    state: ServerState,
    identity: Identity,
    descriptions: Sequence[DescriptionGroup],
    subscriptions: Sequence[SubmittedSubscription],
    submitted: SubmittedJobs,
) -> SubmittedJobs:
    """Add subscriptions for jobs that this transaction has submitted, and their warnings to the result.

    A mail without a complete address, and subscriptions above the owner's bound, are left out with a warning: the jobs
    are the same without them. Without new jobs, as in a validation, subscriptions are only checked.
    """
    owner = Holder(identity.vo, identity.owner)
    wanted = [each.wanted for each in subscriptions]
    complete, warnings = check_subscriptions(transaction, state.rules.notifications, owner, wanted)
    if submitted.job_ids:
        # The ids are consecutive, in the order of the descriptions.
        counts = sorted(
            (overrides.submission_index, each.model.count or 1) for each in descriptions for overrides in each.overrides
        )
        ends = list(accumulate((count for _, count in counts), initial=submitted.job_ids[0]))
        ranges = [range(ends[each.first], ends[each.last + 1]) for each in subscriptions]
        new = [(ids, each) for ids, each in zip(ranges, complete, strict=True) if each is not None]
        add_subscriptions(transaction, owner, new)
    return replace(submitted, warnings=(*submitted.warnings, *warnings))


def group_of(identity: Identity, group: str) -> str:
    """Return the requested group, else the caller's first one, else ""; raises PermissionDeniedError."""
    if group and group not in identity.groups:
        groups = ", ".join(identity.groups) or "none"
        raise PermissionDeniedError(f"{identity.owner} is not in group {group}; groups: {groups}")
    return group or next(iter(identity.groups), "")


@dataclass(frozen=True, slots=True)
class OptimizedGroup:
    """The result of the optimizer chain for a group of descriptions."""

    candidate: SubmitCandidate
    overrides: Sequence[Overrides]

    @property
    def descriptions(self) -> DescriptionGroup:
        """The group with the new model."""
        return DescriptionGroup(self.candidate.description, self.overrides)


def optimize(
    transaction: Transaction,
    state: ServerState,
    owner: Account,
    descriptions: Sequence[DescriptionGroup],
    where: str = "descriptions[{}].",
    *,
    files_follow: bool = False,
) -> list[OptimizedGroup]:
    """Return the descriptions after the optimizer chain and the submit policy, for jobs of `owner`.

    `files_follow` = their input files need not be uploaded yet.

    Raises
    ------
    InvalidJobError
        With all faults of all descriptions; `where` begins the paths, filled in with the index in the submission.
    """
    files = (file for each in descriptions for file in each.model.input_files)
    checksums = {file.checksum: file.size for file in files if file.checksum is not None}
    stored: Mapping[str, int] = {}
    if checksums:
        holder = Holder(owner.vo, owner.owner)
        stored = checksums if files_follow else sizes_of(transaction.session, holder, checksums)
    limits = state.rules.jobs
    owned = state.rules.submission.names
    surroundings = OptimizerContext(limits, state.tree.declarations, stored, owned, state.published_attributes)
    transformer = SubmitTransformer(state.rules.submission, owner, transaction.now)
    taken: list[OptimizedGroup] = []
    violations: list[tuple[int, Violation]] = []
    for group in _effective_groups(descriptions, state.rules):
        candidate = SubmitCandidate(owner.vo, transformer.without_account_request(group.model))
        outcome = run_chain(limits.optimizers, candidate, surroundings)
        if isinstance(outcome, Rejection):
            faults = [
                (overrides.submission_index, fault) for overrides in group.overrides for fault in outcome.violations
            ]
            violations += [(index, Violation(where.format(index) + fault.where, fault.why)) for index, fault in faults]
        else:
            taken.append(OptimizedGroup(transformer.transform(outcome, group.model), group.overrides))
    if violations:
        raise InvalidJobError(*(violation for _, violation in sorted(violations, key=itemgetter(0))))
    return taken


def _effective_groups(descriptions: Iterable[DescriptionGroup], rules: Rules) -> Iterator[DescriptionGroup]:
    """Yield the groups; one whose overrides matter to an expression or are invalid is split."""
    policy = rules.submission.input_references
    for group in descriptions:
        reads_overrides = may_see_overrides(policy | description_references(group.model))
        if reads_overrides or not are_valid_overrides(group.overrides, rules.jobs):
            yield from group.split()
        else:
            yield group


def _check_counts(descriptions: Sequence[DescriptionGroup], state: ServerState) -> None:
    limits = state.rules.jobs
    count = sum(len(group.overrides) for group in descriptions)
    if not count:
        raise InvalidJobError(Violation("descriptions", "is empty: there is no job to submit"))
    if count > limits.max_descriptions_per_call:
        why = f"{count} descriptions are more than the {limits.max_descriptions_per_call} of one call"
        raise InvalidJobError(Violation("descriptions", why))
    jobs = sum(max(1, group.job_count) for group in descriptions)
    if jobs > limits.max_jobs_per_call:
        why = f"{jobs} jobs are more than the {limits.max_jobs_per_call} of one call"
        raise InvalidJobError(Violation("descriptions", why))


def _accepted(placer: Placer, account: Account, one: OptimizedGroup) -> Iterator[AcceptedJobs]:
    """Yield the placed groups; they are split where a slot's expression reads the overrides."""
    parts = one.descriptions.split() if placer.splits_by(OVERRIDE_ATTRIBUTES) else (one.descriptions,)
    for group in parts:
        placement = placer.place(account, group.model)
        repeatable = is_flagged(group.model, MAY_BE_REPEATED)
        yield AcceptedJobs(group, placement, one.candidate.hold_reason, repeatable)


def _warnings(optimized_groups: Sequence[OptimizedGroup], state: ServerState) -> tuple[str, ...]:
    """Return each warning once, with the descriptions concerned unless these are all.

    The order is that of the first description concerned, however descriptions are grouped.
    """
    concerned: dict[str, list[int]] = {}
    first: dict[str, tuple[int, int]] = {}
    for one in optimized_groups:
        indexes = [overrides.submission_index for overrides in one.overrides]
        for rank, warning in enumerate(candidate_warnings(one.candidate, state)):
            concerned.setdefault(warning, []).extend(indexes)
            first[warning] = min(first.get(warning, (indexes[0], rank)), (indexes[0], rank))
    total = sum(len(one.overrides) for one in optimized_groups)
    return tuple(warning + _of_which(concerned[warning], total) for warning in sorted(concerned, key=first.__getitem__))


def candidate_warnings(candidate: SubmitCandidate, state: ServerState) -> Iterator[str]:
    """Yield the warnings for the owner of one description."""
    yield from candidate.warnings
    if candidate.hold_reason:
        yield f"held: {candidate.hold_reason}"
    if candidate.requirements is not None and not _fits_somewhere(candidate.requirements, state):
        tree = f"version {state.tree.version} of the resource tree" if state.tree.version else "no resource tree yet"
        yield f"no queue satisfies the requirements ({tree}); the job waits until one does"
        yield from unstated_names(candidate.requirements, state.tree.mapper.stated_names(candidate.vo))
    if candidate.needs is not None:
        yield from unknown_sites(candidate.needs, state.tree.mapper.site_names)
        yield from too_large_sizes(candidate.needs, state.tree.mapper.largest_sizes(candidate.vo))


def _fits_somewhere(requirements: Requirements, state: ServerState) -> bool:
    with state.lock:
        known = state.mappings.queues(pool_id(requirements))
    return bool(known) or bool(state.tree.mapper.queues_of(requirements))


def _of_which(indexes: Iterable[int], total: int) -> str:
    places = sorted(set(indexes))
    if len(places) == total:
        return ""
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f" (descriptions[{places[0]}]{more})"
