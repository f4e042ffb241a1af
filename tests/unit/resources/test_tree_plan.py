"""The changes of a new tree: kept, removed, new and rekeyed pools, and their form on the wire."""

from __future__ import annotations

from datetime import UTC, datetime

from pilotage.job_description import Value
from pilotage.resources.parameters import SHIPPED, Inherit, ParameterDeclaration, ParameterType
from pilotage.resources.pool_mapping import NO_QUEUES, QueueOrder, QueueSet
from pilotage.resources.requirements import pool_id, read_requirements
from pilotage.resources.tree import QueueId, ResourceTree
from pilotage_server.core.queueing.tree_plan import (
    JobGroup,
    PoolChange,
    TreeEffect,
    TreePlan,
    TreeState,
    plan_tree,
    redeclared,
    requires_any,
)
from pilotage_server.core.resources.mappings import PoolMappings
from pilotage_server.core.resources.pools import Pool, mapping_of, new_pool
from pilotage_server.core.resources.tree import ActiveTree
from pilotage_server.rpc.resources import MAX_CHANGES, MAX_QUEUES_NAMED, tree_effect_to_wire
from support.trees import THE_QUEUE, one_queue_tree

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOTHING: frozenset[QueueId] = frozenset()
LATER = datetime(2026, 1, 1, 13, tzinfo=UTC)


def declaring(name: str, type_: str, **more: str) -> dict[str, object]:
    return {name: {"type": type_, **more}}


def a_pool(tree: ResourceTree, **section: Value) -> Pool:
    return new_pool(read_requirements(section, "cms", tree.declarations), NOON)


def a_job_group(pool: Pool, template: int = 1, **section: Value) -> JobGroup:
    return JobGroup(pool.id, 7, template, "cms", section, waiting=1)


def planned(before: ResourceTree, after: ResourceTree, pools: list[Pool], groups: list[JobGroup]) -> TreePlan:
    old = ActiveTree(1, before)
    mappings = PoolMappings(mapping_of(pool, old, NOON) for pool in pools)
    return plan_tree(TreeState(old, tuple(pools), mappings, ()), groups, old.successor(after), (), LATER)


def test_pools_gain_and_lose_queues() -> None:
    small, large = one_queue_tree({"Memory": 1000}), one_queue_tree({"Memory": 4000})
    pool = a_pool(small, Memory=2000)
    assert planned(small, large, [pool], []).effect.changes == (PoolChange(pool.id, {THE_QUEUE}, NOTHING),)
    assert planned(large, small, [pool], []).effect.changes == (PoolChange(pool.id, NOTHING, {THE_QUEUE}),)
    assert planned(large, large, [pool], []).effect.changes == ()


def test_type_and_unit_redeclare_parameter_but_not_inheritance() -> None:
    def change(**declared: object) -> frozenset[str]:
        values = {"type": ParameterType.TAGS, "unit": None, "inherit": Inherit.NEAREST} | declared
        return redeclared(SHIPPED, SHIPPED.extended([ParameterDeclaration("Tags", **values)]))  # type: ignore[arg-type]

    assert change() == frozenset()
    assert change(inherit=Inherit.UNITE) == frozenset()
    assert change(type=ParameterType.VALUE) == {"tags"}
    assert change(unit="MiB") == {"tags"}


def test_dropped_declaration_redeclares_parameter() -> None:
    more = SHIPPED.extended([ParameterDeclaration("OS", ParameterType.VERSION)])
    assert redeclared(SHIPPED, more) == redeclared(more, SHIPPED) == {"os"}


def test_requires_any_ignores_case() -> None:
    assert requires_any({"OS": "el9"}, {"os"})
    assert not requires_any({"Memory": 1}, {"os"})


