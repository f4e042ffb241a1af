"""Task queues as policies see them: what they have in common, and which of them look alike."""

from __future__ import annotations

from pilotage_server.core.matching.job_views import MOST_SORTINGS, JobViews
from pilotage_server.core.matching.slot_policy import SlotPolicies
from support.grid import a_slot
from support.match_board import QUEUE, Board

BATCH = frozenset({"batch"})


def test_task_queues_that_say_the_same_of_what_is_looked_for_are_alike() -> None:
    board = Board()
    one, other = board.queue("alice", attributes={"Batch": True}), board.queue("bob", attributes={"Batch": True})
    without = board.queue("carol")
    sorting = JobViews().groups_by(BATCH, board.index)
    assert set(sorting.groups) == {frozenset({one, other}), frozenset({without})}
    assert sorting.individual == frozenset()


def test_task_queues_that_come_and_go_are_sorted_too() -> None:
    board, views = Board(), JobViews()
    first = board.queue(attributes={"Batch": True})
    assert views.groups_by(BATCH, board.index).groups == (frozenset({first}),)
    second = board.queue("bob", attributes={"Batch": True})
    assert views.groups_by(BATCH, board.index).groups == (frozenset({first, second}),)
    board.index.remove([first])
    assert views.groups_by(BATCH, board.index).groups == (frozenset({second}),)


def test_task_queues_whose_jobs_have_to_be_asked_one_by_one_are_odd() -> None:
    board = Board()
    escaped = board.queue(traits={"escaped": ("batch",)})
    plain = board.queue("bob")
    sorting = JobViews().groups_by(BATCH, board.index)
    assert (sorting.groups, sorting.individual) == ((frozenset({plain}),), frozenset({escaped}))


def test_what_the_priority_of_its_user_takes_part_in_is_asked_each_time() -> None:
    board = Board()
    queue = board.queue()
    assert JobViews().groups_by(frozenset({"submittorprio"}), board.index).individual == {queue}


def test_as_many_views_and_sortings_are_kept_as_there_is_room_for() -> None:
    board, views = Board(), JobViews(most=2)
    queues = [board.queues[board.queue(owner)] for owner in ("alice", "bob", "carol")]
    first = views.view(queues[0])
    for queue in queues[1:]:
        views.view(queue)
    assert views.view(queues[0]) is not first
    assert views.view(queues[2]) is views.view(queues[2])
    kept = views.groups_by(BATCH, board.index)
    for number in range(MOST_SORTINGS):
        views.groups_by(frozenset({f"name{number}"}), board.index)
    assert views.groups_by(BATCH, board.index) is not kept


def test_as_many_policies_are_kept_as_there_is_room_for() -> None:
    policies = SlotPolicies(most=1)
    one, other = a_slot("a"), a_slot("b")
    first = policies.policy(one, QUEUE)
    assert policies.policy(one, QUEUE) is first
    policies.policy(other, QUEUE)
    assert policies.policy(one, QUEUE) is not first
