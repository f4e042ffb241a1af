"""The parameter Isolation: requirements accept stronger levels, and wrong levels are refused where they are written."""

from __future__ import annotations

from typing import Any

import pytest

from pilotage.errors import InvalidRequirementsError, InvalidTreeError
from pilotage.resources.eligibility import Eligible, Refused, eligibility
from pilotage.resources.inheritance import effective_queues
from pilotage.resources.parameters import ISOLATION, SHIPPED
from pilotage.resources.pool_mapping import PoolMapper
from pilotage.resources.requirements import pool_id, read_requirements
from pilotage.resources.tree_reader import tree_from_mapping
from pilotage.values.isolation import Isolation

QUEUES = ("none", "owner", "uid", "namespace")


def a_tree(**top: Any) -> dict[str, Any]:
    """Return a tree with a queue of each level, named by it, and one without a level."""
    queues: dict[str, Any] = {level: {"Isolation": level.upper()} for level in QUEUES}
    return {"sites": {"CERN": {"ces": {"ce": {"queues": {**queues, "silent": {}}}}}}, **top}


def accepting(asked: Any) -> list[str]:
    """Return the names of the queues that satisfy a requirement, by the evaluator and by the mapping of pools."""
    tree, _ = tree_from_mapping(a_tree())
    requirements = read_requirements({"isolation": asked}, "lhcb", tree.declarations)
    queues = effective_queues(tree, "lhcb")
    found = [queue.id.queue for queue in queues if isinstance(eligibility(requirements, queue), Eligible)]
    assert [queue.queue for queue in PoolMapper(tree).queues_of(requirements)] == found
    return found


def test_shipped_levels_are_those_of_pilots() -> None:
    declaration = SHIPPED.get(ISOLATION)
    assert declaration is not None
    assert declaration.levels == tuple(Isolation)


@pytest.mark.parametrize(
    ("asked", "accepted"),
    [
        ("namespace", ["namespace"]),
        ("UID", ["uid", "namespace"]),
        ("owner", ["owner", "uid", "namespace"]),
        ("none", ["none", "owner", "uid", "namespace"]),
        (["namespace", "owner"], ["owner", "uid", "namespace"]),
    ],
)
def test_requirement_accepts_its_level_and_stronger_ones(asked: Any, accepted: list[str]) -> None:
    assert accepting(asked) == accepted


def test_refusal_names_both_levels() -> None:
    tree, _ = tree_from_mapping(a_tree())
    requirements = read_requirements({"Isolation": "uid"}, "lhcb", tree.declarations)
    verdict = eligibility(requirements, effective_queues(tree, "lhcb")[1])
    assert isinstance(verdict, Refused)
    assert str(verdict.refusals[0]) == 'Isolation: "OWNER" is weaker than asked (stated by queue)'


def test_equal_levels_are_one_pool() -> None:
    asked = ("uid", "UID", ["uid", "namespace"])
    assert len({pool_id(read_requirements({"Isolation": each}, "lhcb")) for each in asked}) == 1


@pytest.mark.parametrize("asked", ["strict", 1, True, ["uid", "strict"]])
def test_unknown_level_is_refused_in_requirements(asked: Any) -> None:
    with pytest.raises(InvalidRequirementsError, match=r"Isolation: .* is none of the levels namespace, uid"):
        read_requirements({"Isolation": asked}, "lhcb")


@pytest.mark.parametrize("stated", ["strict", 3, True, ["uid"], ""])
@pytest.mark.parametrize("place", ["defaults", "ForVO"])
def test_unknown_level_is_refused_in_the_tree(stated: Any, place: str) -> None:
    values = {"isolation": stated}
    top = {"defaults": values if place == "defaults" else {"ForVO": {"cms": values}}}
    path = "defaults.isolation" if place == "defaults" else r"defaults.ForVO.cms.isolation"
    with pytest.raises(InvalidTreeError, match=rf"{path}: .* is none of namespace, uid, owner, none"):
        tree_from_mapping(a_tree(**top))


def test_levels_cannot_be_declared_anew() -> None:
    with pytest.raises(InvalidTreeError, match=r"parameters.isolation: cannot be declared: its levels are fixed"):
        tree_from_mapping(a_tree(parameters={"isolation": {"type": "capacity"}}))
