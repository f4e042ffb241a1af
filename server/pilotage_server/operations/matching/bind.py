"""Binds waiting jobs to the free slots of many pilots in few statements.

The matcher reserves jobs for all requests in memory. Then the database is asked for as many jobs of each task queue.
Where it has fewer, another server was quicker, and the requests without a job are matched again. A job for which the
response budget is too small is not bound, and waits again after the transaction, which has locked it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial, reduce
from operator import sub
from typing import NamedTuple, TypeAlias

from pilotage.values.offers import SlotOffer
from pilotage_server.core.accounting.limits import LimitRound
from pilotage_server.core.jobs.record import FeedEvent, JobRecord, next_attempt
from pilotage_server.core.jobs.states import JobCause, JobState
from pilotage_server.core.matching.job_views import SingleJobs
from pilotage_server.core.matching.matcher import NeedsHeads, Reservation
from pilotage_server.core.matching.slot_match import MatchRequest, MissingHeads
from pilotage_server.core.queueing.reach import QueueAccess
from pilotage_server.operations.accounting.limits import count_matched, limits_at_present
from pilotage_server.operations.attempts.events import publish_matches
from pilotage_server.operations.matching.offers import Offers, RequestingPilot, ResponseBudget, head_ads
from pilotage_server.operations.matching.work import Match, MatchTerms
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.attempts import Charge, begin_attempts
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.leases import Binding, PilotLocation, bind
from pilotage_server.storage.submission.templates import SizedDescription
from pilotage_server.storage.task_queues import ClaimableJob, lock_first_waiting, lock_waiting, read_first_waiting


@dataclass(frozen=True, slots=True)
class SlotRequest:
    """A pilot's request: its offers, of which only free slots are used here, and its response budget."""

    pilot: RequestingPilot
    offers: Offers
    budget: ResponseBudget = field(default_factory=ResponseBudget)

    @property
    def free_slots(self) -> tuple[SlotOffer, ...]:
        """The slots that may get jobs."""
        return tuple(slot for slot in self.offers.slots if slot.occupied is None)


class JobClaim(NamedTuple):
    """A bound job: its reservation, the job as it waited, and where it is to run."""

    reservation: Reservation
    job: ClaimableJob
    place: PilotLocation

    @property
    def attempt(self) -> int:
        """The attempt that the match has begun."""
        return next_attempt(self.job.attempt, self.job.attempt_floor)


@dataclass(slots=True)
class _RequestProgress:
    """The state of one request.

    `first` is the whole request, `pending` what is still to be matched; None = nothing. `chosen` counts the
    reservations, with or without a job.
    """

    request: SlotRequest
    place: PilotLocation
    first: MatchRequest | None
    pending: MatchRequest | None
    chosen: int = 0
    claims: list[JobClaim] = field(default_factory=list)

    @property
    def result(self) -> list[JobClaim]:
        """The jobs in the order of the slots."""
        indexes = {slot.name: index for index, slot in enumerate(self.request.offers.slots)}
        return sorted(self.claims, key=lambda each: indexes[each.reservation.slot])

    def discard(self, reservation: Reservation, *, is_gone: bool = False) -> None:
        """Uncount a reservation that had no room in the response or, with `is_gone`, no job in the database."""
        assert self.first is not None
        self.first.limits.remove(reservation.task_queue.traits)
        if is_gone and reservation.job_id is not None:
            self.first.single_jobs.discard(reservation.job_id)

    def retry_request(self) -> MatchRequest | None:
        """Return what to match again after reservations without a job.

        None = the response is full, or its first jobs bind the pilot to their owner.
        """
        assert self.first is not None
        if self.request.budget.is_full or (self.claims and self.first.slots[0].binds):
            return None
        self.chosen = len(self.claims)
        taken: dict[str, list[JobClaim]] = defaultdict(list)
        for each in self.claims:
            taken[each.reservation.slot].append(each)
        left = (_remainder(slot, taken[slot.name]) for slot in self.first.slots)
        return self.first._replace(slots=tuple(slot for slot in left if slot is not None))


def _remainder(slot: SlotOffer, taken: Sequence[JobClaim]) -> SlotOffer | None:
    """Return what these jobs leave of a slot; None = nothing."""
    if not taken:
        return slot
    if not slot.partitionable or slot.max_jobs == len(taken):
        return None
    free = reduce(sub, (each.reservation.amounts for each in taken), slot.free)
    return slot._replace(free=free, max_jobs=max(0, slot.max_jobs - len(taken)))


