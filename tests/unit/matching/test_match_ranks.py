"""Matching with ranks: ranks of slots and jobs, claims, and slot weights."""

from __future__ import annotations

from datetime import timedelta

import pytest

from pilotage.values.accounts import Account
from pilotage_server.core.identity import MAX_WEIGHT_OF_A_CORE
from pilotage_server.core.matching.job_views import JobSnapshot
from pilotage_server.core.matching.slot_policy import MatchPolicyEvaluator
from support.grid import a_slot
from support.match_bench import MatchBench, a_slot_with
from support.virtual_clock import START

ALICE = Account("lhcb", "users", "alice")


def test_slot_rank_precedes_fair_share_and_priority() -> None:
    board = MatchBench()
    board.waiting("bob", attributes={"Batch": False})
    urgent = board.job(board.queue("carol"), priority=99)
    batch = board.waiting("alice", attributes={"Batch": True})
    board.shares.start_run(ALICE, 8, START - timedelta(days=1))
    one, other = a_slot_with("a", Rank="TARGET.Batch"), a_slot_with("b", Rank="TARGET.Batch")
    assert board.matched_jobs(one)[0] == batch
    assert board.matched_jobs(one, other) == [batch, urgent]


def test_non_numeric_rank_is_zero_and_true_is_one() -> None:
    board = MatchBench()
    text = board.waiting(attributes={"Score": "very"})
    half = board.waiting(attributes={"Score": 0.5})
    true = board.waiting(attributes={"Score": True})
    negative = board.waiting(attributes={"Score": -1})
    unknown = board.waiting()
    slots = [a_slot_with(f"s{number}", Rank="TARGET.Score") for number in range(5)]
    assert board.matched_jobs(*slots) == [true, half, text, unknown, negative]


def test_unsuitable_job_of_highest_rank_does_not_block_others() -> None:
    board = MatchBench()
    board.waiting(attributes={"Score": 2}, cpus=8)
    small = board.waiting(attributes={"Score": 1})
    board.waiting(attributes={"Score": 3, "Barred": True})
    assert board.matched_jobs(a_slot_with(Rank="TARGET.Score", Start="TARGET.Barred =!= True")) == [small]


def test_claim_prefers_jobs_of_its_holder() -> None:
    board = MatchBench()
    of_bob = board.waiting("bob")
    ranked = board.waiting("bob", attributes={"Score": 5})
    first = board.waiting("alice")
    second = board.waiting("alice", attributes={"Score": 1})
    board.shares.start_run(ALICE, 8, START - timedelta(days=1))
    slots = [a_slot_with(f"s{number}", claim=ALICE, Rank="TARGET.Score") for number in range(4)]
    assert board.matched_jobs(*slots) == [second, first, ranked, of_bob]


def test_claim_holder_is_compared_with_the_owner_not_the_charged_account() -> None:
    board = MatchBench()
    board.waiting("bob")
    charged = board.waiting("alice", traits={"accounting": "physics.team"})
    assert board.matched_jobs(a_slot_with(claim=ALICE)) == [charged]


def test_job_gets_the_offered_slot_that_it_ranks_highest() -> None:
    board = MatchBench()
    ranking = board.waiting(traits={"rank": "TARGET.Mips"})
    other = board.waiting()
    slots = [a_slot_with(name, Mips=mips) for name, mips in (("slow", "1"), ("fast", "9"), ("middling", "5"))]
    assert board.places(*slots) == {ranking: "fast", other: "slow"}


def test_job_rank_does_not_override_requirements() -> None:
    board = MatchBench()
    ranking = board.waiting(traits={"rank": "TARGET.Mips"}, cpus=2)
    barred = a_slot("barred", 2, ad_changes="[Mips = 8; Start = False]")
    assert board.places(a_slot("first", 2), a_slot_with("too small", Mips="9"), barred) == {ranking: "first"}


def test_job_rank_does_not_override_a_claim() -> None:
    board = MatchBench()
    ranking = board.waiting(traits={"rank": "TARGET.Mips"})
    held = a_slot_with("held", Mips="9", claim=Account("lhcb", "users", "bob"))
    assert board.places(a_slot_with("open", Mips="1"), held) == {ranking: "open"}


def test_job_gets_the_first_of_equally_ranked_slots() -> None:
    board = MatchBench()
    ranking = board.waiting(traits={"rank": "TARGET.Mips"})
    assert board.places(a_slot_with("a", Mips="1"), a_slot_with("b", Mips="1")) == {ranking: "a"}


def test_slots_are_ranked_once_for_the_jobs_of_a_task_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    ranked: list[str] = []
    rank_by_job = MatchPolicyEvaluator.rank_by_job

    def counted(evaluator: MatchPolicyEvaluator, job: JobSnapshot) -> float:
        ranked.append(str(evaluator.policy.view.get("name")))
        return rank_by_job(evaluator, job)

    monkeypatch.setattr(MatchPolicyEvaluator, "rank_by_job", counted)
    board = MatchBench()
    queue = board.queue(traits={"rank": "TARGET.Cpus"})
    jobs = [board.job(queue) for _ in range(20)]
    slots = [a_slot(f"s{number}", 1 + number) for number in range(20)]
    assert board.places(*slots) == {job: slot.name for job, slot in zip(jobs, reversed(slots), strict=True)}
    assert sorted(name for name in ranked if name != "s0") == sorted(slot.name for slot in slots[1:])


def test_slot_that_has_changed_is_ranked_again() -> None:
    board = MatchBench()
    queue = board.queue(traits={"rank": "TARGET.Cpus"}, cpus=2)
    first, second, third = (board.job(queue) for _ in range(3))
    slots = [a_slot("a", 2), a_slot("b", 5, partitionable=True), a_slot("c", 4)]
    assert board.places(*slots) == {first: "b", second: "c", third: "b"}


def test_slot_weight_is_that_of_the_allocated_part() -> None:
    board = MatchBench()
    board.waiting(cpus=2, memory_mib=8000)
    weight = "[SlotWeight = ifThenElse(Memory / 1000 > Cpus, Memory / 1000, Cpus)]"
    ((choice, _),) = board.round(a_slot("s", 8, 64_000, partitionable=True, ad_changes=weight))
    assert choice.weight == 8.0


def test_slot_weight_is_bounded_by_the_cores() -> None:
    board = MatchBench()
    board.waiting(cpus=2)
    ((choice, _),) = board.round(a_slot("s", 4, ad_changes="[SlotWeight = 1e9]"))
    assert choice.weight == 4.0 * MAX_WEIGHT_OF_A_CORE


@pytest.mark.parametrize("weight", ["", "SlotWeight = -1", 'SlotWeight = "2"', "SlotWeight = NoSuch"])
def test_invalid_slot_weight_is_replaced_by_cores(weight: str) -> None:
    board = MatchBench()
    board.waiting(cpus=2)
    ((choice, _),) = board.round(a_slot("s", 4, ad_changes=f"[{weight}]"))
    assert choice.weight == 4.0
