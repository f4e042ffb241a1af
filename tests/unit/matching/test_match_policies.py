"""Matching with policies: START of slots and requirements of jobs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.evaluation import Ad, compile_expression, evaluate
from pilotage.classads.library import Expression
from pilotage.job_description import Value
from pilotage_server.core.queueing.job_ads import traits_ad
from support.grid import a_slot
from support.match_bench import QUEUE, MatchBench, a_slot_with
from support.virtual_clock import START


@pytest.mark.parametrize(
    ("start", "starts"),
    [
        ("TARGET.App =?= 8", True),
        ("True", True),
        ("TARGET.App =?= 4", False),
        ("TARGET.App", False),
        ('"true"', False),
        ("1", False),
        ("NoSuchAttribute", False),
        ('TARGET.App == {1} || "x" + 1', False),
        ("MY.Memory >= 0 && TARGET.RequestCpus == MY.Cpus", True),
        ('TARGET.Owner == "ALICE" && VO == "lhcb"', True),
    ],
)
def test_job_starts_only_where_start_is_exactly_true(start: str, starts: bool) -> None:
    board = MatchBench()
    job = board.waiting(attributes={"App": 8})
    assert board.matched_jobs(a_slot_with(Start=start)) == ([job] if starts else [])


@pytest.mark.parametrize(
    ("expression", "starts"),
    [
        ("TARGET.BolognaBatchServer == True", True),
        ("BolognaBatchServer", True),
        ("TARGET.Plain == True", False),
        ('TARGET.Site == "cern" && TARGET.CE == "ce01" && Queue == "LONG"', True),
        ("TARGET.Memory >= 1", False),
        ('TARGET.Name == "slot1"', True),
        ("MY.App > 4 && TARGET.Cpus >= MY.RequestCpus", True),
        ("1", False),
    ],
)
def test_job_starts_only_where_its_requirements_are_true(expression: str, starts: bool) -> None:
    board = MatchBench()
    job = board.waiting(traits={"requirements_expression": expression}, attributes={"App": 8})
    assert board.matched_jobs(a_slot_with(BolognaBatchServer="True")) == ([job] if starts else [])


def test_requirements_apply_to_slots_without_an_ad() -> None:
    board = MatchBench()
    board.waiting(traits={"requirements_expression": 'TARGET.Arch == "X86_64"'})
    at_cern = board.waiting(traits={"requirements_expression": 'TARGET.Site == "CERN" && TARGET.Cpus > 3'})
    assert board.matched_jobs(a_slot(cpus=4)) == [at_cern]


def test_requirements_distinguish_slots_of_equal_size() -> None:
    board = MatchBench()
    job = board.waiting(traits={"requirements_expression": 'TARGET.Name == "b"'})
    assert board.places(a_slot("a"), a_slot("b")) == {job: "b"}


def test_ad_of_earlier_slot_with_the_same_name_is_not_reused() -> None:
    board = MatchBench()
    whole = board.waiting(traits={"requirements_expression": "!TARGET.PartitionableSlot"})
    assert board.matched_jobs(a_slot(partitionable=True)) == []
    assert board.matched_jobs(a_slot()) == [whole]


def test_declined_task_queue_may_go_to_another_slot() -> None:
    board = MatchBench()
    queue = board.queue()
    job = board.job(queue)
    assert board.places(a_slot("a", declined_task_queues=frozenset({queue})), a_slot("b")) == {job: "b"}


def test_start_and_requirements_must_both_be_true() -> None:
    board = MatchBench()
    requirements = {"requirements_expression": "TARGET.Big"}
    board.waiting(traits=requirements, attributes={"Fast": False})
    matching_both = board.waiting(traits=requirements, attributes={"Fast": True})
    assert board.matched_jobs(
        a_slot_with("small", Start="TARGET.Fast"), a_slot_with(Start="TARGET.Fast", Big="True")
    ) == [matching_both]


def test_slot_ad_cannot_override_server_attributes() -> None:
    board = MatchBench()
    for condition in (
        'Site == "T0"',
        'CE == "mine"',
        "Cpus >= 64",
        "Memory > 1000000",
        "MyCurrentTime < 1000",
        "RemoteUserPrio",
    ):
        board.waiting(traits={"requirements_expression": f"TARGET.{condition}"})
    slot = a_slot_with(Site='"T0"', CE='"mine"', Cpus="64", Memory="9999999", MyCurrentTime="1", RemoteUserPrio="True")
    assert board.matched_jobs(slot) == []


def test_policies_use_the_given_time() -> None:
    board = MatchBench()
    job = board.waiting()
    entered = int(START.timestamp())
    slot = a_slot_with(EnteredCurrentState=str(entered), Start="time() - EnteredCurrentState > 600")
    board.now = START + timedelta(seconds=600)
    assert board.matched_jobs(slot) == []
    board.now = START + timedelta(seconds=601)
    assert board.matched_jobs(slot) == [job]


def test_last_heard_from_is_the_present_time() -> None:
    board = MatchBench()
    job = board.waiting()
    sticky = "(LastHeardFrom - slot9_EnteredCurrentState) > 600 && isUndefined(TARGET.LastHeardFrom)"
    slot = a_slot_with(slot9_EnteredCurrentState=str(int(START.timestamp()) - 601), Start=sticky)
    assert board.matched_jobs(slot) == [job]


def test_start_sees_the_free_part_of_a_partitionable_slot() -> None:
    board = MatchBench()
    queue = board.queue(cpus=2)
    jobs = [board.job(queue) for _ in range(4)]
    slot = a_slot("s", 8, partitionable=True, ad_changes="[Start = MY.Cpus > 2 * TARGET.RequestCpus]")
    assert board.matched_jobs(slot) == jobs[:2]


@pytest.mark.parametrize(
    ("ad", "why"),
    [
        ("[Start = random() < 0.5]", "START would change each time"),
        ("[Start = Chance; Rank = Chance; Chance = random(10) > 3]", "START and RANK would change each time"),
        ("[Start = (]", "cannot be read"),
        ("[Start = 1; ", "cannot be read"),
    ],
)
def test_unusable_policy_has_a_fault(ad: str, why: str) -> None:
    policy = MatchBench().policies.policy(a_slot(ad_changes=ad), QUEUE)
    assert policy is not None
    assert why in policy.fault


def test_jobs_with_escaped_attributes_are_evaluated_individually() -> None:
    board = MatchBench()
    queue = board.queue(traits={"escaped": ("run",)})
    for run in (1, 2):
        board.job(queue, Run=run)
    fitting = [board.job(queue, Run=run) for run in (7, 8)]
    slots = [a_slot_with(f"s{number}", Start="TARGET.Run > 5") for number in range(3)]
    assert board.matched_jobs(*slots) == fitting


def test_requirements_on_individual_attributes_are_evaluated_per_job() -> None:
    board = MatchBench()
    queue = board.queue(traits={"requirements_expression": "MY.ProcId % 2 == 1"})
    jobs = [board.job(queue, ProcId=number) for number in range(4)]
    assert board.matched_jobs(a_slot("a"), a_slot("b"), a_slot("c")) == [jobs[1], jobs[3]]


def test_round_without_policies_needs_no_job_ads() -> None:
    board = MatchBench()
    queue = board.queue(traits={"escaped": ("run",)})
    job = board.job(queue)
    assert board.matched_jobs(a_slot()) == [job]


def test_start_selects_among_many_autoclusters() -> None:
    board = MatchBench()
    jobs = [board.waiting(attributes={"App": number}) for number in range(21)]
    slots = [a_slot_with(f"s{number}", Start="TARGET.App >= 18") for number in range(5)]
    assert board.matched_jobs(*slots) == jobs[18:]


LITERALS = ["1", "2", "true", "false", '"x"', "undefined"]
OF_SLOTS = st.sampled_from(["TARGET.A", "B", "MY.Big", "TARGET.A == MY.Big", "Big && TARGET.B", "A =!= 1", *LITERALS])
OF_JOBS = st.sampled_from(
    ["", "TARGET.Big", "MY.A == TARGET.Big", "Big =?= true", "A < 2 || TARGET.Big", "Start", "true"]
)
ATTRIBUTES = st.dictionaries(st.sampled_from("AB"), st.sampled_from([1, 2, True, False, "x"]))


@given(
    slot=st.fixed_dictionaries({}, optional={"Start": OF_SLOTS, "Rank": OF_SLOTS, "Big": st.sampled_from(LITERALS)}),
    jobs=st.lists(st.tuples(ATTRIBUTES, OF_JOBS), max_size=8),
)
def test_slot_gets_the_highest_ranked_acceptable_job(
    slot: dict[str, Any], jobs: list[tuple[dict[str, Value], str]]
) -> None:
    board = MatchBench()
    queues = {
        board.waiting(traits={"requirements_expression": expression}, attributes=attributes): len(board.queues)
        for attributes, expression in jobs
    }
    my = Ad({name: Expression(text) for name, text in slot.items()})
    expected: list[tuple[float, int]] = []
    for job, queue in queues.items():
        traits = board.queues[queue].traits
        target = Ad(traits_ad(traits))
        accepts = [evaluate(compile_expression(slot.get("Start", "true")), my, target)]
        accepts.append(evaluate(compile_expression(traits.requirements_expression or "true"), target, my))
        rank = evaluate(compile_expression(slot.get("Rank", "0")), my, target)
        if all(result is True for result in accepts):
            expected.append((-float(rank) if isinstance(rank, int | float) else 0.0, job))
    assert board.matched_jobs(a_slot_with(**slot)) == [job for _, job in sorted(expected)[:1]]
