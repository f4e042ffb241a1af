"""Matching without policies: the order of jobs, and what fits into slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from pilotage.accounts import Quota
from pilotage.values.accounts import Account, GroupId
from pilotage.values.amounts import Amounts
from pilotage.values.offers import SlotOffer
from pilotage_server.core.queueing.slot_offers import fits
from pilotage_server.core.rules import RunningLimit, Sharing
from support.grid import a_slot
from support.match_bench import NO_MARGIN, MatchBench
from support.virtual_clock import START


def slots(count: int, cpus: int = 1) -> list[SlotOffer]:
    """Return slots of one shape."""
    return [a_slot(f"s{number}", cpus) for number in range(count)]


def test_higher_priority_goes_first_then_earlier_submission() -> None:
    board = MatchBench()
    queue, other = board.queue(), board.queue(cpus=1)
    late, early = board.job(queue), board.job(other)
    urgent = board.job(other, priority=5)
    assert board.matched_jobs(*slots(3)) == [urgent, late, early]


def test_fair_share_precedes_job_priority() -> None:
    board = MatchBench()
    mine, theirs = board.queue("alice"), board.queue("bob")
    board.job(mine, priority=100)
    of_bob = board.job(theirs)
    board.shares.start_run(Account("lhcb", "users", "alice"), 1, START - timedelta(hours=1))
    assert board.matched_jobs(*slots(1)) == [of_bob]


def test_groups_are_ordered_before_their_owners() -> None:
    board = MatchBench()
    busy_group, idle_group = board.queue("new", "busy"), board.queue("heavy", "idle")
    board.job(busy_group)
    of_idle = board.job(idle_group)
    board.shares.start_run(Account("lhcb", "busy", "old"), 100, START - timedelta(hours=1))
    board.shares.start_run(Account("lhcb", "idle", "heavy"), 1, START - timedelta(hours=1))
    assert board.matched_jobs(*slots(1)) == [of_idle]


def test_group_quotas_divide_the_slots() -> None:
    board = MatchBench(Sharing(group_quotas={GroupId("lhcb", "big"): Quota(3.0)}))
    big, small = board.queue("a", "big"), board.queue("b", "small")
    for _ in range(20):
        board.job(big)
        board.job(small)
    owners = [choice.task_queue.account.owner for choice, _ in board.round(*slots(12))]
    assert (owners.count("a"), owners.count("b")) == (9, 3)


def test_priority_factor_of_two_halves_the_share() -> None:
    board = MatchBench(Sharing(priority_factors={Account("lhcb", "users", "b"): 2.0}))
    one, other = board.queue("a"), board.queue("b")
    for _ in range(20):
        board.job(one)
        board.job(other)
    owners = [choice.task_queue.account.owner for choice, _ in board.round(*slots(9))]
    assert (owners.count("a"), owners.count("b")) == (6, 3)


def test_partitionable_slot_gets_no_more_than_it_has() -> None:
    board = MatchBench()
    queue = board.queue(cpus=3, memory_mib=1000)
    first, second = board.job(queue), board.job(queue)
    board.job(queue)
    assert board.matched_jobs(a_slot("s", cpus=8, memory_mib=2500, partitionable=True)) == [first, second]


def test_slot_gets_at_most_its_maximum_of_jobs() -> None:
    board = MatchBench()
    queue = board.queue()
    ids = [board.job(queue) for _ in range(5)]
    assert board.matched_jobs(a_slot("s", cpus=8, partitionable=True, max_jobs=2)) == ids[:2]


def test_slot_gets_one_job_and_its_prefetch() -> None:
    board = MatchBench()
    queue = board.queue()
    ids = [board.job(queue) for _ in range(5)]
    assert board.matched_jobs(a_slot("s", ahead=2)) == ids[:3]


def test_cpu_time_must_fit_in_time_left_times_cpu_power() -> None:
    board = MatchBench()
    queue = board.queue(cpus=2, cpu_time_s=3600)
    job = board.job(queue)
    assert board.matched_jobs(a_slot("s", cpus=2, time_left=timedelta(seconds=3599))) == []
    assert board.matched_jobs(a_slot("s", cpus=2, time_left=timedelta(seconds=3600))) == [job]
    assert board.matched_jobs(a_slot("s", cpus=2, time_left=timedelta(seconds=1800), cpu_power=2.0)) == [job]
    assert board.matched_jobs(a_slot("s", cpus=2)) == [job]


def test_cpu_time_equal_to_time_left_fits() -> None:
    board = MatchBench()
    board.job(board.queue(cpu_time_s=5000))
    assert len(board.matched_jobs(a_slot("s", time_left=timedelta(seconds=5000)))) == 1


def test_wall_time_must_fit_in_time_left() -> None:
    board = MatchBench()
    job = board.job(board.queue(wall_time_s=600.0))
    assert board.matched_jobs(a_slot("s", time_left=timedelta(seconds=599))) == []
    assert board.matched_jobs(a_slot("s", time_left=timedelta(seconds=600))) == [job]


def test_reached_running_limit_passes_to_the_next_owner() -> None:
    board = MatchBench()
    mine, theirs = board.queue("alice"), board.queue("bob")
    first, of_bob = board.job(mine), board.job(theirs)
    board.job(mine)
    limit = RunningLimit("A", None, None, "owner", "Alice", at_most=3)
    assert board.matched_jobs(*slots(3), limits={limit: 2}) == [first, of_bob]


QUEUES = st.tuples(
    st.sampled_from(["a", "b", "c"]), st.sampled_from(["g", "h"]), st.integers(1, 4), st.sampled_from([0, 500, 2000])
)
SLOTS = st.tuples(st.integers(0, 8), st.sampled_from([0, 600, 4000]), st.booleans(), st.integers(0, 3))
JOBS = st.lists(st.tuples(st.integers(0, 3), st.integers(-1, 1)), max_size=15)


def a_board(queues: Iterable[tuple[str, str, int, int]], jobs: Sequence[tuple[int, int]]) -> MatchBench:
    """Return a board with these queues (owner, group, cores, memory) and jobs (queue, priority)."""
    board = MatchBench()
    ids = [board.queue(owner, group, cpus=cpus, memory_mib=memory) for owner, group, cpus, memory in queues]
    for queue, priority in jobs:
        board.job(ids[queue % len(ids)], priority)
    return board


def some_slots(shapes: Iterable[tuple[int, int, bool, int]]) -> list[SlotOffer]:
    """Return slots of these shapes (cores, memory, partitionable, most jobs)."""
    return [
        SlotOffer(f"s{number}", Amounts(cpus, memory), partitionable, max_jobs=most)
        for number, (cpus, memory, partitionable, most) in enumerate(shapes)
    ]


@given(st.lists(QUEUES, min_size=1, max_size=6), JOBS, st.lists(SLOTS, max_size=5))
def test_no_slot_gets_more_than_it_has(
    queues: list[tuple[str, str, int, int]], jobs: list[tuple[int, int]], shapes: list[tuple[int, int, bool, int]]
) -> None:
    offered = some_slots(shapes)
    matches = a_board(queues, jobs).round(*offered)
    for slot in offered:
        mine = [choice for choice, _ in matches if choice.slot == slot.name]
        taken = sum((choice.task_queue.traits.amounts for choice in mine), Amounts())
        assert taken.fits_in(slot.free)
        assert len(mine) <= (slot.max_jobs or 100 if slot.partitionable else 1)


@given(st.lists(QUEUES, min_size=1, max_size=6), JOBS, st.lists(SLOTS, max_size=5))
def test_matching_is_deterministic_and_gives_no_job_twice(
    queues: list[tuple[str, str, int, int]], jobs: list[tuple[int, int]], shapes: list[tuple[int, int, bool, int]]
) -> None:
    offered = some_slots(shapes)
    given_once = a_board(queues, jobs).matched_jobs(*offered)
    assert given_once == a_board(queues, jobs).matched_jobs(*offered)
    assert len(given_once) == len(set(given_once))


@given(st.lists(QUEUES, min_size=1, max_size=6), JOBS, st.lists(SLOTS, min_size=1, max_size=5))
def test_no_unused_slot_remains_while_a_job_fits(
    queues: list[tuple[str, str, int, int]], jobs: list[tuple[int, int]], shapes: list[tuple[int, int, bool, int]]
) -> None:
    offered = some_slots(shapes)
    board = a_board(queues, jobs)
    matches = board.round(*offered)
    used = {job for _, job in matches}
    waiting = [number for number, heads in board.jobs.items() if any(head.job_id not in used for head in heads)]
    untouched = [slot for slot in offered if slot.name not in {choice.slot for choice, _ in matches}]
    assert not any(fits(board.queues[number], slot, NO_MARGIN) for number in waiting for slot in untouched)


@given(st.lists(QUEUES, min_size=1, max_size=6), JOBS, st.lists(SLOTS, max_size=4), SLOTS)
def test_additional_slot_keeps_earlier_matches(
    queues: list[tuple[str, str, int, int]],
    jobs: list[tuple[int, int]],
    shapes: list[tuple[int, int, bool, int]],
    more: tuple[int, int, bool, int],
) -> None:
    fewer = a_board(queues, jobs).matched_jobs(*some_slots(shapes))
    after = a_board(queues, jobs).matched_jobs(*some_slots([*shapes, more]))
    assert after[: len(fewer)] == fewer


@given(st.lists(QUEUES, min_size=1, max_size=6), JOBS)
def test_matches_follow_share_then_priority_then_submission(
    queues: list[tuple[str, str, int, int]], jobs: list[tuple[int, int]]
) -> None:
    board = a_board(queues, jobs)
    left = {number: list(heads) for number, heads in board.jobs.items()}
    shares = board.shares.round(START)
    for choice, job in board.round(*some_slots([(8, 4000, False, 0)] * 6)):
        firsts = [(shares.share(board.queues[n].account), *heads[0].order, n) for n, heads in left.items() if heads]
        assert (min(firsts)[-1], min(firsts)[-2]) == (choice.task_queue.id, job)
        left[choice.task_queue.id].pop(0)
        shares.charge(choice.task_queue.account, choice.amounts.cpus)
