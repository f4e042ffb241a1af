"""The cost of evaluating an expression, estimated from its references before it is evaluated."""

from __future__ import annotations

from typing import Any

import pytest

from pilotage.classads.library import AdValue, Expression
from pilotage.classads.text import ad_text
from pilotage.job_description import JobDescription, JobPolicy
from pilotage_server.core.classads.evaluation import LONGEST_CHAIN, MAX_STEPS, is_too_costly
from pilotage_server.core.jobs.files import JobLimits
from pilotage_server.core.submission.validation import description_faults
from support.grid import a_slot
from support.match_bench import MatchBench, a_slot_with


def exponential_ad(levels: int, width: int = 2) -> dict[str, AdValue]:
    """Return an ad in which every attribute refers to the previous one `width` times."""
    attributes: dict[str, AdValue] = {"a0": 1}
    for level in range(1, levels + 1):
        attributes[f"a{level}"] = Expression(" + ".join([f"MY.A{level - 1}"] * width))
    return attributes


def is_costly(text: str, ad: dict[str, AdValue], other: dict[str, AdValue] | None = None) -> bool:
    return is_too_costly(text, [ad.get] if other is None else [ad.get, other.get])


def test_exponential_references_are_too_costly() -> None:
    assert not is_costly("a10", exponential_ad(10))
    assert is_costly("a60", exponential_ad(60))
    assert is_costly("a3", exponential_ad(3, width=100))


def test_exponential_references_between_two_ads_are_too_costly() -> None:
    ads: list[dict[str, AdValue]] = [{}, {}]
    for level in range(40):
        ads[level % 2][f"a{level}"] = Expression(f"TARGET.a{level + 1} + TARGET.a{level + 1}")
    assert is_costly("a0", *ads)


def test_policy_of_many_clauses_is_cheap() -> None:
    ad: dict[str, AdValue] = {f"slot{n}_state": "Claimed" for n in range(500)}
    ad["busy"] = Expression(" + ".join(f'(Slot{n}_State =?= "Claimed")' for n in range(300)))
    assert not is_costly("busy > 1 && (busy < 400 || busy == 1)", ad)


def test_cyclic_references_are_left_to_the_library() -> None:
    assert not is_costly("a", {"a": Expression("b + b"), "b": Expression("a + c"), "c": Expression("a + b")})


def test_length_of_reference_chain_is_bounded() -> None:
    def chain(links: int) -> dict[str, AdValue]:
        return {f"a{n}": Expression(f"a{n + 1}") if n < links else 1 for n in range(links + 1)}

    assert not is_costly("a0", chain(LONGEST_CHAIN))
    assert is_costly("a0", chain(LONGEST_CHAIN + 2))


def test_work_on_list_elements_counts_for_each_element() -> None:
    ad: dict[str, AdValue] = {"few": (1, 2), "many": tuple(range(MAX_STEPS)), "want": Expression("Capability > 4")}
    assert not is_costly("countMatches(MY.want, few) >= 1", ad)
    assert is_costly("countMatches(MY.want, many) >= 1", ad)
    nested: dict[str, AdValue] = {f"a{n}": Expression(f"evalInEachContext(MY.a{n + 1}, few)") for n in range(5)}
    assert is_costly("a0", nested)


def test_growing_strings_are_too_costly() -> None:
    cheap: dict[str, AdValue] = {"name": "x" * 100}
    assert not is_costly('regexps("(x*)", name, "<\\1>") == "<>"', cheap)
    assert is_costly('replaceAll("x", name, name) == ""', {"name": "x" * 100_000})
    growing: dict[str, AdValue] = {f"a{n}": Expression(f'replaceAll("x", MY.a{n + 1}, MY.a{n + 1})') for n in range(6)}
    assert is_costly("size(a0)", growing | {"a6": "x" * 100})


def test_evaluated_string_counts_towards_the_cost() -> None:
    assert is_costly('eval("MY.a60")', exponential_ad(60))


@pytest.mark.parametrize("where", ["requirements_expression", "policy.periodic_remove"])
def test_refuses_job_with_too_costly_expression(where: str) -> None:
    many_references = " + ".join(["MY.{}"] * 90)
    policy = JobPolicy(
        periodic_hold=many_references.format(*["PeriodicRelease"] * 90),
        periodic_release="NumJobStarts > 1",
        periodic_remove=many_references.format(*["PeriodicHold"] * 90) if "remove" in where else None,
    )
    requirements = many_references.format(*["PeriodicHold"] * 90) if "requirements" in where else None
    description = JobDescription(
        "/bin/true", policy=policy, requirements_expression=requirements, rank="MY.PeriodicHold"
    )
    (fault,) = description_faults(description, JobLimits(), {})
    assert (fault.where, fault.why) == (where, "takes too long to evaluate, with all attributes that it refers to")


def test_slot_with_too_costly_start_gets_no_job() -> None:
    board = MatchBench()
    job = board.waiting()
    attributes: dict[str, Any] = {name: ad_text({"x": value})[5:-1] for name, value in exponential_ad(80).items()}
    assert board.places(a_slot_with("costly", Start="a80 > 0", **attributes), a_slot("cheap")) == {job: "cheap"}
