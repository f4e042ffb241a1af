"""The tree reader: a tree is accepted whole, or rejected with all faults and their paths."""

from __future__ import annotations

import datetime

import pytest

from pilotage.errors import InvalidInputError, InvalidTreeError
from pilotage.resources.parameters import Inherit, ParameterType
from pilotage.resources.tree import QueueId
from pilotage.resources.tree_reader import tree_from_mapping
from support.trees import a_tree


def faults_of(data: object) -> dict[str, str]:
    """Return the faults of `data` by path."""
    with pytest.raises(InvalidTreeError) as rejected:
        tree_from_mapping(data)
    return {violation.where: violation.why for violation in rejected.value.violations}


def site(**content: object) -> dict[str, object]:
    """Return a tree with only the site CERN."""
    return {"sites": {"CERN": content}}


def test_nodes_keep_order_and_spelling() -> None:
    tree = a_tree(
        sites={
            "b": {"ces": {"Y": {"queues": {"q2": {}, "q1": {}}}, "X": {"queues": {"q": {}}}}},
            "a": {"ces": {"Y": {"queues": {"q": None}}}},
        }
    )
    assert [str(queue) for queue in tree.queue_ids()] == ["b/Y/q2", "b/Y/q1", "b/X/q", "a/Y/q"]
    assert QueueId("a", "Y", "q") in tree
    assert QueueId("a", "X", "q") not in tree


def test_ignores_unknown_top_level_key_with_warning() -> None:
    tree, warnings = tree_from_mapping({"sites": {}, "provenance": [1], "Defaults": {"Memory": 1}})
    assert [str(warning) for warning in warnings] == ["provenance: is unknown and is ignored"]
    assert tree.defaults.parameters == {"Memory": 1}


@pytest.mark.parametrize("data", [None, [], "sites", 1, {}, {"defaults": {}}])
def test_rejects_data_without_sites(data: object) -> None:
    assert list(faults_of(data)) == [""]


def test_error_lists_all_faults_with_paths() -> None:
    assert faults_of(
        {
            "sites": {
                "CERN": {
                    "Memory": {"min": 1},
                    "queues": {"long": {}},
                    "Enabled": "no",
                    "VOs": ["cms", 7],
                    "ces": {
                        "ce01": {"Disk": None, "queues": {"long": {"Tags": ["a", ["b"]], "X": float("nan")}}},
                        "ce02": [],
                        "ce03": {"enabled": [True]},
                    },
                }
            },
            "parameters": {
                "A": {"type": "number"},
                "B": {"unit": "MB"},
                "C": {"type": "flag", "kind": 1},
                "D": {"type": "flag", "unit": 8},
            },
            "platforms": {"el9": [1]},
        }
    ) == {
        "sites.CERN.Memory": "is a section, not a value",
        "sites.CERN.queues": "does not belong at this level",
        "sites.CERN.Enabled": "'no' is neither true nor false",
        "sites.CERN.VOs": "['cms', 7] is not the name of a VO, nor a list of names",
        "sites.CERN.ces.ce01.Disk": "has no value",
        "sites.CERN.ces.ce01.queues.long.Tags[1]": "is a list inside a list, not a number, text, true or false",
        "sites.CERN.ces.ce01.queues.long.X": "nan is not a finite number",
        "sites.CERN.ces.ce02": "[] is not a section",
        "sites.CERN.ces.ce03.enabled": "[True] is neither true nor false",
        "parameters.A.type": "'number' is none of capacity, value, tags, version, flag",
        "parameters.B.type": "is missing",
        "parameters.C.kind": "is not known; a declaration has type, unit and inherit",
        "parameters.D.unit": "8 is not a text",
        "platforms.el9": "is not a platform's name, nor a list of names",
    }


def test_rejects_parameters_that_differ_only_in_case() -> None:
    assert list(faults_of(site(Memory=1, memory=2))) == ["sites.CERN.memory"]
    assert list(faults_of(site(ForVO={"cms": {}, "CMS": {}}))) == ["sites.CERN.ForVO.CMS"]


def test_queue_names_are_case_sensitive() -> None:
    tree = a_tree(sites={"s": {"ces": {"c": {"queues": {"long": {}, "LONG": {}}}}}})
    assert len(list(tree.queue_ids())) == 2


@pytest.mark.parametrize("name", ["", "  ", 8, True])
def test_rejects_names_that_are_not_text_or_blank(name: object) -> None:
    assert "cannot be a name" in next(iter(faults_of({"sites": {name: {}}}).values()))


def test_slash_is_allowed_only_in_queue_names() -> None:
    assert list(faults_of({"sites": {"a/b": {}}})) == ["sites.a/b"]
    tree = a_tree(sites={"s": {"ces": {"c": {"queues": {"slurm/long": {}}}}}})
    (queue,) = tree.queue_ids()
    assert QueueId.parse(str(queue)) == queue


def test_error_for_date_suggests_quotes() -> None:
    assert "put it in quotes" in faults_of(site(Since=datetime.date(2026, 1, 1)))["sites.CERN.Since"]


def test_declarations_extend_and_replace_shipped_ones() -> None:
    tree = a_tree(
        parameters={
            "SoftwareTag": {"type": "TAGS", "inherit": "unite"},
            "memory": {"type": "capacity", "unit": "GB"},
            "Disk": {"unit": "TB"},
        }
    )
    software, memory, disk = (tree.declarations.get(name) for name in ("softwaretag", "Memory", "Disk"))
    assert software is not None
    assert (software.type, software.inherit) == (ParameterType.TAGS, Inherit.UNITE)
    assert memory is not None
    assert memory.unit == "GB"
    assert disk is not None
    assert (disk.type, disk.unit) == (ParameterType.CAPACITY, "TB")
    assert tree.declarations.get("CPUs") is not None


def test_only_tags_and_values_can_be_united() -> None:
    faults = faults_of({"sites": {}, "parameters": {"Memory": {"type": "capacity", "inherit": "unite"}}})
    assert list(faults) == ["parameters.Memory.inherit"]


@pytest.mark.parametrize("name", ["Enabled", "vos"])
def test_access_parameters_cannot_be_united(name: str) -> None:
    declarations = {name: {"type": "value", "inherit": "unite"}}
    assert list(faults_of({"sites": {}, "parameters": declarations})) == [f"parameters.{name}.inherit"]


@pytest.mark.parametrize("vos", ["", ["cms", " "]])
def test_rejects_blank_vo_name(vos: object) -> None:
    assert "is not the name of a VO" in faults_of(site(VOs=vos))["sites.CERN.VOs"]


@pytest.mark.parametrize("text", ["", "CERN", "CERN/ce01", "CERN//long", "/ce01/long", "CERN/ce01/"])
def test_rejects_text_that_is_no_queue_id(text: str) -> None:
    with pytest.raises(InvalidInputError, match="SITE/CE/QUEUE"):
        QueueId.parse(text)
