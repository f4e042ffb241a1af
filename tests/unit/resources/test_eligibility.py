"""Eligibility: the offers that satisfy a requirement, and the reasons of a refusal."""

from __future__ import annotations

import pytest

from pilotage.resources.eligibility import Eligible, NoAccess, Refusal, Refused, eligibility
from pilotage.resources.pool_mapping import PoolMapper
from pilotage.resources.requirements import read_requirements
from pilotage.resources.tree import Level, Origin
from support.trees import THE_QUEUE, a_queue, a_tree, effective_queue, one_queue_tree, requirements_of

VERSION = {"OSVersion": {"type": "version"}}


def reasons(verdict: object) -> list[str]:
    """Return the refusals of a verdict as text; the verdict must be Refused."""
    assert isinstance(verdict, Refused), verdict
    return [str(refusal) for refusal in verdict.refusals]


@pytest.mark.parametrize(
    ("name", "asked", "offered"),
    [
        ("Memory", 4000, 4000),
        ("Memory", 4000, 8000.5),
        ("Memory", "4 GB", 4096),
        ("Memory", 4096, "4 GB"),
        ("Memory", [8000, 4000], 4000),
        ("CPUs", 8, [4, 16]),
        ("KSI2K", 2.5, 3),
        ("KSI2K", 2, "3"),
        ("CPUModel", "Intel Xeon", "INTEL XEON"),
        ("SoftwareTag", ["AppVersion1", "AppVersion2"], "AppVersion2"),
        ("SoftwareTag", "AppVersion2", ["AppVersion1", "AppVersion2"]),
        ("Port", "9619", 9619),
        ("Tags", ["GPU", "arm"], ["ARM", "GPU", "x"]),
        ("Tags", "GPU", "gpu"),
        ("Production", True, True),
        ("Production", False, "no"),
        ("Production", [True, False], False),
        ("OSVersion", "9.4", "9.10"),
        ("OSVersion", ["9.4", "9.20"], "9.10"),
        ("OSVersion", "9.10", ["9.4", "9.10", "9.5"]),
        ("OSVersion", "9", "v9.0"),
    ],
)
def test_satisfying_offer_is_eligible(name: str, asked: object, offered: object) -> None:
    tree = one_queue_tree({name: offered}, parameters=VERSION)
    requirements = read_requirements({name: asked}, "cms", tree.declarations)
    assert eligibility(requirements, effective_queue(tree, THE_QUEUE, "cms")) == Eligible()


@pytest.mark.parametrize(
    ("name", "asked", "offered", "why"),
    [
        ("Memory", 4000, 3999, "3999 MiB is less than 4000 MiB"),
        ("CPUs", 8, "auto", '"auto" is not a number'),
        ("Disk", 1, "100%", '"100%" is not a number'),
        ("Memory", 1, "4 parsecs", '"4 parsecs" is not a size: there is no unit parsecs'),
        ("CPUs", 8, [2, 4, "auto"], "4 is less than 8"),
        ("CPUs", 8, [], "it offers an empty list"),
        ("CPUs", 1, True, "true is not a number"),
        ("CPUModel", "Intel", "Intel Xeon", '"Intel Xeon" is not what is asked'),
        ("Production", True, False, "false is not what is asked"),
        ("Production", True, "66%", '"66%" is neither true nor false'),
        ("Tags", ["GPU", "arm"], ["GPU"], "it lacks arm"),
        ("OSVersion", "9.10", "9.9", '"9.9" is older than 9.10'),
        ("OSVersion", "9.10", [], "it offers an empty list"),
        ("Production", True, [], "it offers an empty list"),
        ("CPUModel", "Intel", [], "it offers an empty list"),
    ],
)
def test_refusal_has_reason(name: str, asked: object, offered: object, why: str) -> None:
    tree = one_queue_tree(site={name: offered}, parameters=VERSION)
    requirements = read_requirements({name: asked}, "cms", tree.declarations)
    verdict = eligibility(requirements, effective_queue(tree, THE_QUEUE, "cms"))
    assert reasons(verdict) == [f"{name}: {why} (stated by site)"]


def test_refusal_has_parameter_both_values_and_origin() -> None:
    tree = one_queue_tree(ce={"ForVO": {"cms": {"memory": "2 GB"}}}, site={"Memory": 8000})
    verdict = eligibility(requirements_of(Memory="4 GB"), effective_queue(tree, THE_QUEUE, "cms"))
    why = "2048 MiB is less than 4096 MiB"
    assert verdict == Refused((Refusal("Memory", "4 GB", "2 GB", (Origin(Level.CE, "cms"),), why),))


def test_missing_parameter_refuses() -> None:
    verdict = eligibility(requirements_of(Memory=1, Tags="GPU"), a_queue(Disk=1))
    assert reasons(verdict) == [
        "Memory: it is not stated for this queue",
        "Tags: it is not stated for this queue",
    ]


def test_verdict_has_all_refusals() -> None:
    queue = a_queue(Memory=1, OS="el7", Enabled=False, RequiredTags=["GPU"])
    assert [reason.split(":")[0] for reason in reasons(eligibility(requirements_of(Memory=2, OS="el9"), queue))] == [
        "Enabled",
        "RequiredTags",
        "Memory",
        "OS",
    ]


def test_vo_without_access_gets_no_other_refusal() -> None:
    verdict = eligibility(requirements_of(vo="cms", Memory=2), a_queue(vo="cms", Memory=1, VOs=["ATLAS", "LHCb"]))
    assert verdict == NoAccess("cms", ("ATLAS", "LHCb"), (Origin(Level.QUEUE),))


def test_disabled_queue_is_not_eligible() -> None:
    assert reasons(eligibility(None, a_queue(Enabled=False))) == ["Enabled: the queue is not enabled (stated by queue)"]
    assert eligibility(None, a_queue(Enabled=True)) == Eligible()


def test_no_requirements_need_only_access_of_vo() -> None:
    assert eligibility(None, a_queue(VOs=["cms"], Memory=1)) == Eligible()
    assert isinstance(eligibility(None, a_queue(VOs=["atlas"])), NoAccess)


def test_required_tags_refuse_jobs_without_all_of_them() -> None:
    queue = a_queue(Tags=["GPU", "fast"], RequiredTags=["GPU", "fast"])
    why = "the queue takes only jobs that ask for the tags"
    assert reasons(eligibility(None, queue)) == [f"RequiredTags: {why} GPU, fast (stated by queue)"]
    assert reasons(eligibility(requirements_of(Tags="gpu"), queue)) == [f"RequiredTags: {why} fast (stated by queue)"]
    assert eligibility(requirements_of(tags=["FAST", "gpu"]), queue) == Eligible()


def test_empty_required_tags_require_none() -> None:
    assert eligibility(None, a_queue(RequiredTags=[])) == Eligible()


@pytest.mark.parametrize("units", [("MiB", "GB"), ("GB", "MiB")])
def test_pool_mapper_distinguishes_units(units: tuple[str, str]) -> None:
    mapper = PoolMapper(one_queue_tree({"Scratch": 2}))
    found = {}
    for unit in units:
        declared = a_tree(parameters={"Scratch": {"type": "capacity", "unit": unit}}).declarations
        found[unit] = set(mapper.queues_of(read_requirements({"Scratch": "1 GB"}, "cms", declared)))
    assert found == {"MiB": set(), "GB": {THE_QUEUE}}
