"""One round of matching under policies: what slots and jobs say of each other decides."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.evaluation import Ad, compile_expression, evaluate
from pilotage.classads.library import Expression
from pilotage.job_description import Value
from pilotage_server.core.matching.general_matcher import FEW_AUTOCLUSTERS
from pilotage_server.core.matching.slot_policy import SlotPolicies
from pilotage_server.core.queueing.job_ads import traits_ad
from support.grid import a_slot
from support.match_board import QUEUE, Board, a_slot_with
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
def test_a_job_starts_only_where_start_is_true_and_nothing_else_is_true(start: str, starts: bool) -> None:
    board = Board()
    job = board.waiting(attributes={"App": 8})
    assert board.given(a_slot_with(Start=start)) == ([job] if starts else [])


@pytest.mark.parametrize(
    ("expression", "goes"),
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
def test_a_job_goes_only_where_its_own_expression_is_true(expression: str, goes: bool) -> None:
    board = Board()
    job = board.waiting(traits={"requirements_expression": expression}, attributes={"App": 8})
    assert board.given(a_slot_with(BolognaBatchServer="True")) == ([job] if goes else [])


def test_a_job_with_an_expression_is_asked_of_slots_without_an_ad_too() -> None:
    board = Board()
    board.waiting(traits={"requirements_expression": 'TARGET.Arch == "X86_64"'})
    at_cern = board.waiting(traits={"requirements_expression": 'TARGET.Site == "CERN" && TARGET.Cpus > 3'})
    assert board.given(a_slot(cpus=4)) == [at_cern]


def test_slots_of_one_size_are_told_apart_by_what_a_job_asks_of_one_of_them() -> None:
    board = Board()
    job = board.waiting(traits={"requirements_expression": 'TARGET.Name == "b"'})
    assert board.places(a_slot("a"), a_slot("b")) == {job: "b"}


def test_a_slot_without_an_ad_is_what_it_is_offered_as_whoever_had_its_name_before() -> None:
    board = Board()
    whole = board.waiting(traits={"requirements_expression": "!TARGET.PartitionableSlot"})
    assert board.given(a_slot(partitionable=True)) == []
    assert board.given(a_slot()) == [whole]


def test_what_one_slot_has_declined_may_go_to_another_of_the_same_size() -> None:
    board = Board()
    queue = board.queue()
    job = board.job(queue)
    assert board.places(a_slot("a", declined_task_queues=frozenset({queue})), a_slot("b")) == {job: "b"}


def test_policies_are_forgotten_for_want_of_room_and_read_again() -> None:
    policies = SlotPolicies(most_bytes=1000)
    slots = [a_slot_with(f"s{number}", Own=f'"{"x" * 200}{number}"') for number in range(9)]
    first = policies.policy(slots[0], QUEUE)
    assert policies.policy(slots[0], QUEUE) is first
    for slot in slots:
        policies.policy(slot, QUEUE)
    again = policies.policy(slots[0], QUEUE)
    assert again is not None
    assert again is not first


def test_both_sides_have_to_agree() -> None:
    board = Board()
    wants = {"requirements_expression": "TARGET.Big"}
    board.waiting(traits=wants, attributes={"Fast": False})
    both = board.waiting(traits=wants, attributes={"Fast": True})
    assert board.given(a_slot_with("small", Start="TARGET.Fast"), a_slot_with(Start="TARGET.Fast", Big="True")) == [
        both
    ]


def test_where_a_slot_is_how_large_it_is_and_whose_turn_it_is_the_slot_does_not_say_itself() -> None:
    board = Board()
    for lie in (
        'Site == "T0"',
        'CE == "mine"',
        "Cpus >= 64",
        "Memory > 1000000",
        "MyCurrentTime < 1000",
        "RemoteUserPrio",
    ):
        board.waiting(traits={"requirements_expression": f"TARGET.{lie}"})
    liar = a_slot_with(Site='"T0"', CE='"mine"', Cpus="64", Memory="9999999", MyCurrentTime="1", RemoteUserPrio="True")
    assert board.given(liar) == []


def test_policies_go_by_the_time_that_is_passed_in() -> None:
    board = Board()
    job = board.waiting()
    entered = int(START.timestamp())
    slot = a_slot_with(EnteredCurrentState=str(entered), Start="time() - EnteredCurrentState > 600")
    board.now = START + timedelta(seconds=600)
    assert board.given(slot) == []
    board.now = START + timedelta(seconds=601)
    assert board.given(slot) == [job]


def test_the_time_of_the_last_word_is_the_present() -> None:
    board = Board()
    job = board.waiting()
    sticky = "(LastHeardFrom - slot9_EnteredCurrentState) > 600 && isUndefined(TARGET.LastHeardFrom)"
    slot = a_slot_with(slot9_EnteredCurrentState=str(int(START.timestamp()) - 601), Start=sticky)
    assert board.given(slot) == [job]


def test_a_partitionable_slot_is_judged_by_what_is_left_of_it() -> None:
    board = Board()
    queue = board.queue(cpus=2)
    jobs = [board.job(queue) for _ in range(4)]
    slot = a_slot("s", 8, partitionable=True, ad_changes="[Start = MY.Cpus > 2 * TARGET.RequestCpus]")
    assert board.given(slot) == jobs[:2]


@pytest.mark.parametrize(
    ("ad", "why"),
    [
        ("[Start = random() < 0.5]", "START would change each time"),
        ("[Start = Chance; Rank = Chance; Chance = random(10) > 3]", "START and RANK would change each time"),
        ("[Start = (]", "cannot be read"),
        ("[Start = 1; ", "cannot be read"),
    ],
)
def test_a_policy_that_cannot_be_used_says_why(ad: str, why: str) -> None:
    policy = Board().policies.policy(a_slot(ad_changes=ad), QUEUE)
    assert policy is not None
    assert why in policy.fault


def test_jobs_that_their_task_queue_does_not_tell_apart_are_asked_one_by_one() -> None:
    board = Board()
    queue = board.queue(traits={"escaped": ("run",)})
    for run in (1, 2):
        board.job(queue, Run=run)
    fitting = [board.job(queue, Run=run) for run in (7, 8)]
    slots = [a_slot_with(f"s{number}", Start="TARGET.Run > 5") for number in range(3)]
    assert board.given(*slots) == fitting


def test_an_expression_over_what_is_each_jobs_own_is_asked_of_each_job() -> None:
    board = Board()
    queue = board.queue(traits={"requirements_expression": "MY.ProcId % 2 == 1"})
    jobs = [board.job(queue, ProcId=number) for number in range(4)]
    assert board.given(a_slot("a"), a_slot("b"), a_slot("c")) == [jobs[1], jobs[3]]


def test_a_round_without_policies_asks_no_job_for_its_ad() -> None:
    board = Board()
    queue = board.queue(traits={"escaped": ("run",)})
    job = board.job(queue)
    assert board.given(a_slot()) == [job]


def test_of_many_kinds_of_jobs_those_that_start_accepts_go() -> None:
    board = Board()
    jobs = [board.waiting(attributes={"App": number}) for number in range(FEW_AUTOCLUSTERS + 5)]
    slots = [a_slot_with(f"s{number}", Start="TARGET.App >= 18") for number in range(5)]
    assert board.given(*slots) == jobs[18:]


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
def test_a_slot_gets_the_first_of_those_it_likes_best_of_all_that_both_sides_accept(
    slot: dict[str, Any], jobs: list[tuple[dict[str, Value], str]]
) -> None:
    board = Board()
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
        if all(each is True for each in accepts):
            expected.append((-float(rank) if isinstance(rank, int | float) else 0.0, job))
    assert board.given(a_slot_with(**slot)) == [job for _, job in sorted(expected)[:1]]
