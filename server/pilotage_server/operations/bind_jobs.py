"""Binds waiting jobs to the free slots of many pilots: chosen in memory, claimed in the database, all in a few steps.

Rules
-----
The board chooses for all who ask and takes what it has chosen out of the memory at once; then the database is asked
for as many jobs of each task queue. Where it has fewer, others were quicker, and those who lack a job choose again.
What the board declines is left for the plain way (`match_slots`). What an answer has no room for is put back before
it is bound: who asked gets the rest with his next request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial, reduce
from operator import sub
from typing import NamedTuple

from pilotage_server.core.job_events import JobEvent
from pilotage_server.core.jobs import JobCause, JobState
from pilotage_server.core.limits import LimitRound
from pilotage_server.core.match_board import Ask, Declined, HeadsUnknown
from pilotage_server.core.matching import Choice
from pilotage_server.core.reach import Reach
from pilotage_server.core.slots import SlotOffer
from pilotage_server.operations.answer_room import AnswerRoom
from pilotage_server.operations.event_outbox import tell_of_matches
from pilotage_server.operations.match_slots import Asking
from pilotage_server.operations.running_counts import count_matched, limits_at_present
from pilotage_server.operations.slot_offers import Offers
from pilotage_server.operations.world import World
from pilotage_server.storage.attempts import Charge, begin_attempts
from pilotage_server.storage.claims import Binding, Place, bind
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.first_waiting import Waiting, lock_first, read_first_waiting


@dataclass(frozen=True, slots=True)
class Wish:
    """A pilot that asks, what it offers, of which only the free slots are looked at, and its answer's room for jobs."""

    pilot: Asking
    offers: Offers
    room: AnswerRoom = field(default_factory=AnswerRoom)


class Bound(NamedTuple):
    """A job that was bound: what was chosen, the job as it was when it waited, and where it is to run."""

    choice: Choice
    job: Waiting
    place: Place

    @property
    def attempt(self) -> int:
        """The attempt that the match has begun."""
        return self.job.attempt + 1


class Given(NamedTuple):
    """What came of a wish: jobs, in the order of the slots, and the free slots that the plain way has to serve."""

    bound: Sequence[Bound]
    plain: tuple[SlotOffer, ...]


@dataclass(slots=True)
class _Case:
    """One wish on its way.

    `first` is what was asked, `ask` what is still to be chosen; None = nothing. `chosen` counts what was, in vain or
    not; `taken` are the choices that the board has taken out of the memory; `plain` goes the plain way.
    """

    wish: Wish
    place: Place
    first: Ask | None
    ask: Ask | None
    chosen: int = 0
    taken: list[Choice] = field(default_factory=list)
    bound: list[Bound] = field(default_factory=list)
    plain: tuple[SlotOffer, ...] = ()

    @property
    def given(self) -> Given:
        """What came of the wish."""
        places = {slot.name: place for place, slot in enumerate(self.wish.offers.slots)}
        plain = () if self.wish.room.is_full else self.plain
        return Given(sorted(self.bound, key=lambda each: places[each.choice.slot]), plain)

    def missed(self, choice: Choice) -> None:
        """Count a choice no more for which there was no job, or no room."""
        assert self.first is not None
        self.taken.remove(choice)
        self.first.limits.taken_back(choice.task_queue.traits)

    def anew(self) -> Ask | None:
        """Return what is to be chosen again when choices came to nothing; None = nothing, for there is no more room."""
        if self.wish.room.is_full:
            return None
        assert self.first is not None
        self.chosen = len(self.bound)
        taken: dict[str, list[Bound]] = defaultdict(list)
        for each in self.bound:
            taken[each.choice.slot].append(each)
        plain = {slot.name for slot in self.plain}
        left = (_left(slot, taken[slot.name]) for slot in self.first.slots if slot.name not in plain)
        return self.first._replace(slots=tuple(slot for slot in left if slot is not None))