_Made: TypeAlias = tuple[_RequestProgress, Reservation]

_Source: TypeAlias = tuple[int, int | None]
"""Where a reservation gets its job: a task queue, and the id of the job if it is a certain one."""

_BySource: TypeAlias = dict[_Source, list[_Made]]


def bind_jobs(transaction: Transaction, state: ServerState, requests: Sequence[SlotRequest]) -> list[list[JobClaim]]:
    """Bind jobs to the free slots of the requests, in order, and return those of each in the order of its slots."""
    queues = {request.pilot.credential.queue for request in requests}
    limits = limits_at_present(transaction, state, queues, sum(len(request.free_slots) for request in requests))
    single_jobs = SingleJobs()
    progresses = [_request_progress(transaction, state, request, limits, single_jobs) for request in requests]
    unanswered: _BySource = defaultdict(list)
    transaction.on_rollback(partial(_unreserve, state, unanswered, transaction.now))
    while unfinished := [progress for progress in progresses if progress.pending is not None]:
        wanted: list[MissingHeads] = []
        access = state.queue_access
        for progress in unfinished:
            for reservation in _choose(state, access, progress, wanted):
                unanswered[reservation.task_queue.id, reservation.job_id].append((progress, reservation))
        _claim(transaction, state, unanswered)
        load_heads(transaction, state, wanted, single_jobs)
    _record(transaction, state, [progress for progress in progresses if progress.claims])
    return [progress.result for progress in progresses]


def _request_progress(
    transaction: Transaction, state: ServerState, request: SlotRequest, limits: LimitRound, single_jobs: SingleJobs
) -> _RequestProgress:
    credential, queue = request.pilot.credential, request.pilot.credential.queue
    place = PilotLocation(credential.stamp, queue.site, queue.ce, queue.queue, request.pilot.node)
    if not (free := request.free_slots):
        return _RequestProgress(request, place, None, None)
    here = limits.at(state.limits.at(queue))
    pending = MatchRequest(queue, credential.vos, free, here, single_jobs, transaction.now, request.offers.policies)
    return _RequestProgress(request, place, pending, pending)


def _unreserve(state: ServerState, unanswered: _BySource, now: datetime) -> None:
    """Return what was reserved when the transaction failed before the matcher had the answer of the database."""
    with state.lock:
        state.matcher.unreserve([reservation for pairs in unanswered.values() for _, reservation in pairs], now)


def _choose(
    state: ServerState, access: QueueAccess, progress: _RequestProgress, wanted: list[MissingHeads]
) -> Sequence[Reservation]:
    """Reserve jobs for one request, note the heads to read for the rest in `wanted`, and return the reservations."""
    assert progress.pending is not None, "only pending requests are matched"
    with state.lock:
        chosen = state.matcher.choose(progress.pending, access)
    if isinstance(chosen.rest, NeedsHeads):
        heads, progress.pending = chosen.rest
        wanted.append(heads)
    else:
        progress.pending = chosen.rest
    progress.chosen += len(chosen.reservations)
    return chosen.reservations


def _claim(transaction: Transaction, state: ServerState, unanswered: _BySource) -> None:
    """Claim a job for every reservation and empty `unanswered`; requests without a job are matched again."""
    found = _lock(transaction, {source: len(pairs) for source, pairs in unanswered.items()})
    sizes = _sizes(transaction, state, unanswered, found)
    progresses = {id(progress): progress for pairs in unanswered.values() for progress, _ in pairs}
    bindings: list[Binding] = []
    until = transaction.now + state.rules.lease
    for source, pairs in list(unanswered.items()):
        jobs = found.get(source, ())
        left: set[int] = set()
        for (progress, reservation), job in zip(pairs, jobs, strict=False):
            if not progress.request.budget.reserve(sizes.get(job.template_id, 0)):
                progress.discard(reservation)
                left.add(job.id)
                continue
            progress.claims.append(JobClaim(reservation, job, progress.place))
            ends = transaction.now + job.lease if job.lease else until
            bindings.append(Binding(job.id, ends, progress.place, reservation.slot))
        for progress, reservation in pairs[len(jobs) :]:
            progress.discard(reservation, is_gone=True)
        _confirm(transaction, state, pairs, [job.id for job in jobs], left)
        del unanswered[source]
    bind(transaction.session, bindings)
    for progress in progresses.values():
        progress.pending = progress.pending if len(progress.claims) == progress.chosen else progress.retry_request()


