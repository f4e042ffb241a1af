"""Requirements sections: canonical form, pool ids and errors."""

from __future__ import annotations

import json

import pytest

from pilotage.errors import InvalidRequirementsError
from pilotage.resources.parameters import SHIPPED, ParameterDeclaration, ParameterType
from pilotage.resources.requirements import pool_id, read_requirements, short_pool_id
from support.trees import requirements_of

RFC_EXAMPLE = {
    "SoftwareTag": ["AppVersion1", "AppVersion2"],
    "CPUModel": "Intel Xeon",
    "Memory": 4000,
}


def test_canonical_form_is_json_with_version_and_vo() -> None:
    assert read_requirements(RFC_EXAMPLE, "CMS").canonical_form() == (
        '{"form":1,"requirements":{"cpumodel":["value",["intel xeon"]],"memory":["capacity",4000],'
        '"softwaretag":["value",["appversion1","appversion2"]]},"vo":"cms"}'
    )


def test_pool_id_is_stable() -> None:
    # A constant: a change would orphan the pools of every running server.
    known = "800491d75f6f"
    assert short_pool_id(pool_id(read_requirements(RFC_EXAMPLE, "cms"))) == known


def test_pool_id_has_64_digits_and_short_form_12() -> None:
    pool = pool_id(requirements_of(Memory=4000))
    assert len(pool) == 64
    assert set(pool) <= set("0123456789abcdef")
    assert short_pool_id(pool) == pool[:12]


@pytest.mark.parametrize("memory", [4000, 4000.0, "4000 MB", "4000", "4000MiB", [4000, 8000], "4096000 KB"])
def test_spellings_of_one_capacity_share_pool(memory: object) -> None:
    assert pool_id(requirements_of(Memory=memory)) == pool_id(requirements_of(Memory=4000))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"Tags": ["a", "b"]}, {"tags": ["B", "A", "a"]}),
        ({"OS": "rhel7"}, {"os": ["RHEL7"]}),
        ({"Production": True}, {"production": [True, True]}),
        ({"MaxWallTime": "2 h"}, {"MaxWallTime": 7200}),
        ({"Memory": 1, "Disk": 2}, {"Disk": 2, "Memory": 1}),
    ],
)
def test_equivalent_sections_share_pool(one: dict[str, object], other: dict[str, object]) -> None:
    assert pool_id(read_requirements(one, "cms")) == pool_id(read_requirements(other, "CMS"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"Memory": 4000}, {"Memory": 4001}),
        ({"Memory": 4000}, {"Disk": 4000}),
        ({"Tags": ["a", "b"]}, {"Tags": ["ab"]}),
        ({"Tags": ["a,b"]}, {"Tags": ["a", "b"]}),
        ({"KSI2K": 1}, {"KSI2K": "1"}),
        ({"KSI2K": 1}, {"KSI2K": True}),
        ({"OS": "any"}, {}),
    ],
)
def test_different_sections_have_different_pools(one: dict[str, object], other: dict[str, object]) -> None:
    assert pool_id(read_requirements(one, "cms")) != pool_id(read_requirements(other, "cms"))


def test_pools_of_two_vos_differ() -> None:
    assert pool_id(requirements_of(vo="cms", Memory=1)) != pool_id(requirements_of(vo="atlas", Memory=1))


def test_original_section_is_kept_and_gives_same_pool() -> None:
    requirements = read_requirements({"memory": "4 GB", "Tags": ["GPU", "gpu"]}, "cms")
    assert requirements.section == {"memory": "4 GB", "Tags": ("GPU", "gpu")}
    stored = json.loads(json.dumps(requirements.section))
    assert pool_id(read_requirements(stored, "cms")) == pool_id(requirements)


@pytest.mark.parametrize(
    ("name", "asked", "why"),
    [
        ("Tags", [], "empty list"),
        ("OS", "  ", "empty text"),
        ("Memory", -1, "negative"),
        ("Memory", float("nan"), "finite"),
        ("Memory", float("inf"), "finite"),
        ("CPUs", "auto", "not a number"),
        ("Memory", True, "not a number"),
        ("Memory", "4 parsecs", "no unit parsecs"),
        ("OS", None, "neither"),
        ("OS", [["a"]], "neither"),
        ("OS", {"a": 1}, "neither"),
        ("Site", "CERN", "keyword"),
        ("bannedsites", "CERN", "keyword"),
        ("Platform", "x86_64", "keyword"),
        ("CPUTime", 5000, "keyword"),
    ],
)
def test_error_names_invalid_parameter(name: str, asked: object, why: str) -> None:
    with pytest.raises(InvalidRequirementsError) as rejected:
        read_requirements({name: asked}, "cms")
    (violation,) = rejected.value.violations
    assert violation.where == name or violation.where.lower() == name.lower()
    assert why in violation.why


def test_error_lists_all_faults() -> None:
    with pytest.raises(InvalidRequirementsError) as rejected:
        read_requirements({"Memory": -1, "Tags": [], "OS": "rhel7", "Site": "CERN"}, "cms")
    assert [violation.where for violation in rejected.value.violations] == ["Memory", "Tags", "Site"]


def test_repeated_parameter_must_agree() -> None:
    twice = read_requirements({"Memory": 4000, "memory": "4000 MB"}, "cms")
    assert pool_id(twice) == pool_id(requirements_of(Memory=4000))
    with pytest.raises(InvalidRequirementsError, match="memory: is asked twice, as 4000 and as 8000"):
        read_requirements({"Memory": 4000, "memory": 8000}, "cms")


def test_declaration_determines_type() -> None:
    declared = SHIPPED.extended([ParameterDeclaration("OSVersion", ParameterType.VERSION)])
    one, other = (read_requirements({"osversion": text}, "cms", declared) for text in ("9.0", "v9"))
    assert one.items[0].declaration.type is ParameterType.VERSION
    assert pool_id(one) == pool_id(other)


def test_empty_section_has_no_items() -> None:
    assert read_requirements({}, "cms").items == ()


def test_rejects_blank_parameter_name() -> None:
    with pytest.raises(InvalidRequirementsError, match="' ' is not a parameter's name"):
        read_requirements({" ": 1}, "cms")