def _left(slot: SlotOffer, taken: Sequence[Bound]) -> SlotOffer | None:
    """Return what is left of a slot when it has got these jobs; None = nothing."""
    if not taken:
        return slot
    if not slot.partitionable or slot.max_jobs == len(taken):
        return None
    free = reduce(sub, (each.choice.amounts for each in taken), slot.free)
    return slot._replace(free=free, max_jobs=max(0, slot.max_jobs - len(taken)))


def bind_jobs(unit: Unit, world: World, wishes: Sequence[Wish]) -> list[Given]:
    """Bind jobs to the free slots of those who ask, the first first, and return for each what he got."""
    queues = {wish.pilot.credential.queue for wish in wishes}
    limits = limits_at_present(unit, world, queues, sum(len(wish.offers.slots) for wish in wishes))
    cases = [_case(unit, world, wish, limits) for wish in wishes]
    while asking := [case for case in cases if case.ask is not None]:
        wanted: dict[int, int] = {}
        reach = world.reach
        made = [(case, choice) for case in asking for choice in _choose(world, reach, case, wanted)]
        _claim(unit, world, made)
        _bring_heads(unit, world, wanted)
    _write_down(unit, world, [case for case in cases if case.bound])
    return [case.given for case in cases]


def _case(unit: Unit, world: World, wish: Wish, limits: LimitRound) -> _Case:
    credential, queue = wish.pilot.credential, wish.pilot.credential.queue
    place = Place(credential.stamp, queue.site, queue.ce, queue.queue, wish.pilot.node)
    free = tuple(slot for slot in wish.offers.slots if slot.occupied is None)
    if not free:
        return _Case(wish, place, None, None)
    ask = Ask(queue, credential.vos, free, limits.at(world.limits.at(queue)), unit.now, wish.offers.policies)
    case = _Case(wish, place, ask, ask)
    unit.on_rollback(partial(_put_back, world, case, unit.now))
    return case


def _put_back(world: World, case: _Case, now: datetime) -> None:
    with world.lock:
        world.board.put_back(case.taken, now)


def _choose(world: World, reach: Reach, case: _Case, wanted: dict[int, int]) -> Sequence[Choice]:
    """Choose for one who asks, note which heads are wanted for the rest, and return what was chosen."""
    assert case.ask is not None, "only who asks is chosen for"
    with world.lock:
        chosen = world.board.choose(case.ask, reach)
    case.ask = None
    match chosen.rest:
        case HeadsUnknown(more, ask):
            case.ask = ask
            for task_queue_id, most in more.items():
                wanted[task_queue_id] = max(most, wanted.get(task_queue_id, 0))
        case Declined(_, ask):
            case.plain = ask.slots
        case None:
            pass
    case.chosen += len(chosen.choices)
    case.taken += chosen.choices
    return chosen.choices


def _claim(unit: Unit, world: World, made: Sequence[tuple[_Case, Choice]]) -> None:
    """Claim a job for every choice; those who find that there is none choose anew."""
    by_queue: dict[int, list[tuple[_Case, Choice]]] = defaultdict(list)
    for pair in made:
        by_queue[pair[1].task_queue.id].append(pair)
    found = lock_first(unit.session, {task_queue_id: len(pairs) for task_queue_id, pairs in by_queue.items()})
    sizes = _sizes(unit, world, by_queue, found)
    bindings: list[Binding] = []
    until = unit.now + world.rules.lease
    for task_queue_id, pairs in by_queue.items():
        jobs = found.get(task_queue_id, ())
        left: dict[int, Choice] = {}
        for (case, choice), job in zip(pairs, jobs, strict=False):
            if not case.wish.room.takes(sizes.get(job.template_id, 0)):
                case.missed(choice)
                left[job.id] = choice
                continue
            case.bound.append(Bound(choice, job, case.place))
            ends = unit.now + job.lease if job.lease else until
            bindings.append(Binding(job.id, ends, case.place, choice.slot))
        for case, choice in pairs[len(jobs) :]:
            case.missed(choice)
        _note_claims(unit, world, task_queue_id, [choice for _, choice in pairs], [job.id for job in jobs], left)
    bind(unit.session, bindings)
    for case in {id(case): case for case, _ in made}.values():
        case.ask = case.ask if len(case.bound) == case.chosen else case.anew()


