"""Task queues as policies see them: their views, and autoclusters in the order of a rank."""

from __future__ import annotations

from pilotage_server.core.matching.job_views import AutoClusters, JobViews, Rank, RankTier
from pilotage_server.core.queueing.bitsets import ALL_BITS
from pilotage_server.core.queueing.task_queue import TaskQueue
from support.match_bench import MatchBench


def test_number_of_views_is_bounded() -> None:
    board, views = MatchBench(), JobViews(most=2)
    queues = [board.queues[board.queue(owner)] for owner in ("alice", "bob", "carol")]
    first = views.view(queues[0])
    for queue in queues[1:]:
        views.view(queue)
    assert views.view(queues[0]) is not first
    assert views.view(queues[2]) is views.view(queues[2])


class RankByCores:
    """Ranks task queues by their cores; `ranked` has the owners of the queues ranked so far."""

    def __init__(self, *, lasts: bool = True) -> None:
        self.ranked: list[str] = []
        self._lasts = lasts

    def of(self, task_queue: TaskQueue) -> Rank:
        self.ranked.append(task_queue.account.owner)
        return Rank(float(task_queue.needs.cpus or 1), self._lasts)


def by_cores(board: MatchBench) -> AutoClusters:
    return AutoClusters(board.index, lambda task_queue: str(task_queue.needs.cpus))


def owners(board: MatchBench, order: list[RankTier]) -> list[set[str]]:
    queues = [queue for queue in map(board.index.get, board.queues) if queue]
    return [{queue.account.owner for queue in queues if bits >> queue.bit & 1} for _, bits in order]


def test_autoclusters_are_ranked_once_and_ordered_by_rank() -> None:
    board, ranking = MatchBench(), RankByCores()
    for owner, cpus in (("alice", 1), ("bob", 8), ("carol", 1)):
        board.waiting(owner, cpus=cpus)

    order = by_cores(board).in_order("key", ALL_BITS, ranking.of)

    assert owners(board, order) == [{"bob"}, {"alice", "carol"}]
    assert ranking.ranked == ["alice", "bob"]


def test_only_autoclusters_with_candidates_are_ranked() -> None:
    board, ranking = MatchBench(), RankByCores()
    board.waiting("alice", cpus=1)
    wide_queue = board.index.get(board.queue("bob", cpus=8))
    assert wide_queue is not None

    order = by_cores(board).in_order("key", 1 << wide_queue.bit, ranking.of)

    assert (owners(board, order), ranking.ranked) == ([{"bob"}], ["bob"])


def test_lasting_ranks_are_cached_by_key_until_a_task_queue_is_added() -> None:
    board, ranking = MatchBench(), RankByCores()
    board.waiting("alice", cpus=1)
    clusters = by_cores(board)

    for key in ("key", "key", "another"):
        clusters.in_order(key, ALL_BITS, ranking.of)
    assert ranking.ranked == ["alice", "alice"]

    board.waiting("bob", cpus=8)
    assert owners(board, clusters.in_order("key", ALL_BITS, ranking.of)) == [{"bob"}, {"alice"}]


def test_ranks_that_do_not_last_are_not_cached() -> None:
    board, ranking = MatchBench(), RankByCores(lasts=False)
    board.waiting("alice", cpus=1)
    clusters = by_cores(board)

    for _ in range(2):
        clusters.in_order("key", ALL_BITS, ranking.of)

    assert ranking.ranked == ["alice", "alice"]