def test_pool_without_redeclared_parameter_keeps_id_and_is_remapped() -> None:
    before, after = one_queue_tree({"Memory": 1000}), one_queue_tree({"Memory": 3000})
    pool = a_pool(before, Memory=2000)
    plan = planned(before, after, [pool], [])
    assert (plan.kept, plan.removed, plan.new, plan.rekeyed) == ((pool,), (), (), ())
    (mapping,) = plan.mappings.all()
    assert (set(mapping.queues), mapping.stamp) == ({THE_QUEUE}, (2, LATER))
    assert plan.effect.changes == (PoolChange(pool.id, {THE_QUEUE}, NOTHING),)


def test_idle_pool_is_removed_only_if_its_id_changes() -> None:
    before = one_queue_tree()
    after = one_queue_tree(parameters=declaring("OS", "version"))
    pool = a_pool(before, OS="9.1")
    assert planned(before, after, [pool], []).removed == (pool,)
    same = one_queue_tree(parameters=declaring("OS", "value"))
    assert planned(before, same, [pool], []).kept == (pool,)


def test_job_groups_are_rekeyed_to_one_new_pool() -> None:
    before = one_queue_tree(parameters=declaring("Scratch", "value"))
    after = one_queue_tree(parameters=declaring("Scratch", "capacity", unit="MB"))
    number, text = a_pool(before, Scratch=20), a_pool(before, Scratch="20 MB")
    groups = [a_job_group(number, 1, Scratch=20), a_job_group(text, 2, Scratch="20 MB")]
    plan = planned(before, after, [number, text], groups)
    target = pool_id(read_requirements({"Scratch": 20}, "cms", after.declarations))
    assert [move.pool_id for move in plan.rekeyed] == [target, target]
    assert [pool.id for pool in plan.new] == [target]
    assert plan.effect.pools_rekeyed == 2


def test_pool_of_unreadable_jobs_loses_its_mapping() -> None:
    before = one_queue_tree({"Scratch": 50})
    after = one_queue_tree({"Scratch": 50}, parameters=declaring("Scratch", "flag"))
    pool = a_pool(before, Scratch=20)
    plan = planned(before, after, [pool], [a_job_group(pool, Scratch=20)])
    assert [unreadable.group.template_id for unreadable in plan.unreadable] == [1]
    assert plan.kept == (pool,)
    assert plan.mappings.all()[0].mapped is None
    assert plan.effect.changes == (PoolChange(pool.id, NOTHING, {THE_QUEUE}),)


ORDER = QueueOrder(QueueId("CERN", "ce01", f"q{number:04}") for number in range(4000))
ALL = QueueSet(ORDER, (1 << 4000) - 1)


def test_small_changes_are_complete_and_sorted() -> None:
    two = ORDER.queue_set(reversed(ORDER.queues[:2]))
    answer = tree_effect_to_wire(TreeEffect(2, changes=(PoolChange("p", two, NO_QUEUES),)))
    (change,) = answer.changes
    assert [queue.queue for queue in change.gained] == ["q0000", "q0001"]
    assert (change.gained_count, change.lost_count, answer.pools_changed) == (2, 0, 1)


def test_large_changes_name_first_queues_and_count_all() -> None:
    changes = (PoolChange("p", ALL, NO_QUEUES), PoolChange("q", ALL, ALL), PoolChange("r", NO_QUEUES, ALL))
    answer = tree_effect_to_wire(TreeEffect(2, changes=changes))
    named = [(len(change.gained), len(change.lost)) for change in answer.changes]
    assert named == [(4000, 0), (MAX_QUEUES_NAMED - 4000, 0), (0, 0)]
    assert [(change.gained_count, change.lost_count) for change in answer.changes] == [
        (4000, 0),
        (4000, 4000),
        (0, 4000),
    ]


def test_counts_pools_beyond_the_listed_ones() -> None:
    changes = tuple(PoolChange(str(number), ALL, NO_QUEUES) for number in range(MAX_CHANGES + 7))
    answer = tree_effect_to_wire(TreeEffect(2, changes=changes))
    assert (len(answer.changes), answer.pools_changed) == (MAX_CHANGES, MAX_CHANGES + 7)
