"""The pool mappings in memory: both directions agree, and the newest mapping wins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.resources.pool_mapping import QueueOrder
from pilotage.resources.tree import QueueId
from pilotage_server.core.resources.mappings import PoolMapping, PoolMappings

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
QUEUES = tuple(QueueId("CERN", "ce01", name) for name in ("a", "b", "c"))
A, B, C = QUEUES
ORDER = QueueOrder(QUEUES)


def a_mapping(pool: str = "p", *queues: QueueId, minute: int = 0, version: int = 1, vo: str = "cms") -> PoolMapping:
    return PoolMapping(pool, vo, ORDER.queue_set(queues), NOON + timedelta(minutes=minute), version)


mappings = st.builds(
    lambda pool, queues, minute, version: a_mapping(pool, *queues, minute=minute, version=version),
    st.sampled_from(("p", "q", "r")),
    st.sets(st.sampled_from(QUEUES)),
    st.integers(0, 3),
    st.integers(1, 3),
)


def test_unknown_pool_has_no_queues() -> None:
    assert PoolMappings().queues("p") == frozenset()
    assert PoolMappings().get("p") is None


def test_unmapped_pool_has_no_queues() -> None:
    known = PoolMappings([PoolMapping("p", "cms")])
    assert known.queues("p") == frozenset()
    with pytest.raises(AssertionError, match="nowhere"):
        PoolMapping("p", "cms", ORDER.queue_set([A]))


def test_sites_of_a_pool_are_listed_if_they_are_few() -> None:
    queues = [QueueId(f"SITE{site}", "ce", queue) for site in range(3) for queue in "ab"]
    order = QueueOrder(queues)
    pools = {"p": queues, "last": [queues[5], queues[2]]}
    known = PoolMappings(PoolMapping(pool, "cms", order.queue_set(of), NOON, 1) for pool, of in pools.items())
    assert known.few_sites("p", 3) == ("SITE0", "SITE1", "SITE2")
    assert known.few_sites("last", 2) == ("SITE1", "SITE2")
    assert known.few_sites("p", 2) == known.few_sites("p", 0) == known.few_sites("unknown", 3) == ()


def test_newer_mapping_replaces_older_one() -> None:
    known = PoolMappings([a_mapping("p", A, B)])
    known.put([a_mapping("p", B, C, minute=1)])
    assert known.queues("p") == {B, C}
    assert [known.pools(queue) for queue in QUEUES] == [set(), {"p"}, {"p"}]


def test_older_mapping_is_ignored() -> None:
    known = PoolMappings([a_mapping("p", A, minute=5)])
    known.put([a_mapping("p", B)])
    assert known.queues("p") == {A}


def test_tree_version_outranks_time() -> None:
    known = PoolMappings([a_mapping("p", A, version=2)])
    known.put([a_mapping("p", B, version=1, minute=5)])
    assert known.queues("p") == {A}


def test_removed_pool_has_no_queues() -> None:
    mapping = a_mapping("p", A)
    known = PoolMappings([mapping])
    known.remove([mapping, a_mapping("unknown", A)])
    assert (len(known), len(known.queues("p")), len(known.pools(A))) == (0, 0, 0)


def test_late_removal_does_not_remove_recreated_pool() -> None:
    removed = a_mapping("p", A)
    known = PoolMappings([a_mapping("p", A, minute=1)])
    known.remove([removed])
    assert known.pools(A) == {"p"}


def test_pools_of_queue_can_be_filtered_by_vo() -> None:
    known = PoolMappings([a_mapping("p", A), a_mapping("q", A, vo="LHCb")])
    assert known.pools(A) == {"p", "q"}
    assert known.pools(A, ["lhcb"]) == {"q"}


@given(st.lists(st.tuples(st.booleans(), mappings)))
def test_both_directions_always_agree(changes: list[tuple[bool, PoolMapping]]) -> None:
    known = PoolMappings()
    for is_added, mapping in changes:
        if is_added:
            known.put([mapping])
        else:
            known.remove([mapping])
    for queue in QUEUES:
        assert known.pools(queue) == {mapping.pool_id for mapping in known.all() if queue in mapping.queues}


@given(st.lists(mappings))
def test_order_of_arrival_does_not_matter(arrivals: list[PoolMapping]) -> None:
    by_stamp = {(mapping.pool_id, mapping.stamp): mapping for mapping in arrivals}
    distinct = list(by_stamp.values())
    forwards, backwards = PoolMappings(distinct), PoolMappings(reversed(distinct))
    assert set(forwards.all()) == set(backwards.all())
