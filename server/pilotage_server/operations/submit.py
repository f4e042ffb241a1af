"""Submission: descriptions go through the optimizer chain and become jobs, all of them or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter

from pilotage.errors import InvalidJobError, PermissionDeniedError, Violation
from pilotage.requirements import Requirements, pool_id
from pilotage_server.core.accounting import Account
from pilotage_server.core.alike import OWN_ATTRIBUTES, Alike, Own, may_see_own, references_of
from pilotage_server.core.identity import Identity
from pilotage_server.core.optimizers import Candidate, Rejection, Surroundings, run_chain
from pilotage_server.core.races import MAY_BE_REPEATED, is_flagged
from pilotage_server.core.rules import Rules
from pilotage_server.core.sanity import is_fine
from pilotage_server.operations.new_jobs import AcceptedJobs, record_new_jobs
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
    descriptions: Sequence[Alike],
    group: str = "",
    *,
    validate_only: bool = False,
) -> Submitted:
    """Take a submission whole or refuse it whole; owner and VO are the caller's, whatever a description says.

    Raises
    ------
    InvalidJobError
        With every fault; `where` is a path such as `descriptions[3].requirements.Memory`.
    PermissionDeniedError
        The caller is not in the group.
    """
    account = Account(identity.vo, group_of(identity, group), identity.owner)
    _check_counts(descriptions, world)
    optimized_ones = optimized(unit, world, account, descriptions)
    warnings = _warnings(optimized_ones, world)
    if validate_only:
        return Submitted((), warnings)
    placer = Placer(unit, world)
    accepted = [each for one in optimized_ones for each in _accepted(placer, account, one)]
    return Submitted(record_new_jobs(unit, world, account, accepted), warnings)


def group_of(identity: Identity, group: str) -> str:
    """Return the group to submit under: the one asked for, else the caller's first ("" where he has none)."""
    if group and group not in identity.groups:
        groups = ", ".join(identity.groups) or "none"
        raise PermissionDeniedError(f"{identity.owner} is not in group {group}; groups: {groups}")
    return group or next(iter(identity.groups), "")


@dataclass(frozen=True, slots=True)
class Optimized:
    """What the optimizer chain made of descriptions that are alike."""

    candidate: Candidate
    own: Sequence[Own]

    @property
    def alike(self) -> Alike:
        """The descriptions as they are now."""
        return Alike(self.candidate.description, self.own)


def optimized(
    unit: Unit, world: World, owner: Account, descriptions: Sequence[Alike], where: str = "descriptions[{}]."
) -> list[Optimized]:
    """Return the descriptions after the optimizer chain, with what the submit policy derives for jobs of `owner`.

    Raises
    ------
    InvalidJobError
        With every fault of every description; `where` leads the paths, filled in with the place in the batch.
    """
    checksums = {file.checksum for each in descriptions for file in each.model.input_files if file.checksum is not None}
    stored = sizes_of(unit.session, Holder(owner.vo, owner.owner), checksums) if checksums else {}
    limits = world.rules.jobs
    owned = world.rules.submission.names
    surroundings = Surroundings(limits, world.tree.declarations, stored, owned, world.published)
    stamper = Stamper(world.rules.submission, owner, unit.now)
    taken: list[Optimized] = []
    violations: list[tuple[int, Violation]] = []
    for alike in _told_apart(descriptions, world.rules):
        candidate = Candidate(owner.vo, stamper.without_wishes(alike.model))
        outcome = run_chain(limits.optimizers, candidate, surroundings)
        if isinstance(outcome, Rejection):
            faults = [(own.place, fault) for own in alike.own for fault in outcome.violations]
            violations += [(place, Violation(where.format(place) + fault.where, fault.why)) for place, fault in faults]
        else:
            taken.append(Optimized(stamper.stamped(outcome, alike.model), alike.own))
    if violations:
        raise InvalidJobError(*(violation for _, violation in sorted(violations, key=itemgetter(0))))
    return taken


def _told_apart(descriptions: Iterable[Alike], rules: Rules) -> Iterator[Alike]:
    """Yield the descriptions, those together of which the optimizers and the submit policy see no difference."""
    policy = rules.submission.reads
    for alike in descriptions:
        seen = may_see_own(policy | references_of(alike.model))
        if seen or not all(is_fine(own, rules.jobs) for own in alike.own):
            yield from alike.apart()
        else:
            yield alike


def _check_counts(descriptions: Sequence[Alike], world: World) -> None:
    limits = world.rules.jobs
    count = sum(len(alike.own) for alike in descriptions)
    if not count:
        raise InvalidJobError(Violation("descriptions", "there is no job to submit"))
    if count > limits.max_descriptions_per_call:
        why = f"{count} descriptions are more than the {limits.max_descriptions_per_call} of one call"
        raise InvalidJobError(Violation("descriptions", why))
    jobs = sum(max(1, alike.jobs) for alike in descriptions)
    if jobs > limits.max_jobs_per_call:
        why = f"{jobs} jobs are more than the {limits.max_jobs_per_call} of one call"
        raise InvalidJobError(Violation("descriptions", why))


def _accepted(placer: Placer, account: Account, one: Optimized) -> Iterator[AcceptedJobs]:
    """Yield where the jobs are to wait: where somebody tells jobs apart by what is their own, each by itself."""
    parts = one.alike.apart() if placer.tells_apart(OWN_ATTRIBUTES) else (one.alike,)
    for alike in parts:
        placement = placer.place(account, alike.model)
        repeatable = is_flagged(alike.model, MAY_BE_REPEATED)
        yield AcceptedJobs(alike, placement, one.candidate.hold_reason, repeatable)


def _warnings(taken: Sequence[Optimized], world: World) -> tuple[str, ...]:
    """Return each warning once, with the jobs that it is about where these are not all."""
    about: dict[str, list[int]] = {}
    for one in taken:
        for warning in candidate_warnings(one.candidate, world):
            about.setdefault(warning, []).extend(own.place for own in one.own)
    total = sum(len(one.own) for one in taken)
    return tuple(warning + _of_which(places, total) for warning, places in about.items())


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
