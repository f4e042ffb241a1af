"""Submission: descriptions go through the optimizer chain and become jobs, all of them or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from pilotage.errors import InvalidJobError, PermissionDeniedError, Violation
from pilotage.job_description import JobDescription
from pilotage.requirements import Requirements, pool_id
from pilotage_server.core.accounting import Account
from pilotage_server.core.identity import Identity
from pilotage_server.core.optimizers import Candidate, Rejection, Surroundings, run_chain
from pilotage_server.operations.new_jobs import AcceptedJob, record_new_jobs
from pilotage_server.operations.placing import Placer
from pilotage_server.operations.stamping import Stamper
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.files import Holder, sizes_of


@dataclass(frozen=True, slots=True)
class Submitted:
    """The ids of the new jobs, descriptions in order, and what their owner should know; no ids = only tried."""

    job_ids: tuple[int, ...]
    warnings: tuple[str, ...]


def submit_jobs(
    unit: Unit,
    world: World,
    identity: Identity,
    descriptions: Sequence[JobDescription],
    group: str = "",
    *,
    validate_only: bool = False,
) -> Submitted:
    """Take a batch whole or refuse it whole; owner and VO are the caller's, whatever a description says.

    Raises
    ------
    InvalidJobError
        With every fault; `where` is a path such as `descriptions[3].requirements.Memory`.
    PermissionDeniedError
        The caller is not in the group.
    """
    chosen = group_of(identity, group)
    _check_counts(descriptions, world)
    candidates = optimized(unit, world, Account(identity.vo, chosen, identity.owner), descriptions)
    warnings = _warnings(candidates, world)
    if validate_only:
        return Submitted((), warnings)
    placer = Placer(unit, world)
    accepted = [_accepted(placer, identity, chosen, candidate) for candidate in candidates]
    return Submitted(record_new_jobs(unit, world, accepted), warnings)


def group_of(identity: Identity, group: str) -> str:
    """Return the group to submit under: the one asked for, else the caller's first ("" where he has none)."""
    if group and group not in identity.groups:
        groups = ", ".join(identity.groups) or "none"
        raise PermissionDeniedError(f"{identity.owner} is not in group {group}; groups: {groups}")
    return group or next(iter(identity.groups), "")


def optimized(
    unit: Unit, world: World, owner: Account, descriptions: Sequence[JobDescription], where: str = "descriptions[{}]."
) -> list[Candidate]:
    """Return the descriptions after the optimizer chain, with what the submit policy derives for jobs of `owner`.

    Raises
    ------
    InvalidJobError
        With every fault of every description; `where` leads the paths, filled in with the place in the batch.
    """
    checksums = {file.checksum for one in descriptions for file in one.input_files if file.checksum is not None}
    stored = sizes_of(unit.session, Holder(owner.vo, owner.owner), checksums) if checksums else {}
    limits = world.rules.jobs
    owned = world.rules.submission.names
    surroundings = Surroundings(limits, world.tree.declarations, stored, owned, world.published)
    stamper = Stamper(world.rules.submission, owner, unit.now)
    candidates: list[Candidate] = []
    violations: list[Violation] = []
    for index, description in enumerate(descriptions):
        candidate = Candidate(owner.vo, stamper.without_wishes(description))
        outcome = run_chain(limits.optimizers, candidate, surroundings)
        if isinstance(outcome, Rejection):
            path = where.format(index)
            violations += [Violation(path + fault.where, fault.why) for fault in outcome.violations]
        else:
            candidates.append(stamper.stamped(outcome, description))
    if violations:
        raise InvalidJobError(*violations)
    return candidates


def _check_counts(descriptions: Sequence[JobDescription], world: World) -> None:
    limits = world.rules.jobs
    if not descriptions:
        raise InvalidJobError(Violation("descriptions", "there is no job to submit"))
    if len(descriptions) > limits.max_descriptions_per_call:
        why = f"{len(descriptions)} descriptions are more than the {limits.max_descriptions_per_call} of one call"
        raise InvalidJobError(Violation("descriptions", why))
    jobs = sum(max(1, description.count or 1) for description in descriptions)
    if jobs > limits.max_jobs_per_call:
        why = f"{jobs} jobs are more than the {limits.max_jobs_per_call} of one call"
        raise InvalidJobError(Violation("descriptions", why))


def _accepted(placer: Placer, identity: Identity, group: str, candidate: Candidate) -> AcceptedJob:
    description = candidate.description
    placement = placer.place(Account(identity.vo, group, identity.owner), description)
    return AcceptedJob(identity.owner, identity.vo, group, description, placement, candidate.hold_reason)


def _warnings(candidates: Sequence[Candidate], world: World) -> tuple[str, ...]:
    """Return each warning once, with the jobs that it is about where these are not all."""
    about: dict[str, list[int]] = {}
    for index, candidate in enumerate(candidates):
        for warning in candidate_warnings(candidate, world):
            about.setdefault(warning, []).append(index)
    total = len(candidates)
    return tuple(warning + _of_which(indexes, total) for warning, indexes in about.items())


def candidate_warnings(candidate: Candidate, world: World) -> Iterator[str]:
    """Yield what the owner of one job should know."""
    yield from candidate.warnings
    if candidate.hold_reason:
        yield f"held: {candidate.hold_reason}"
    if candidate.requirements is not None and not _fits_somewhere(candidate.requirements, world):
        tree = f"version {world.tree.version} of the resource tree" if world.tree.version else "no resource tree yet"
        yield f"no queue offers what the requirements ask ({tree}); the job waits until one does"


def _fits_somewhere(requirements: Requirements, world: World) -> bool:
    with world.lock:
        known = world.mappings.queues(pool_id(requirements))
    return bool(known) or bool(world.tree.mapper.queues_of(requirements))


def _of_which(indexes: Iterable[int], total: int) -> str:
    places = sorted(set(indexes))
    if len(places) == total:
        return ""
    more = f" and {len(places) - 1} more" if len(places) > 1 else ""
    return f" (descriptions[{places[0]}]{more})"
