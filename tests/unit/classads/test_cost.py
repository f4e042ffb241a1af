"""The cost of evaluating an expression, estimated from its references before it is evaluated."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.cost import LONGEST_CHAIN, MAX_CHARACTERS, MAX_STEPS, TooCostlyError, cost_fault
from pilotage.classads.evaluation import Ad, NoValue, compile_expression, evaluate, evaluation_cost
from pilotage.classads.library import AdValue, Expression
from pilotage.classads.text import ad_text
from pilotage.job_description import JobDescription, JobPolicy
from pilotage_agents.router.core.route_selection import RouteEvaluator
from pilotage_agents.router.core.table import GRID, Route, RouteLimits, RouteTable
from pilotage_server.core.jobs.files import JobLimits
from pilotage_server.core.submission.validation import description_faults
from support.grid import a_slot
from support.match_bench import QUEUE, MatchBench, a_slot_with


def exponential_ad(levels: int, width: int = 2) -> dict[str, AdValue]:
    """Return an ad in which every attribute refers to the previous one `width` times."""
    attributes: dict[str, AdValue] = {"a0": 1}
    for level in range(1, levels + 1):
        attributes[f"a{level}"] = Expression(" + ".join([f"MY.A{level - 1}"] * width))
    return attributes


def is_costly(text: str, ad: dict[str, AdValue], other: dict[str, AdValue] | None = None) -> bool:
    return cost_fault(text, [ad.get] if other is None else [ad.get, other.get]) is not None


def test_exponential_references_are_too_costly() -> None:
    assert not is_costly("a10", exponential_ad(10))
    assert is_costly("a60", exponential_ad(60))
    assert is_costly("a3", exponential_ad(3, width=100))


def test_exponential_references_between_two_ads_are_too_costly() -> None:
    ads: list[dict[str, AdValue]] = [{}, {}]
    for level in range(40):
        ads[level % 2][f"a{level}"] = Expression(f"TARGET.a{level + 1} + TARGET.a{level + 1}")
    assert is_costly("a0", *ads)


def test_call_without_arguments_is_cheap() -> None:
    assert not is_costly("eval() || regexp()", {})


def test_policy_of_many_clauses_is_cheap() -> None:
    ad: dict[str, AdValue] = {f"slot{n}_state": "Claimed" for n in range(500)}
    ad["busy"] = Expression(" + ".join(f'(Slot{n}_State =?= "Claimed")' for n in range(300)))
    assert not is_costly("busy > 1 && (busy < 400 || busy == 1)", ad)


def test_cyclic_references_are_refused() -> None:
    assert is_costly("a", {"a": Expression("b + b"), "b": Expression("a + c"), "c": Expression("a + b")})


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
    assert fault.where == where
    assert fault.why.startswith(f"takes too long to evaluate: it could take more than {MAX_STEPS} steps")


def test_slot_with_too_costly_start_gets_no_job() -> None:
    board = MatchBench()
    job = board.waiting()
    attributes: dict[str, Any] = {name: ad_text({"x": value})[5:-1] for name, value in exponential_ad(80).items()}
    assert board.places(a_slot_with("costly", Start="a80 > 0", **attributes), a_slot("cheap")) == {job: "cheap"}


# Bounds are at least what the library does ----------------------------------------------------------------------------

_NAMES = [f"a{level}" for level in range(7)]


@st.composite
def counting_ads(draw: st.DrawFn) -> list[dict[str, AdValue]]:
    """Return two ads of sums of ones: the value of an attribute is the number of ones that the library has read.

    An attribute refers to later ones, in both ads, directly, through a text that eval reads, and in lists.
    """
    ads: list[dict[str, AdValue]] = [{}, {}]
    for ad, (level, name) in product(ads, enumerate(_NAMES)):
        terms = ["1"]
        for later in (
            draw(st.lists(st.sampled_from(_NAMES[level + 1 :]), max_size=5)) if level + 1 < len(_NAMES) else ()
        ):
            forms = ["{0}", "MY.{0}", "TARGET.{0}", "eval({0}text)", 'eval("{0}")', 'eval(strcat("MY.", "{0}"))']
            forms += ["sum({{{0}, {0}}})", "countMatches({0} > 0, {{[b = 1], [b = 2]}})", "ifThenElse(true, {0}, {0})"]
            terms.append(draw(st.sampled_from(forms)).format(later))
        ad[name] = Expression(" + ".join(terms))
        ad[f"{name}text"] = draw(st.sampled_from([name, f"MY.{name}", f"{name} + eval({name}more)"]))
        ad[f"{name}more"] = draw(st.sampled_from(["1", f"MY.{name}", f"TARGET.{name} + {name}"]))
    return ads


@given(counting_ads())
def test_bound_is_at_least_the_number_of_reads(ads: list[dict[str, AdValue]]) -> None:
    my, target = map(Ad, ads)
    try:
        cost = evaluation_cost("a0", my, target)
    except TooCostlyError:
        assert evaluate(compile_expression("a0"), my, target) is NoValue.ERROR
        return
    reads = evaluate(compile_expression("a0"), my, target)
    assert not isinstance(reads, int) or reads <= cost.steps <= MAX_STEPS


@st.composite
def growing_ads(draw: st.DrawFn) -> dict[str, AdValue]:
    """Return an ad of texts that are made of later ones."""
    ad: dict[str, AdValue] = {}
    for level, name in enumerate(_NAMES[:-1]):
        one, other = (draw(st.sampled_from(_NAMES[level + 1 :])) for _ in range(2))
        forms = [
            "strcat({0}, {1}, {0})",
            "join({0}, {1}, {1}, {0})",
            'replaceAll("a", {0}, {1})',
            "string({{{0}, {1}}})",
        ]
        forms += [
            'regexps("(a*)", {0}, "<\\\\1\\\\1\\\\1>")',
            "join({0}, split({1}))",
            "unparse({0})",
            "formatTime(1, {0})",
        ]
        forms += ["listToArgs(split({0}))", "toUpper({0})", "mergeEnvironment({0}, {1})", "eval(unparse({0}))"]
        ad[name] = Expression(draw(st.sampled_from(forms)).format(one, other))
    return ad | {_NAMES[-1]: draw(st.sampled_from(["a", "a a a,a", '"\\"', "%c%c"])) * draw(st.integers(1, 30))}


@given(growing_ads())
def test_bound_is_at_least_the_length_of_texts(attributes: dict[str, AdValue]) -> None:
    ad = Ad(attributes)
    try:
        cost = evaluation_cost("a0", ad)
    except TooCostlyError:
        return
    text = evaluate(compile_expression("a0"), ad)
    assert not isinstance(text, str) or len(text) <= cost.characters <= MAX_CHARACTERS


NESTED_EVALS: dict[str, AdValue] = {f"S{n}": "+".join([f"eval(S{n - 1})"] * 8) for n in range(1, 9)}
NESTED_EVALS["S0"] = "1"
"""2 to the power of 24 evaluations in 620 bytes."""


@pytest.mark.parametrize(
    "text",
    [
        "eval(S8)",
        "eval(unparse(S8)) + eval(eval(unparse(S8)))",
        'eval(strcat("S", 8)) + eval(eval(strcat("S", 8)))',
        "[a0 = 1; " + "; ".join(f"a{n} = a{n - 1} + a{n - 1}" for n in range(1, 40)) + "].a39",
        "evalInEachContext(eval(S8), {[b = 1]})",
        "size(MY) + size(TARGET)",
        "eval(strcat(S1, random(9)))",
        'eval("eval(strcat(\\"S\\", time() % 9))")',
        'userHome("root")',
        "own",
    ],
)
def test_expression_without_a_bound_is_an_error(text: str) -> None:
    ad = Ad({**NESTED_EVALS, "own": Expression("TARGET.own + TARGET.own")})
    assert evaluate(compile_expression(text), ad, ad) is NoValue.ERROR


def test_slot_with_nested_evals_gets_no_job() -> None:
    board = MatchBench()
    job = board.waiting()
    texts: dict[str, Any] = {name: f'"{text}"' for name, text in NESTED_EVALS.items()}
    costly = a_slot_with("costly", Start="eval(S8) > 0", **texts)
    assert board.places(costly, a_slot("cheap")) == {job: "cheap"}
    policy = board.policies.policy(costly, QUEUE)
    assert policy is not None
    assert policy.fault.startswith("START costs too much to evaluate: ")


def test_costly_job_does_not_stop_a_route_or_slot() -> None:
    job: dict[str, AdValue] = {**NESTED_EVALS, "Costly": Expression("eval(S8) > 0")}
    assert evaluate(compile_expression("TARGET.Costly =?= true"), Ad({}), Ad(job)) is NoValue.ERROR
    evaluator = RouteEvaluator(RouteTable((Route("A", "TARGET.Costly", {}, "batch slurm", GRID, RouteLimits(0)),)))
    assert evaluator.matching_routes(job) == ()
