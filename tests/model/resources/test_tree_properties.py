"""Properties of all trees: inheritance, total evaluation, and the mapping of pools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from pilotage.errors import InvalidTreeError
from pilotage.job_description import Value
from pilotage.resources.comparisons import as_text, elements_of
from pilotage.resources.eligibility import Eligible, NoAccess, Refused, eligibility, full_verdict
from pilotage.resources.inheritance import effective_queues
from pilotage.resources.pool_mapping import PoolMapper, map_pools
from pilotage.resources.requirements import JobNeeds, pool_id, read_requirements
from pilotage.resources.selection import get_eligible_nodes
from pilotage.resources.tree import Level, Origin, QueueId, ResourceTree, StatedParameters
from pilotage.resources.tree_reader import tree_from_mapping
from pilotage.text import fold
from support.trees import VOS, levels, sections, trees

PlainData = dict[str, object]
vos = st.sampled_from((*VOS, "nobody"))
NEEDS = JobNeeds(sites=("s1",), platforms=("el9",), cpu_time_s=1, cpus=8, memory_mib=8, disk_mib=8, gpus=1)
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def read(data: object) -> ResourceTree:
    """Return the tree that plain data describe."""
    return tree_from_mapping(data)[0]


def levels_of(tree: ResourceTree, queue: QueueId) -> dict[Level, StatedParameters]:
    """Return the levels of a queue, the innermost first."""
    (site,) = (site for site in tree.sites if site.name == queue.site)
    (ce,) = (ce for ce in site.ces if ce.name == queue.ce)
    (own,) = (own for own in ce.queues if own.name == queue.queue)
    return {Level.QUEUE: own.stated, Level.CE: ce.stated, Level.SITE: site.stated, Level.DEFAULTS: tree.defaults}


def stated_along(tree: ResourceTree, queue: QueueId, vo: str | None) -> Iterator[tuple[str, Value]]:
    """Yield what the levels of a queue state, the innermost first, without the resolver."""
    for stated in levels_of(tree, queue).values():
        if vo is not None and fold(vo) in stated.for_vo:
            yield from stated.for_vo[fold(vo)].parameters.items()
        yield from stated.parameters.items()


def value_at(levels: Mapping[Level, StatedParameters], origin: Origin, name: str) -> Value:
    """Return the value of a parameter at its origin; raises KeyError if there is none."""
    stated = levels[origin.level]
    parameters = stated.parameters if origin.vo is None else stated.for_vo[fold(origin.vo)].parameters
    return {fold(other): value for other, value in parameters.items()}[fold(name)]


@given(trees, vos | st.none())
def test_effective_value_is_that_of_the_nearest_level(data: PlainData, vo: str | None) -> None:
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
def test_effective_value_is_stated_at_its_origins(data: PlainData, vo: str) -> None:
    tree = read(data)
    for queue in effective_queues(tree, vo):
        levels = levels_of(tree, queue.id)
        for effective in queue.values.values():
            stated = [value_at(levels, origin, effective.name) for origin in effective.origins]
            if len(stated) == 1:
                assert stated == [effective.value]
            else:
                united = {as_text(element) for value in stated for element in elements_of(value)}
                assert stated
                assert united == {as_text(element) for element in elements_of(effective.value)}


@given(trees, sections, vos)
def test_evaluation_is_total_and_refusals_have_reasons(data: PlainData, section: PlainData, vo: str) -> None:
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
def test_mapping_agrees_with_eligibility(data: PlainData, sections_by_vo: list[tuple[PlainData, str]]) -> None:
    tree = read(data)
    pools = {pool_id(pool): pool for pool in (read_requirements(section, vo) for section, vo in sections_by_vo)}
    mapping = map_pools(pools, tree)
    assert mapping.keys() == pools.keys()
    for pool, requirements in pools.items():
        offered = effective_queues(tree, requirements.vo)
        expected = [queue.id for queue in offered if eligibility(requirements, queue) == Eligible()]
        assert list(mapping[pool]) == expected


@given(trees, vos)
def test_queues_without_requirements_agree_with_eligibility(data: PlainData, vo: str) -> None:
    tree = read(data)
    open_queues = [queue.id for queue in effective_queues(tree, vo) if eligibility(None, queue) == Eligible()]
    assert list(PoolMapper(tree).queues_without_requirements(vo)) == open_queues


@given(trees, sections, vos)
def test_eligible_nodes_are_the_eligible_queues_as_a_tree(data: PlainData, section: PlainData, vo: str) -> None:
    tree = read(data)
    requirements = read_requirements(section, vo, tree.declarations)
    nodes = get_eligible_nodes(tree, vo, queue_select=section)
    flat = [QueueId(site, ce, queue) for site, ces in nodes.items() for ce, queues in ces.items() for queue in queues]
    assert flat == list(PoolMapper(tree).queues_of(requirements))
    assert all(ces and all(ces.values()) for ces in nodes.values())


@given(trees, levels, sections, vos)
def test_adding_a_queue_removes_no_match(data: PlainData, added: PlainData, section: PlainData, vo: str) -> None:
    requirements = read_requirements(section, vo)
    before = set(PoolMapper(read(data)).queues_of(requirements))
    sites = {**data["sites"], "new": {"ces": {"ce": {"queues": {"q": added}}}}}  # type: ignore[dict-item]
    assert before <= set(PoolMapper(read({**data, "sites": sites})).queues_of(requirements))


@given(trees, sections, vos)
def test_dropping_a_requirement_removes_no_match(data: PlainData, section: PlainData, vo: str) -> None:
    # Tags are kept: a queue may take only jobs that require its tags.
    mapper = PoolMapper(read(data))
    for name in section.keys() - {"Tags"}:
        fewer = {other: value for other, value in section.items() if other != name}
        all_requirements, fewer_requirements = (read_requirements(each, vo) for each in (section, fewer))
        assert set(mapper.queues_of(all_requirements)) <= set(mapper.queues_of(fewer_requirements))


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("sites", "ces", "queues", "ForVO", "VOs", "Enabled", "x", "")), inner)
    ),
    max_leaves=12,
)


@given(json_like)
def test_any_plain_data_is_a_tree_or_is_rejected(data: object) -> None:
    try:
        tree, _ = tree_from_mapping(data)
    except InvalidTreeError:
        return
    assert len(effective_queues(tree, None)) == len(list(tree.queue_ids()))
