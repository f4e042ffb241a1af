"""What must hold for all trees: inheritance, totality of evaluation, and the fast mapping of pools."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from pilotage.errors import InvalidTreeError
from pilotage.job_description import Value
from pilotage.resources.eligibility import Eligible, NoAccess, Refused, eligibility, full_verdict
from pilotage.resources.inheritance import effective_queues
from pilotage.resources.pool_mapping import PoolMapper, map_pools
from pilotage.resources.requirements import JobNeeds, pool_id, read_requirements
from pilotage.resources.selection import get_eligible_nodes
from pilotage.resources.tree import Origin, QueueId, ResourceTree
from pilotage.resources.tree_reader import tree_from_mapping
from pilotage.text import fold
from support.trees import VOS, levels, sections, trees

Plain = dict[str, object]
vos = st.sampled_from((*VOS, "nobody"))
NEEDS = JobNeeds(sites=("s1",), platforms=("el9",), cpu_time_s=1, cpus=8, memory_mib=8, disk_mib=8, gpus=1)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def read(data: object) -> ResourceTree:
    """Return the tree of plain data without faults."""
    return tree_from_mapping(data)[0]


def stated_along(tree: ResourceTree, queue: QueueId, vo: str | None) -> Iterator[tuple[str, Value]]:
    """Return what the levels above and at a queue state, the nearest first, written without the resolver."""
    (site,) = (site for site in tree.sites if site.name == queue.site)
    (ce,) = (ce for ce in site.ces if ce.name == queue.ce)
    (own,) = (own for own in ce.queues if own.name == queue.queue)
    for states in (own.stated, ce.stated, site.stated, tree.defaults):
        if vo is not None and fold(vo) in states.for_vo:
            yield from states.for_vo[fold(vo)].parameters.items()
        yield from states.parameters.items()


@given(trees, vos | st.none())
def test_a_queue_has_its_own_value_or_that_of_its_nearest_ancestor(data: Plain, vo: str | None) -> None:
    tree = read(data)
    united = tree.declarations.united()
    for queue in effective_queues(tree, vo):
        nearest: dict[str, Value] = {}
        for name, value in stated_along(tree, queue.id, vo):
            if fold(name) != "vos" or value != ():
                nearest.setdefault(fold(name), value)
        offered = {name: effective.value for name, effective in queue.values.items()}
        assert {name for name in offered if name != "vos"} == {name for name in nearest if name != "vos"}
        for name, value in nearest.items():
            assert name in united or offered[name] == value


@given(trees, vos)
def test_every_value_can_be_found_where_its_origin_says(data: Plain, vo: str) -> None:
    tree = read(data)
    for queue in effective_queues(tree, vo):
        for effective in queue.values.values():
            assert effective.origins
            assert all(isinstance(origin, Origin) for origin in effective.origins)
            assert effective.value == () or effective.name in dict(stated_along(tree, queue.id, vo))


@given(trees, sections, vos)
def test_evaluation_is_total_and_a_refusal_has_reasons(data: Plain, section: Plain, vo: str) -> None:
    requirements = read_requirements(section, vo)
    for queue in effective_queues(read(data), vo):
        for verdict in (eligibility(requirements, queue), full_verdict(requirements, NEEDS, queue, (), NOW)):
            match verdict:
                case Refused(refusals):
                    assert all(str(refusal) for refusal in refusals)
                case NoAccess(_, admitted):
                    assert vo not in admitted
                case Eligible():
                    assert queue.is_enabled()


@given(trees, st.lists(st.tuples(sections, vos), max_size=4))
def test_mapping_many_pools_agrees_with_the_evaluator(data: Plain, asked: list[tuple[Plain, str]]) -> None:
    tree = read(data)
    pools = {pool_id(pool): pool for pool in (read_requirements(section, vo) for section, vo in asked)}
    mapping = map_pools(pools, tree)
    assert mapping.keys() == pools.keys()
    for pool, requirements in pools.items():
        offered = effective_queues(tree, requirements.vo)
        expected = [queue.id for queue in offered if eligibility(requirements, queue) == Eligible()]
        assert list(mapping[pool]) == expected


@given(trees, vos)
def test_jobs_without_requirements_go_where_the_evaluator_says(data: Plain, vo: str) -> None:
    tree = read(data)
    open_queues = [queue.id for queue in effective_queues(tree, vo) if eligibility(None, queue) == Eligible()]
    assert list(PoolMapper(tree).queues_without_requirements(vo)) == open_queues


@given(trees, sections, vos)
def test_eligible_nodes_are_the_eligible_queues_as_a_tree(data: Plain, section: Plain, vo: str) -> None:
    tree = read(data)
    requirements = read_requirements(section, vo, tree.declarations)
    nodes = get_eligible_nodes(tree, vo, queue_select=section)
    flat = [QueueId(site, ce, queue) for site, ces in nodes.items() for ce, queues in ces.items() for queue in queues]
    assert flat == list(PoolMapper(tree).queues_of(requirements))
    assert all(ces and all(ces.values()) for ces in nodes.values())


@given(trees, levels, sections, vos)
def test_adding_a_queue_takes_no_match_away(data: Plain, added: Plain, section: Plain, vo: str) -> None:
    requirements = read_requirements(section, vo)
    before = set(PoolMapper(read(data)).queues_of(requirements))
    sites = {**data["sites"], "new": {"ces": {"ce": {"queues": {"q": added}}}}}  # type: ignore[dict-item]
    assert before <= set(PoolMapper(read({**data, "sites": sites})).queues_of(requirements))


@given(trees, sections, vos)
def test_asking_for_less_takes_no_match_away(data: Plain, section: Plain, vo: str) -> None:
    # Tags are kept: a queue may take only those who ask for them.
    mapper = PoolMapper(read(data))
    for name in section.keys() - {"Tags"}:
        less = {other: asked for other, asked in section.items() if other != name}
        all_asked, less_asked = (read_requirements(each, vo) for each in (section, less))
        assert set(mapper.queues_of(all_asked)) <= set(mapper.queues_of(less_asked))


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("sites", "ces", "queues", "ForVO", "VOs", "Enabled", "x", "")), inner)
    ),
    max_leaves=12,
)


@given(json_like)
def test_any_plain_data_is_a_tree_or_is_refused(data: object) -> None:
    try:
        tree, _ = tree_from_mapping(data)
    except InvalidTreeError:
        return
    assert len(effective_queues(tree, None)) == len(list(tree.queue_ids()))