def _lock(transaction: Transaction, wanted: Mapping[_Source, int]) -> Mapping[_Source, Sequence[ClaimableJob]]:
    """Lock the jobs of the reservations, at most so many for each source: certain jobs, then first ones beside them."""
    certain = {job_id: task_queue_id for task_queue_id, job_id in wanted if job_id is not None}
    firsts = {task_queue_id: most for (task_queue_id, job_id), most in wanted.items() if job_id is None}
    locked = lock_waiting(transaction.session, certain)
    found: dict[_Source, Sequence[ClaimableJob]] = {(certain[job_id], job_id): [job] for job_id, job in locked.items()}
    # Only jobs that slots get are locked: other matches pass over locked ones, and then none may seem to wait.
    for task_queue_id, jobs in lock_first_waiting(transaction.session, firsts, locked).items():
        found[task_queue_id, None] = jobs
    return found


def _sizes(
    transaction: Transaction,
    state: ServerState,
    by_source: Mapping[_Source, Sequence[_Made]],
    found: Mapping[_Source, Sequence[ClaimableJob]],
) -> Mapping[int, int]:
    """Return the sizes of the jobs' descriptions by template; a job that comes alone needs none."""
    templates = {
        job.template_id
        for source, pairs in by_source.items()
        for (progress, _), job in zip(pairs, found.get(source, ()), strict=False)
        if progress.chosen > 1 or progress.pending is not None
    }
    return state.descriptions.sizes(transaction, templates) if templates else {}


def _confirm(
    transaction: Transaction, state: ServerState, pairs: Sequence[_Made], job_ids: Sequence[int], left: Set[int]
) -> None:
    """Report to the matcher how the reservations from one source ended.

    Jobs that are `left` are locked, so no other match can get them either. They wait again after the transaction.
    """
    reservations = [reservation for _, reservation in pairs]
    made, missed = reservations[: len(job_ids)], reservations[len(job_ids) :]
    with state.lock:
        if missed:
            state.matcher.exhaust(missed, transaction.now)
        state.matcher.confirm(made, job_ids)
    if made:
        transaction.after_commit(partial(_commit, state, made, job_ids, left, transaction.now))
        transaction.on_rollback(partial(_roll_back, state, made, job_ids, transaction.now))


def _commit(
    state: ServerState, made: Sequence[Reservation], job_ids: Sequence[int], left: Set[int], now: datetime
) -> None:
    """Apply the commit: the jobs of these reservations of one task queue wait no more, but for those in `left`."""
    bound = [job_id for job_id in job_ids if job_id not in left]
    with state.lock:
        state.matcher.commit(made, bound)
        if left:
            returned = [each for each, job_id in zip(made, job_ids, strict=True) if job_id in left]
            state.matcher.roll_back(returned, sorted(left), now)
    if left:
        state.publish_waiting(made[0].task_queue.id, len(left))


def _roll_back(state: ServerState, made: Sequence[Reservation], job_ids: Sequence[int], now: datetime) -> None:
    with state.lock:
        state.matcher.roll_back(made, job_ids, now)


def _record(transaction: Transaction, state: ServerState, progresses: Sequence[_RequestProgress]) -> None:
    """Write the attempts, limits and events of the bound jobs."""
    bound = [each for progress in progresses for each in progress.claims]
    _begin_attempts(transaction, bound)
    for progress in progresses:
        queue = progress.request.pilot.credential.queue
        count_matched(transaction, state, queue, (each.reservation.task_queue for each in progress.claims))
    by_attempt: dict[int, list[JobClaim]] = defaultdict(list)
    for each in sorted(bound, key=lambda each: each.job.id):
        by_attempt[each.attempt].append(each)
    for same in by_attempt.values():
        publish_matches(transaction, state, _event(transaction, same[0]), [each.job.id for each in same])
    watched = [each.job.id for each in bound if each.job.watch]
    if watched:
        transaction.after_commit(partial(state.add_policy_checks, watched))


def _begin_attempts(transaction: Transaction, bound: Iterable[JobClaim]) -> None:
    """Store the attempts that the jobs have begun."""
    equal: dict[tuple[int, int, int, float], list[JobClaim]] = defaultdict(list)
    for each in bound:
        reservation = each.reservation
        amounts = reservation.amounts
        equal[reservation.task_queue.id, amounts.cpus, amounts.gpus, reservation.weight].append(each)
    charged: dict[Charge, list[int]] = defaultdict(list)
    for (_, cpus, gpus, weight), same in equal.items():
        charged[Charge(cpus, gpus, weight, same[0].reservation.task_queue.account)] += [each.job.id for each in same]
    begin_attempts(transaction.session, charged, transaction.now)


