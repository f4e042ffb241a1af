"""Task queues by what a question sees of them: a liking is asked for once a kind, and remembered while it lasts."""

from __future__ import annotations

from pilotage_server.core.matching.job_views import AutoClusters, Rank
from pilotage_server.core.queueing.bitsets import ALL_BITS
from pilotage_server.core.queueing.task_queue import TaskQueue
from support.match_board import Board


class Taste:
    """Likes jobs by their cores; `asked` are the owners of those it was asked about."""

    def __init__(self, *, lasts: bool = True) -> None:
        self.asked: list[str] = []
        self._lasts = lasts

    def of(self, task_queue: TaskQueue) -> Rank:
        self.asked.append(task_queue.account.owner)
        return Rank(float(task_queue.needs.cpus or 1), self._lasts)


def by_cores(board: Board) -> AutoClusters:
    return AutoClusters(board.index, lambda task_queue: str(task_queue.needs.cpus))


def owners(board: Board, order: list[int]) -> list[set[str]]:
    lines = [board.index.get(queue) for queue in board.queues]
    return [{line.account.owner for line in lines if line and places >> line.bit & 1} for places in order]


def test_the_kinds_liked_best_come_first_and_each_is_asked_about_once() -> None:
    board, taste = Board(), Taste()
    for owner, cpus in (("alice", 1), ("bob", 8), ("carol", 1)):
        board.waiting(owner, cpus=cpus)

    order = by_cores(board).in_order("key", ALL_BITS, taste.of)

    assert owners(board, order) == [{"bob"}, {"alice", "carol"}]
    assert taste.asked == ["alice", "bob"]


def test_only_kinds_are_asked_about_of_which_some_can_go() -> None:
    board, taste = Board(), Taste()
    board.waiting("alice", cpus=1)
    wide = board.index.get(board.queue("bob", cpus=8))
    assert wide is not None

    order = by_cores(board).in_order("key", 1 << wide.bit, taste.of)

    assert (owners(board, order), taste.asked) == ([{"bob"}], ["bob"])


def test_what_lasts_is_remembered_by_key_until_a_task_queue_comes() -> None:
    board, taste = Board(), Taste()
    board.waiting("alice", cpus=1)
    kinds = by_cores(board)

    for key in ("key", "key", "another"):
        kinds.in_order(key, ALL_BITS, taste.of)
    assert taste.asked == ["alice", "alice"]

    board.waiting("bob", cpus=8)
    assert owners(board, kinds.in_order("key", ALL_BITS, taste.of)) == [{"bob"}, {"alice"}]


def test_what_does_not_last_is_asked_each_time() -> None:
    board, taste = Board(), Taste(lasts=False)
    board.waiting("alice", cpus=1)
    kinds = by_cores(board)

    for _ in range(2):
        kinds.in_order("key", ALL_BITS, taste.of)

    assert taste.asked == ["alice", "alice"]