def _sizes(
    unit: Unit,
    world: World,
    by_queue: Mapping[int, Sequence[tuple[_Case, Choice]]],
    found: Mapping[int, Sequence[Waiting]],
) -> Mapping[int, int]:
    """Return the sizes of the jobs' descriptions by template; one that comes alone has room, whatever its size."""
    templates = {
        job.template_id
        for task_queue_id, pairs in by_queue.items()
        for (case, _), job in zip(pairs, found.get(task_queue_id, ()), strict=False)
        if case.chosen > 1 or case.ask is not None
    }
    return world.descriptions.sizes(unit, templates) if templates else {}


def _note_claims(
    unit: Unit,
    world: World,
    task_queue_id: int,
    choices: Sequence[Choice],
    job_ids: Sequence[int],
    left: Mapping[int, Choice],
) -> None:
    """Tell the board what the choices of one task queue have become; jobs that are `left` wait on."""
    made, missed = choices[: len(job_ids)], choices[len(job_ids) :]
    bound = [job_id for job_id in job_ids if job_id not in left] if left else job_ids

    def note(what: Callable[[int, Sequence[int]], None]) -> None:
        with world.lock:
            what(task_queue_id, bound)

    if missed:  # first: a job that was chosen in vain here may be what another choice was given
        with world.lock:
            world.board.missed(missed, unit.now)
    if made:
        with world.lock:
            if left:  # first: what was chosen for one that is left may be what another choice was given
                world.board.put_back(list(left.values()), unit.now)
                made = [choice for choice, job_id in zip(made, job_ids, strict=True) if job_id not in left]
            world.board.claimed(made, bound)
        unit.after_commit(partial(note, world.board.bound))
        unit.on_rollback(partial(note, world.board.released))


def _write_down(unit: Unit, world: World, cases: Sequence[_Case]) -> None:
    """Write down what jobs being bound means for all else, and tell it."""
    bound = [each for case in cases for each in case.bound]
    _begin_attempts(unit, bound)
    for case in cases:
        queue = case.wish.pilot.credential.queue
        count_matched(unit, world, queue, (each.choice.task_queue for each in case.bound))
    by_attempt: dict[int, list[Bound]] = defaultdict(list)
    for each in sorted(bound, key=lambda each: each.job.id):
        by_attempt[each.attempt].append(each)
    for same in by_attempt.values():
        tell_of_matches(unit, world, _event(unit, same[0]), [each.job.id for each in same])
    watched = [each.job.id for each in bound if each.job.watch]
    if watched:
        unit.after_commit(partial(world.look_at, watched))


def _begin_attempts(unit: Unit, bound: Iterable[Bound]) -> None:
    """Store the attempts that the jobs have begun."""
    alike: dict[tuple[int, int, float], list[Bound]] = defaultdict(list)
    for each in bound:
        choice = each.choice
        alike[choice.task_queue.id, choice.amounts.cpus, choice.weight].append(each)
    charged: dict[Charge, list[int]] = defaultdict(list)
    for (_, cpus, weight), same in alike.items():
        charged[Charge(cpus, weight, same[0].choice.task_queue.account)] += [each.job.id for each in same]
    begin_attempts(unit.session, charged, unit.now)


def _event(unit: Unit, bound: Bound) -> JobEvent:
    return JobEvent(
        position=0,
        job_id=bound.job.id,
        time=unit.now,
        from_state=JobState.WAITING,
        to_state=JobState.MATCHED,
        cause=JobCause.MATCHED,
        reason="",
        attempt=bound.attempt,
        actor=f"pilot:{bound.place.pilot_stamp}",
    )


def _bring_heads(unit: Unit, world: World, wanted: Mapping[int, int]) -> None:
    """Read the heads that the board has asked for."""
    if not wanted:
        return
    found = read_first_waiting(unit.session, wanted)
    with world.lock:
        for task_queue_id, most in wanted.items():
            world.board.heads(task_queue_id, found.get(task_queue_id, []), most)