def _event(transaction: Transaction, bound: JobClaim) -> FeedEvent:
    return FeedEvent(
        position=0,
        job_id=bound.job.id,
        time=transaction.now,
        from_state=JobState.WAITING,
        to_state=JobState.MATCHED,
        cause=JobCause.MATCHED,
        reason="",
        attempt=bound.attempt,
        actor=f"pilot:{bound.place.pilot_stamp}",
    )


def load_heads(
    transaction: Transaction, state: ServerState, missing: Iterable[MissingHeads], single_jobs: SingleJobs
) -> None:
    """Read the heads that the matcher needs, and add those with ads to `single_jobs`."""
    wanted: dict[bool, dict[int, int]] = {False: {}, True: {}}
    for task_queue_id, most, with_ads in missing:
        wanted[with_ads][task_queue_id] = max(most, wanted[with_ads].get(task_queue_id, 0))
    if wanted[False]:
        found = read_first_waiting(transaction.session, wanted[False])
        with state.lock:
            for task_queue_id, most in wanted[False].items():
                state.matcher.refresh_heads(task_queue_id, found.get(task_queue_id, []), most)
    for task_queue_id, most in wanted[True].items():
        jobs = head_ads(transaction, task_queue_id, most)
        single_jobs.add(task_queue_id, {job.head.job_id: job.ad for job in jobs}, most)
        with state.lock:
            state.matcher.refresh_heads(task_queue_id, [job.head for job in jobs], most)


class BoundJobs(NamedTuple):
    """The jobs that were bound to the slots of one request."""

    bound: Sequence[JobClaim]
    slots: Sequence[SlotOffer]


def pilot_matches(transaction: Transaction, state: ServerState, made: Sequence[BoundJobs]) -> list[tuple[Match, ...]]:
    """Return the matches of each request as the pilot gets them, in the order in which they were bound."""
    templates = {each.job.template_id for one in made for each in one.bound}
    descriptions = state.descriptions.load_sized(transaction, templates) if templates else {}
    terms_cache = _TermsCache(state.rules.lease, descriptions)
    ads = _ads(transaction, state, made, descriptions)
    return [tuple([_match(each, terms_cache, ads) for each in one.bound]) for one in made]


def _ads(
    transaction: Transaction,
    state: ServerState,
    made: Iterable[BoundJobs],
    descriptions: Mapping[int, SizedDescription],
) -> dict[int, str]:
    """Return the ads of the jobs whose slots want them, as text, by job id."""
    wanted: dict[int, int] = {}
    for one in made:
        names = {slot.name for slot in one.slots if slot.job_ad_wanted}
        if names:
            wanted |= {each.job.id: each.job.template_id for each in one.bound if each.reservation.slot in names}
    jobs: Mapping[int, JobRecord] = load_jobs(transaction.session, wanted) if wanted else {}
    text = state.ad_texts.text
    return {
        id_: text(jobs[id_], descriptions[template_id].description, transaction.now)
        for id_, template_id in wanted.items()
    }


class _TermsCache:
    """The terms of the matches of one batch, each made once."""

    def __init__(self, lease: timedelta, descriptions: Mapping[int, SizedDescription]) -> None:
        self._lease = lease
        self._descriptions = descriptions
        self._known: dict[tuple[object, ...], MatchTerms] = {}

    def of(self, made: JobClaim) -> MatchTerms:
        """Return the terms of a match."""
        reservation, job = made.reservation, made.job
        key = (job.template_id, job.lease, reservation.task_queue.id, reservation.amounts)
        terms = self._known.get(key)
        if terms is None:
            task_queue = reservation.task_queue
            template = self._descriptions[job.template_id]
            terms = self._known[key] = MatchTerms(
                job.lease or self._lease,
                job.template_id,
                template.description,
                reservation.amounts,
                task_queue.id,
                task_queue.traits.account,
                template.traceparent,
            )
        return terms


def _match(made: JobClaim, terms_cache: _TermsCache, ads: Mapping[int, str]) -> Match:
    job = made.job
    terms, ad = terms_cache.of(made), ads.get(job.id, "")
    return Match(made.reservation.slot, job.id, made.attempt, job.cluster, job.process, terms, ad)
