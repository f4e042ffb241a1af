"""What a new tree changes, worked out on values alone."""

from __future__ import annotations

from datetime import UTC, datetime

from pilotage.job_description import Value
from pilotage.resources.parameters import SHIPPED, Inherit, ParameterDeclaration, ParameterType
from pilotage.resources.requirements import pool_id, read_requirements
from pilotage.resources.tree import QueueId, ResourceTree
from pilotage_server.core.queueing.tree_plan import (
    JobGroup,
    PoolChange,
    TreePlan,
    TreeState,
    plan_tree,
    pool_change,
    redeclared,
    requires_any,
)
from pilotage_server.core.resources.mappings import PoolMappings
from pilotage_server.core.resources.pools import Pool, mapping_of, new_pool
from pilotage_server.core.resources.tree import ActiveTree
from support.trees import THE_QUEUE, a_tree_of_one_queue

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
NOTHING: frozenset[QueueId] = frozenset()
LATER = datetime(2026, 1, 1, 13, tzinfo=UTC)


def declaring(name: str, type_: str, **more: str) -> dict[str, object]:
    return {name: {"type": type_, **more}}


def a_pool(tree: ResourceTree, **section: Value) -> Pool:
    return new_pool(read_requirements(section, "cms", tree.declarations), NOON)


def a_holding(pool: Pool, template: int = 1, **section: Value) -> JobGroup:
    return JobGroup(pool.id, 7, template, "cms", section, waiting=1)


def planned(before: ResourceTree, after: ResourceTree, pools: list[Pool], holdings: list[JobGroup]) -> TreePlan:
    old = ActiveTree(1, before)
    mappings = PoolMappings(mapping_of(pool, old, NOON) for pool in pools)
    return plan_tree(TreeState(old, tuple(pools), mappings, ()), holdings, old.successor(after), (), LATER)


def test_a_pool_change_names_what_is_gained_and_lost() -> None:
    assert pool_change("p", NOTHING, {THE_QUEUE}) == PoolChange("p", {THE_QUEUE}, NOTHING)
    assert pool_change("p", {THE_QUEUE}, NOTHING) == PoolChange("p", NOTHING, {THE_QUEUE})
    assert pool_change("p", {THE_QUEUE}, {THE_QUEUE}) is None


def test_another_type_or_unit_is_a_redeclaration_and_another_inheritance_is_not() -> None:
    def change(**declared: object) -> frozenset[str]:
        values = {"type": ParameterType.TAGS, "unit": None, "inherit": Inherit.NEAREST} | declared
        return redeclared(SHIPPED, SHIPPED.extended([ParameterDeclaration("Tags", **values)]))  # type: ignore[arg-type]

    assert change() == frozenset()
    assert change(inherit=Inherit.UNITE) == frozenset()
    assert change(type=ParameterType.VALUE) == {"tags"}
    assert change(transaction="MiB") == {"tags"}


def test_a_declaration_that_is_dropped_is_a_redeclaration() -> None:
    more = SHIPPED.extended([ParameterDeclaration("OS", ParameterType.VERSION)])
    assert redeclared(SHIPPED, more) == redeclared(more, SHIPPED) == {"os"}


def test_names_are_asked_for_in_any_letter_case() -> None:
    assert requires_any({"OS": "el9"}, {"os"})
    assert not requires_any({"Memory": 1}, {"os"})


def test_a_pool_that_asks_for_nothing_redeclared_keeps_its_id_and_is_mapped_anew() -> None:
    before, after = a_tree_of_one_queue({"Memory": 1000}), a_tree_of_one_queue({"Memory": 3000})
    pool = a_pool(before, Memory=2000)
    plan = planned(before, after, [pool], [])
    assert (plan.kept, plan.removed, plan.new, plan.rekeyed) == ((pool,), (), (), ())
    (mapping,) = plan.mappings.all()
    assert (set(mapping.queues), mapping.stamp) == ({THE_QUEUE}, (2, LATER))
    assert plan.effect.changes == (PoolChange(pool.id, {THE_QUEUE}, NOTHING),)


def test_an_idle_pool_that_means_something_else_goes_and_one_that_means_the_same_stays() -> None:
    before = a_tree_of_one_queue()
    after = a_tree_of_one_queue(parameters=declaring("OS", "version"))
    gone = a_pool(before, OS="9.1")
    assert planned(before, after, [gone], []).removed == (gone,)
    same = a_tree_of_one_queue(parameters=declaring("OS", "value"))
    assert planned(before, same, [gone], []).kept == (gone,)


def test_jobs_come_to_a_pool_that_exists_already_without_making_it_again() -> None:
    before = a_tree_of_one_queue(parameters=declaring("Scratch", "value"))
    after = a_tree_of_one_queue(parameters=declaring("Scratch", "capacity", transaction="MB"))
    number, text = a_pool(before, Scratch=20), a_pool(before, Scratch="20 MB")
    holdings = [a_holding(number, 1, Scratch=20), a_holding(text, 2, Scratch="20 MB")]
    plan = planned(before, after, [number, text], holdings)
    target = pool_id(read_requirements({"Scratch": 20}, "cms", after.declarations))
    assert [move.pool_id for move in plan.rekeyed] == [target, target]
    assert [pool.id for pool in plan.new] == [target]
    assert plan.effect.pools_rekeyed == 2


def test_jobs_without_a_meaning_leave_their_pool_without_a_mapping() -> None:
    before = a_tree_of_one_queue({"Scratch": 50})
    after = a_tree_of_one_queue({"Scratch": 50}, parameters=declaring("Scratch", "flag"))
    pool = a_pool(before, Scratch=20)
    plan = planned(before, after, [pool], [a_holding(pool, Scratch=20)])
    assert [unreadable.group.template_id for unreadable in plan.unreadable] == [1]
    assert plan.kept == (pool,)
    assert plan.mappings.all()[0].mapped is None
    assert plan.effect.changes == (PoolChange(pool.id, NOTHING, {THE_QUEUE}),)
