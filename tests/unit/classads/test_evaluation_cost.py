"""Expressions that would keep a server busy are told by what they mention, before they are evaluated."""

from __future__ import annotations

from typing import Any

import pytest

from pilotage.classads.library import AdValue, Expression
from pilotage.classads.text import ad_text
from pilotage.job_description import JobDescription, JobPolicy
from pilotage_server.core.classads.evaluation import LONGEST_CHAIN, MOST_STEPS, is_too_costly
from pilotage_server.core.jobs.files import JobLimits
from pilotage_server.core.submission.validation import description_faults
from support.grid import a_slot
from support.match_board import Board, a_slot_with


def a_tower(floors: int, wide: int = 2) -> dict[str, AdValue]:
    """Return an ad in which every attribute mentions the one below so often."""
    tower: dict[str, AdValue] = {"a0": 1}
    for floor in range(1, floors + 1):
        tower[f"a{floor}"] = Expression(" + ".join([f"MY.A{floor - 1}"] * wide))
    return tower


def takes_long(text: str, ad: dict[str, AdValue], other: dict[str, AdValue] | None = None) -> bool:
    return is_too_costly(text, [ad.get] if other is None else [ad.get, other.get])


def test_work_that_doubles_with_every_attribute_is_too_much_in_the_end() -> None:
    assert not takes_long("a10", a_tower(10))
    assert takes_long("a60", a_tower(60))
    assert takes_long("a3", a_tower(3, wide=100))


def test_work_that_two_ads_do_for_each_other_counts_too() -> None:
    ads: list[dict[str, AdValue]] = [{}, {}]
    for floor in range(40):
        ads[floor % 2][f"a{floor}"] = Expression(f"TARGET.a{floor + 1} + TARGET.a{floor + 1}")
    assert takes_long("a0", *ads)


def test_a_policy_of_many_clauses_is_no_hard_work() -> None:
    ad: dict[str, AdValue] = {f"slot{n}_state": "Claimed" for n in range(500)}
    ad["busy"] = Expression(" + ".join(f'(Slot{n}_State =?= "Claimed")' for n in range(300)))
    assert not takes_long("busy > 1 && (busy < 400 || busy == 1)", ad)


def test_attributes_that_refer_to_one_another_are_left_to_the_library() -> None:
    assert not takes_long("a", {"a": Expression("b + b"), "b": Expression("a + c"), "c": Expression("a + b")})


def test_a_chain_may_be_so_long_and_no_longer() -> None:
    def chain(links: int) -> dict[str, AdValue]:
        return {f"a{n}": Expression(f"a{n + 1}") if n < links else 1 for n in range(links + 1)}

    assert not takes_long("a0", chain(LONGEST_CHAIN))
    assert takes_long("a0", chain(LONGEST_CHAIN + 2))


def test_what_is_done_for_every_element_of_a_list_counts_for_every_one() -> None:
    ad: dict[str, AdValue] = {"few": (1, 2), "many": tuple(range(MOST_STEPS)), "want": Expression("Capability > 4")}
    assert not takes_long("countMatches(MY.want, few) >= 1", ad)
    assert takes_long("countMatches(MY.want, many) >= 1", ad)
    nested: dict[str, AdValue] = {f"a{n}": Expression(f"evalInEachContext(MY.a{n + 1}, few)") for n in range(5)}
    assert takes_long("a0", nested)


def test_texts_that_grow_out_of_one_another_are_too_long_in_the_end() -> None:
    short: dict[str, AdValue] = {"name": "x" * 100}
    assert not takes_long('regexps("(x*)", name, "<\\1>") == "<>"', short)
    assert takes_long('replaceAll("x", name, name) == ""', {"name": "x" * 100_000})
    grown: dict[str, AdValue] = {f"a{n}": Expression(f'replaceAll("x", MY.a{n + 1}, MY.a{n + 1})') for n in range(6)}
    assert takes_long("size(a0)", grown | {"a6": "x" * 100})


def test_a_text_that_is_evaluated_counts_like_any_other() -> None:
    assert takes_long('eval("MY.a60")', a_tower(60))


@pytest.mark.parametrize("where", ["requirements_expression", "policy.periodic_remove"])
def test_a_job_that_would_keep_the_server_busy_is_refused_with_the_reason(where: str) -> None:
    often = " + ".join(["MY.{}"] * 90)
    policy = JobPolicy(
        periodic_hold=often.format(*["PeriodicRelease"] * 90),
        periodic_release="NumJobStarts > 1",
        periodic_remove=often.format(*["PeriodicHold"] * 90) if "remove" in where else None,
    )
    asks = often.format(*["PeriodicHold"] * 90) if "requirements" in where else None
    description = JobDescription("/bin/true", policy=policy, requirements_expression=asks, rank="MY.PeriodicHold")
    (fault,) = description_faults(description, JobLimits(), {})
    assert (fault.where, fault.why) == (where, "takes too long to evaluate, with all attributes that it refers to")


def test_a_slot_whose_start_would_keep_the_server_busy_takes_nothing_and_the_next_one_does() -> None:
    board = Board()
    job = board.waiting()
    tower: dict[str, Any] = {name: ad_text({"x": value})[5:-1] for name, value in a_tower(80).items()}
    assert board.places(a_slot_with("mill", Start="a80 > 0", **tower), a_slot("plain")) == {job: "plain"}
