"""Lists of pools, queues and eligible nodes, and who may see them."""

from __future__ import annotations

import pytest

from pilotage.errors import InvalidInputError, InvalidRequirementsError, PermissionDeniedError
from pilotage.resources.tree import QueueId
from pilotage_server.core.identity import Identity, PilotCredential, Role
from pilotage_server.core.jobs.states import JobCause
from pilotage_server.core.resources.bans import TreeNode
from pilotage_server.operations.attempts.transitions import apply_transition
from pilotage_server.operations.resources.bans import BanOrder, ban
from pilotage_server.operations.resources.pools import PoolView, QueuePools, get_submit_pools_for_queue, list_pools
from pilotage_server.operations.resources.queues import (
    EligibleNodes,
    NodeQuery,
    QueueView,
    get_eligible_nodes,
    list_queues,
)
from pilotage_server.storage.database.engine import Database
from support.pool_bench import BIG, FAR, OPERATOR, SMALL, PoolBench, a_new_tree, a_user, three_queues
from support.virtual_clock import VirtualClock

pytestmark = pytest.mark.any_database

NOWHERE = QueueId("CERN", "ce01", "nowhere")
AGENT = Identity("agent:director", "", (), frozenset({Role.DIRECTOR}))


@pytest.fixture
def bench(database: Database) -> PoolBench:
    bench = PoolBench(database)
    bench.put(three_queues(defaults={"OS": "el9"}))
    return bench


def a_pilot(queue: QueueId, *vos: str) -> Identity:
    return Identity("pilot:p", "", (), frozenset({Role.PILOT}), PilotCredential("p", queue, vos))


def ban_node(bench: PoolBench, *names: str) -> None:
    bench.write(lambda transaction, state: ban(transaction, state, OPERATOR, BanOrder(TreeNode(*names), "broken")))


def pools(bench: PoolBench, identity: Identity, vo: str = "") -> tuple[PoolView, ...]:
    return bench.read(lambda transaction, state: list_pools(transaction, state, identity, vo))


def queues(bench: PoolBench, identity: Identity, vo: str = "", site: str = "") -> tuple[QueueView, ...]:
    return bench.read(lambda transaction, state: list_queues(transaction, state, identity, vo, site))


def nodes(bench: PoolBench, identity: Identity, query: NodeQuery) -> EligibleNodes:
    return bench.read(lambda transaction, state: get_eligible_nodes(transaction, state, identity, query))


def run_at(bench: PoolBench, job_id: int, queue: QueueId, clock: VirtualClock) -> None:
    job = bench.job(job_id)
    until = clock()
    bench.write(
        lambda transaction, state: apply_transition(
            transaction, state, job, JobCause.MATCHED, reason="", actor="p", attempt=1, queue=queue, lease_until=until
        )
    )


def start(bench: PoolBench, job_id: int, cause: JobCause) -> None:
    job = bench.job(job_id)
    bench.write(lambda transaction, state: apply_transition(transaction, state, job, cause, reason="", actor="p"))


def test_pools_are_listed_with_counts_most_waiting_first(bench: PoolBench, clock: VirtualClock) -> None:
    few = bench.submit(count=2, Memory=3000)
    many = bench.submit(count=5, Memory=1000)
    run_at(bench, few.id, BIG, clock)
    first, second = pools(bench, OPERATOR)
    assert (first.id, first.waiting, first.running) == (many.pool_id, 5, 0)
    assert (second.id, second.waiting, second.running) == (few.pool_id, 1, 1)
    assert (second.requirements, second.queues) == ({"Memory": 3000}, (BIG, FAR))
    assert (second.mapped, second.tree_version, second.created) == (clock(), 1, clock())


def test_users_see_pools_of_their_vo_and_operators_all(bench: PoolBench) -> None:
    cms = bench.submit(a_user("cms"), Memory=3000).pool_id
    lhcb = bench.submit(a_user("lhcb"), Memory=3000).pool_id
    assert [pool.id for pool in pools(bench, a_user("CMS"))] == [cms]
    assert {pool.id for pool in pools(bench, OPERATOR)} == {cms, lhcb} == {pool.id for pool in pools(bench, AGENT)}
    assert [pool.id for pool in pools(bench, OPERATOR, "LHCb")] == [lhcb]
    with pytest.raises(PermissionDeniedError):
        pools(bench, a_user("cms"), "lhcb")


def test_pools_of_queues_are_returned_in_requested_order(bench: PoolBench) -> None:
    ids = {memory: bench.submit(Memory=memory).pool_id for memory in (1000, 3000, 6000)}
    answer = get_submit_pools_for_queue(bench.state, AGENT, [SMALL, BIG, NOWHERE])
    assert answer == (
        QueuePools(SMALL, known=True, pool_ids=(ids[1000],)),
        QueuePools(BIG, known=True, pool_ids=tuple(sorted(ids.values()))),
        QueuePools(NOWHERE, known=False, pool_ids=()),
    )


def test_disabled_queue_is_known_and_has_no_pools(bench: PoolBench) -> None:
    bench.submit(Memory=1000)
    queue = {"Memory": 2000, "Enabled": False}
    bench.put(a_new_tree(sites={"CERN": {"ces": {"ce01": {"queues": {"small": queue}}}}}))
    assert get_submit_pools_for_queue(bench.state, AGENT, [SMALL, BIG]) == (
        QueuePools(SMALL, known=True, pool_ids=()),
        QueuePools(BIG, known=False, pool_ids=()),
    )


