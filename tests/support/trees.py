"""Builders of resource trees, and hypothesis strategies for trees and Requirements sections."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from hypothesis import strategies as st

from pilotage.resources.inheritance import EffectiveQueue, effective_queues
from pilotage.resources.requirements import Requirements, read_requirements
from pilotage.resources.tree import QueueId, ResourceTree
from pilotage.resources.tree_reader import tree_from_mapping
from pilotage.text import LARGEST_INTEGER, SMALLEST_INTEGER

Section = Mapping[str, object]
NOTHING: Section = MappingProxyType({})

THE_QUEUE = QueueId("CERN", "ce01", "long")


def a_tree(**top_level: object) -> ResourceTree:
    """Return the tree of this data, which must be valid."""
    return tree_from_mapping({"sites": {}, **top_level})[0]


def one_queue_tree(
    queue: Section = NOTHING, *, ce: Section = NOTHING, site: Section = NOTHING, **top_level: object
) -> ResourceTree:
    """Return a tree with `THE_QUEUE` only; each level has these parameters."""
    queues = {THE_QUEUE.queue: dict(queue)}
    ces = {THE_QUEUE.ce: {**ce, "queues": queues}}
    return a_tree(**{"sites": {THE_QUEUE.site: {**site, "ces": ces}}, **top_level})


def effective_queue(tree: ResourceTree, queue: QueueId, vo: str | None) -> EffectiveQueue:
    """Return one queue with its effective values for `vo`."""
    (found,) = (each for each in effective_queues(tree, vo) if each.id == queue)
    return found


def a_queue(vo: str | None = "cms", **parameters: object) -> EffectiveQueue:
    """Return `THE_QUEUE` with these parameters and its effective values for `vo`."""
    return effective_queue(one_queue_tree(parameters), THE_QUEUE, vo)


def requirements_of(vo: str = "cms", **section: object) -> Requirements:
    """Return the requirements of a section, read with the built-in declarations."""
    return read_requirements(section, vo)


NAMES = ("Memory", "Disk", "CPUs", "MaxWallTime", "Tags", "RequiredTags", "OS", "CPUModel", "Production", "KSI2K")
VOS = ("cms", "ATLAS", "lhcb")

WORDS = st.sampled_from(("gpu", "GPU", "el9", "arm", "auto", "any", "8", "true"))
NUMBERS = st.integers(0, 20) | st.sampled_from((0.5, 2.5, 8.0))


def _one_or_many(element: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return element | st.lists(element, min_size=1, max_size=3)


_REQUIREMENTS = {
    "Memory": _one_or_many(NUMBERS | st.sampled_from(("4 MB", "0.01 GB"))),
    "Disk": _one_or_many(NUMBERS),
    "CPUs": _one_or_many(NUMBERS),
    "MaxWallTime": _one_or_many(NUMBERS | st.sampled_from(("10 s", "1 min"))),
    "Tags": _one_or_many(WORDS),
    "OS": _one_or_many(WORDS),
    "CPUModel": _one_or_many(WORDS),
    "Production": _one_or_many(st.booleans()),
    "KSI2K": _one_or_many(NUMBERS),
}

sections = st.fixed_dictionaries({}, optional=_REQUIREMENTS)
"""Valid Requirements sections."""

_INTEGERS = st.integers(SMALLEST_INTEGER, LARGEST_INTEGER)
_FLOATS = st.floats(allow_nan=False, allow_infinity=False)
_TEXTS = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="\0"))
scalars = st.booleans() | NUMBERS | WORDS | _INTEGERS | _FLOATS | _TEXTS
values = scalars | st.lists(scalars, max_size=3)
"""Values that a tree may contain."""

_stated = st.dictionaries(st.sampled_from(NAMES), values, max_size=3)
_access = st.fixed_dictionaries(
    {},
    optional={
        "VOs": st.lists(st.sampled_from(VOS), max_size=2),
        "Enabled": st.booleans(),
        "RequiredTags": st.lists(WORDS, max_size=2),
        "Platform": st.lists(WORDS, max_size=2),
    },
)
_level_without_overlays = st.builds(lambda stated, access: {**stated, **access}, _stated, _access)
_overlays = st.fixed_dictionaries(
    {}, optional={"ForVO": st.dictionaries(st.sampled_from(VOS[:2]), _level_without_overlays)}
)
levels = st.builds(lambda level, overlays: {**level, **overlays}, _level_without_overlays, _overlays)
"""The parameters of one level of a tree, with overlays."""


def _nested(key: str, inner: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    nodes = st.dictionaries(st.sampled_from(("a", "B")), inner, min_size=1)
    return st.builds(lambda level, inner_levels: {**level, key: inner_levels}, levels, nodes)


_sites = _nested("ces", _nested("queues", levels))

trees = st.fixed_dictionaries(
    {"sites": st.dictionaries(st.sampled_from(("s1", "S2")), _sites, min_size=1)},
    optional={
        "defaults": levels,
        "parameters": st.just({"Tags": {"type": "tags", "inherit": "unite"}}),
        "platforms": st.dictionaries(st.sampled_from(("el9", "arm")), st.lists(WORDS, max_size=2)),
    },
)
"""Data of valid trees."""
