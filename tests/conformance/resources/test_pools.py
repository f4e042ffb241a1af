"""Pools on every database: creation by their first job, refresh, removal when idle, and sync of servers."""

from __future__ import annotations

import pytest
from sqlalchemy import update

from pilotage.resources.requirements import pool_id, read_requirements
from pilotage_server.core.resources.pools import PoolIdClashError
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.tables import metadata
from support.pool_bench import BIG, FAR, SMALL, PoolBench, a_user, three_queues
from support.sql_statements import statements
from support.trees import requirements_of
from support.virtual_clock import VirtualClock

POOLS = metadata.tables["pools"]


@pytest.fixture
def bench(database: Database) -> PoolBench:
    bench = PoolBench(database)
    bench.put(three_queues())
    return bench


def test_first_job_creates_pool_with_its_mapping(bench: PoolBench, clock: VirtualClock) -> None:
    job = bench.submit(Memory=3000)
    assert job.pool_id == pool_id(requirements_of(Memory=3000))
    assert bench.stored_queues(job.pool_id) == {BIG, FAR} == bench.state.mappings.queues(job.pool_id)
    pool = bench.stored()[job.pool_id]
    assert (pool.vo, pool.section, pool.mapped, pool.tree_version) == ("cms", {"Memory": 3000}, clock(), 1)
    assert pool.canonical == requirements_of(Memory=3000).canonical_form()
    bench.check_consistency()


def test_equal_requirements_share_a_pool_in_any_spelling(bench: PoolBench) -> None:
    first = bench.submit(Memory=3000)
    second = bench.submit(memory="3000 MB")
    assert first.pool_id == second.pool_id
    assert bench.stored()[first.pool_id].section == {"Memory": 3000}


def test_job_without_requirements_has_no_pool(bench: PoolBench) -> None:
    assert bench.submit().pool_id == ""
    assert bench.stored() == {}


def test_pool_without_eligible_queues_has_empty_mapping(bench: PoolBench) -> None:
    job = bench.submit(Memory=9000)
    assert bench.stored_queues(job.pool_id) == frozenset()
    assert bench.stored()[job.pool_id].mapped is not None


def test_pool_id_of_other_requirements_is_refused(bench: PoolBench) -> None:
    job = bench.submit(Memory=3000)
    forged = update(POOLS).where(POOLS.c.id == job.pool_id).values(canonical="something else")
    bench.database.write(lambda transaction: transaction.session.execute(forged))
    with pytest.raises(PoolIdClashError, match=job.pool_id[:12]):
        bench.submit(Memory=3000)


def test_refresh_selects_mappings_by_age(bench: PoolBench, clock: VirtualClock) -> None:
    old = bench.submit(Memory=1000)
    clock.advance(minutes=10)
    young = bench.submit(Memory=3000)
    clock.advance(minutes=5)
    assert bench.refresh(minutes=15) == (old.pool_id,)
    pools = bench.stored()
    assert pools[old.pool_id].mapped == clock()
    assert pools[young.pool_id].mapped != clock()
    assert bench.refresh(minutes=15) == ()
    bench.check_consistency()


def test_refresh_restores_missing_mapping(bench: PoolBench) -> None:
    job = bench.submit(Memory=3000)
    bench.database.write(lambda transaction: transaction.session.execute(update(POOLS).values(mapped=None)))
    assert bench.stored_queues(job.pool_id) == frozenset()
    assert bench.refresh(minutes=15) == (job.pool_id,)
    assert bench.stored_queues(job.pool_id) == {BIG, FAR}


def test_refresh_does_not_read_jobs(bench: PoolBench) -> None:
    bench.submit(count=50, Memory=1000)
    with statements(bench.database) as executed:
        bench.refresh(minutes=0)
    assert executed
    assert not [statement for statement in executed if "jobs" in statement]


def test_pool_with_live_job_is_never_removed(bench: PoolBench, clock: VirtualClock) -> None:
    job = bench.submit(Memory=3000)
    for _ in range(5):
        clock.advance(days=1)
        assert bench.clean(hours=1) == ()
    assert job.pool_id in bench.stored()