def test_banned_queue_keeps_its_pools(bench: PoolBench) -> None:
    job = bench.submit(Memory=1000)
    ban_node(bench, "CERN")  # the ban may end before a pilot starts
    (answer,) = get_submit_pools_for_queue(bench.state, AGENT, [SMALL])
    assert answer.pool_ids == (job.pool_id,)


def test_pilot_sees_only_pools_of_its_queue_and_vos(bench: PoolBench) -> None:
    cms = bench.submit(a_user("cms"), Memory=1000).pool_id
    lhcb = bench.submit(a_user("lhcb"), Memory=1000).pool_id
    all_, only = a_pilot(BIG), a_pilot(BIG, "LHCb")
    assert get_submit_pools_for_queue(bench.state, all_, [BIG])[0].pool_ids == tuple(sorted((cms, lhcb)))
    assert get_submit_pools_for_queue(bench.state, only, [BIG])[0].pool_ids == (lhcb,)
    with pytest.raises(PermissionDeniedError, match="bound to CERN/ce01/big"):
        get_submit_pools_for_queue(bench.state, all_, [SMALL])


def test_queues_are_listed_with_values_origins_and_counts(bench: PoolBench, clock: VirtualClock) -> None:
    bench.submit(count=2, Memory=1000)
    bench.submit(Memory=6000)
    bench.submit(count=3)
    run_at(bench, bench.submit(Memory=3000).id, BIG, clock)
    big, small, far = queues(bench, OPERATOR)
    assert [view.id for view in (big, small, far)] == [BIG, SMALL, FAR]
    assert big.parameters == {"OS": "el9", "Memory": 8000}
    assert big.origins == {"OS": "defaults", "Memory": "queue"}
    assert (big.enabled, big.banned, big.pilots) == (True, "", 0)
    assert (big.pools, big.waiting, big.matched, big.running) == (3, 6, 1, 0)
    assert (small.pools, small.waiting, small.matched, small.running) == (1, 5, 0, 0)


def test_jobs_of_a_queue_are_counted_by_vo_and_whether_they_have_started(bench: PoolBench, clock: VirtualClock) -> None:
    for user, causes in ((a_user("lhcb"), ()), (a_user("cms"), (JobCause.STARTED,))):
        job = bench.submit(user)
        run_at(bench, job.id, BIG, clock)
        for cause in causes:
            start(bench, job.id, cause)
    bench.submit(a_user("cms"))

    def counts(identity: Identity, vo: str = "") -> tuple[int, int, int]:
        (view,) = [view for view in queues(bench, identity, vo) if view.id == BIG]
        return view.waiting, view.matched, view.running

    assert counts(OPERATOR) == (1, 1, 1)
    assert counts(OPERATOR, "LHCb") == counts(a_user("lhcb")) == (0, 1, 0)
    assert counts(a_user("cms")) == (1, 0, 1)


def test_queue_is_hidden_from_users_of_vos_without_access(bench: PoolBench) -> None:
    bench.submit(a_user("cms"), Memory=1000)
    assert [view.id for view in queues(bench, a_user("lhcb"))] == [BIG, SMALL]
    assert [view.waiting for view in queues(bench, a_user("lhcb"))] == [0, 0]
    assert [view.pools for view in queues(bench, a_user("lhcb"))] == [0, 0]
    assert [view.id for view in queues(bench, a_user("CMS"), site="fnal")] == [FAR]
    with pytest.raises(PermissionDeniedError):
        queues(bench, a_user("lhcb"), "cms")


def test_banned_queue_is_listed_with_its_reason(bench: PoolBench) -> None:
    ban_node(bench, "CERN", "ce01", "big")
    assert [view.banned for view in queues(bench, OPERATOR)] == ["CERN/ce01/big is banned: broken", "", ""]


def test_eligible_nodes_are_a_tree_to_requested_level(bench: PoolBench) -> None:
    select = {"Memory": 3000}
    user = a_user("cms")
    down_to_queues = {"CERN": {"ce01": ("big",)}, "FNAL": {"ce02": ("far",)}}
    assert nodes(bench, user, NodeQuery(queue_select=select)) == down_to_queues
    down_to_ces = {"CERN": {"ce01": ()}, "FNAL": {"ce02": ()}}
    assert nodes(bench, user, NodeQuery(level="ce", queue_select=select)) == down_to_ces
    assert nodes(bench, user, NodeQuery(level="Site", queue_select=select)) == {"CERN": {}, "FNAL": {}}
    assert nodes(bench, user, NodeQuery(ce_select={"OS": "el9"}, queue_select={"Memory": 9000})) == {}
    assert nodes(bench, a_user("lhcb"), NodeQuery(queue_select=select)) == {"CERN": {"ce01": ("big",)}}


def test_banned_node_and_its_empty_parents_are_not_eligible(bench: PoolBench) -> None:
    ban_node(bench, "FNAL", "ce02", "far")
    ban_node(bench, "CERN", "ce01", "small")
    assert nodes(bench, OPERATOR, NodeQuery()) == {"CERN": {"ce01": ("big",)}}


def test_invalid_selection_is_refused(bench: PoolBench) -> None:
    with pytest.raises(InvalidRequirementsError, match="Memory"):
        nodes(bench, OPERATOR, NodeQuery(queue_select={"Memory": ()}))
    with pytest.raises(InvalidInputError, match="Site, CE, Queue"):
        nodes(bench, OPERATOR, NodeQuery(level="rack"))
