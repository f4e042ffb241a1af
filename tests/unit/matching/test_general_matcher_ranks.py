"""One round of matching under policies: whom slots and jobs prefer, and what a slot weighs."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.values.accounts import Account
from support.grid import a_slot
from support.match_board import Board, a_slot_with
from support.virtual_clock import START

ALICE = Account("lhcb", "users", "alice")


def test_what_a_slot_ranks_higher_goes_before_fair_share_priority_and_coming() -> None:
    board = Board()
    board.waiting("bob", attributes={"Batch": False})
    urgent = board.job(board.queue("carol"), priority=99)
    batch = board.waiting("alice", attributes={"Batch": True})
    board.shares.start_run(ALICE, 8, START - timedelta(days=1))
    one, other = a_slot_with("a", Rank="TARGET.Batch"), a_slot_with("b", Rank="TARGET.Batch")
    assert board.given(one)[0] == batch
    assert board.given(one, other) == [batch, urgent]


def test_a_rank_that_is_no_number_counts_nothing_and_true_counts_one() -> None:
    board = Board()
    text = board.waiting(attributes={"Liked": "very"})
    half = board.waiting(attributes={"Liked": 0.5})
    yes = board.waiting(attributes={"Liked": True})
    negative = board.waiting(attributes={"Liked": -1})
    unknown = board.waiting()
    slots = [a_slot_with(f"s{number}", Rank="TARGET.Liked") for number in range(5)]
    assert board.given(*slots) == [yes, half, text, unknown, negative]


def test_what_a_slot_ranks_highest_but_cannot_take_does_not_keep_the_rest_out() -> None:
    board = Board()
    board.waiting(attributes={"Liked": 2}, cpus=8)
    small = board.waiting(attributes={"Liked": 1})
    board.waiting(attributes={"Liked": 3, "Barred": True})
    assert board.given(a_slot_with(Rank="TARGET.Liked", Start="TARGET.Barred =!= True")) == [small]


def test_a_claim_asks_for_the_jobs_of_its_holder_first_and_then_for_any() -> None:
    board = Board()
    bobs = board.waiting("bob")
    liked = board.waiting("bob", attributes={"Liked": 5})
    first = board.waiting("alice")
    second = board.waiting("alice", attributes={"Liked": 1})
    board.shares.start_run(ALICE, 8, START - timedelta(days=1))
    slots = [a_slot_with(f"s{number}", claim=ALICE, Rank="TARGET.Liked") for number in range(4)]
    assert board.given(*slots) == [second, first, liked, bobs]


def test_a_holder_is_an_owner_whoever_is_charged_for_the_job() -> None:
    board = Board()
    board.waiting("bob")
    charged = board.waiting("alice", traits={"accounting": "physics.team"})
    assert board.given(a_slot_with(claim=ALICE)) == [charged]


def test_a_job_takes_the_slot_of_the_call_that_its_rank_likes_best() -> None:
    board = Board()
    picky = board.waiting(traits={"rank": "TARGET.Mips"})
    plain = board.waiting()
    slots = [a_slot_with(name, Mips=mips) for name, mips in (("slow", "1"), ("fast", "9"), ("middling", "5"))]
    assert board.places(*slots) == {picky: "fast", plain: "slow"}


def test_a_rank_of_a_job_does_not_take_it_where_it_may_not_go() -> None:
    board = Board()
    picky = board.waiting(traits={"rank": "TARGET.Mips"}, cpus=2)
    barred = a_slot("barred", 2, ad_changes="[Mips = 8; Start = False]")
    assert board.places(a_slot("first", 2), a_slot_with("too small", Mips="9"), barred) == {picky: "first"}


def test_a_rank_of_a_job_does_not_take_a_slot_that_another_holds() -> None:
    board = Board()
    picky = board.waiting(traits={"rank": "TARGET.Mips"})
    held = a_slot_with("held", Mips="9", claim=Account("lhcb", "users", "bob"))
    assert board.places(a_slot_with("open", Mips="1"), held) == {picky: "open"}


def test_of_slots_that_a_job_likes_equally_it_takes_the_first() -> None:
    board = Board()
    picky = board.waiting(traits={"rank": "TARGET.Mips"})
    assert board.places(a_slot_with("a", Mips="1"), a_slot_with("b", Mips="1")) == {picky: "a"}


def test_the_weight_of_a_slot_is_that_of_what_the_job_gets() -> None:
    board = Board()
    board.waiting(cpus=2, memory_mib=8000)
    weight = "[SlotWeight = ifThenElse(Memory / 1000 > Cpus, Memory / 1000, Cpus)]"
    ((choice, _),) = board.round(a_slot("s", 8, 64_000, partitionable=True, ad_changes=weight))
    assert choice.weight == 8.0


@pytest.mark.parametrize("weight", ["", "SlotWeight = -1", 'SlotWeight = "2"', "SlotWeight = NoSuch"])
def test_a_weight_that_is_none_is_the_cores(weight: str) -> None:
    board = Board()
    board.waiting(cpus=2)
    ((choice, _),) = board.round(a_slot("s", 4, ad_changes=f"[{weight}]"))
    assert choice.weight == 4.0