def test_idle_pool_is_removed_after_grace_period(bench: PoolBench, clock: VirtualClock) -> None:
    job = bench.submit(Memory=3000)
    clock.advance(days=2)
    bench.remove(job)
    assert bench.clean(hours=1) == ()
    clock.advance(minutes=59)
    assert bench.clean(hours=1) == ()
    clock.advance(minutes=1)
    assert bench.clean(hours=1) == (job.pool_id,)
    assert bench.stored() == {}
    assert bench.state.mappings.pools(BIG) == frozenset()
    bench.check_consistency()


def test_idle_pool_is_removed_at_once_without_grace_period(bench: PoolBench) -> None:
    job = bench.submit(Memory=3000)
    bench.remove(job)
    assert bench.clean(hours=0) == (job.pool_id,)


def test_finished_job_restarts_grace_period(bench: PoolBench, clock: VirtualClock) -> None:
    bench.remove(bench.submit(Memory=3000))
    bench.clean(hours=1)
    clock.advance(minutes=50)
    bench.remove(bench.submit(Memory=3000))
    clock.advance(minutes=20)
    assert bench.clean(hours=1) == ()
    clock.advance(hours=1)
    assert len(bench.clean(hours=1)) == 1


def test_next_job_recreates_removed_pool(bench: PoolBench, clock: VirtualClock) -> None:
    first = bench.submit(Memory=3000)
    bench.remove(first)
    bench.clean(hours=0)
    clock.advance(hours=1)
    second = bench.submit(Memory=3000)
    assert second.pool_id == first.pool_id
    assert second.task_queue_id != first.task_queue_id
    assert bench.state.mappings.queues(second.pool_id) == {BIG, FAR}
    bench.check_consistency()


def test_pools_reach_other_servers(database: Database) -> None:
    server, other = PoolBench(database), PoolBench(database)
    server.put(three_queues())
    job = server.submit(Memory=1000)
    assert other.submit(Memory=1000).pool_id == job.pool_id
    assert other.state.mappings.queues(job.pool_id) == {BIG, SMALL, FAR}


def test_server_with_old_tree_maps_new_job_by_active_tree(database: Database) -> None:
    server, other = PoolBench(database), PoolBench(database)
    server.put(three_queues())
    other.submit(Memory=1000)
    declared = three_queues(parameters={"Memory": {"type": "value"}})
    server.put(declared)
    job = other.submit(Memory=2000)
    assert other.state.tree.version == 2
    assert job.pool_id == pool_id(read_requirements({"Memory": 2000}, "cms", declared.tree.declarations))
    assert other.stored_queues(job.pool_id) == {SMALL}


def test_vos_have_separate_pools(bench: PoolBench) -> None:
    cms = bench.submit(a_user("cms"), Memory=3000)
    lhcb = bench.submit(a_user("lhcb"), Memory=3000)
    assert cms.pool_id != lhcb.pool_id
    assert bench.stored_queues(lhcb.pool_id) == {BIG}


def test_sync_after_new_tree_updates_all_other_pools(database: Database) -> None:
    server, other = PoolBench(database), PoolBench(database)
    server.put(three_queues())
    early, gone = server.submit(Memory=3000), server.submit(Memory=1000)
    other.sync()
    server.put(three_queues(big=3500))
    server.remove(gone)
    server.clean(hours=0)

    late = other.submit(Memory=3600)
    other.sync()

    assert other.state.mappings.queues(early.pool_id) == {BIG, FAR}
    assert other.state.mappings.queues(late.pool_id) == {FAR}
    known = {(mapping.pool_id, mapping.tree_version) for mapping in other.state.mappings.all()}
    assert known == {(early.pool_id, 2), (late.pool_id, 2)}


def test_sync_applies_new_tree_and_removed_pools(database: Database) -> None:
    server, other = PoolBench(database), PoolBench(database)
    server.put(three_queues())
    kept, gone = server.submit(Memory=1000), server.submit(Memory=3000)
    other.sync()
    assert other.state.mappings.queues(gone.pool_id) == {BIG, FAR}
    server.remove(gone)
    server.clean(hours=0)
    server.put(three_queues(big=500))
    woken: list[str] = []
    other.state.access_listeners.append(lambda: woken.append("now"))
    other.sync()
    other.sync()
    assert other.state.tree.version == 2
    assert {mapping.pool_id: mapping.queues for mapping in other.state.mappings.all()} == {kept.pool_id: {SMALL, FAR}}
    assert woken == ["now"]
