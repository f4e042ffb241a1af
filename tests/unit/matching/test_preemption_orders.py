"""Orders to vacate occupied slots: for which jobs they are given, and how long they last."""

from __future__ import annotations

from datetime import timedelta

from pilotage.values.accounts import Account
from pilotage_server.core.matching.preemption import ORDER_LIFE
from pilotage_server.rpc.matching.service import longest_wait_s
from support.grid import a_slot
from support.match_bench import MatchBench, an_occupied_slot
from support.virtual_clock import START

BATCH = "TARGET.Batch =?= True"
BETTER = "RemoteUserPrio > SubmittorPrio * 1.2"


def board_with_heavy_use_by_bob() -> MatchBench:
    board = MatchBench()
    board.shares.start_run(Account("lhcb", "users", "bob"), 100, START - timedelta(days=1))
    return board


def test_preempts_for_a_job_of_higher_rank() -> None:
    board = MatchBench()
    board.waiting(attributes={"Batch": True})
    (vacate,) = board.vacates(an_occupied_slot(Rank=BATCH))
    assert (vacate.slot, vacate.by_rank) == ("slot1", True)
    assert "lhcb/users/alice" in vacate.reason


def test_preemption_by_rank_ignores_requirements_and_priorities() -> None:
    board = MatchBench()
    board.shares.start_run(Account("lhcb", "users", "alice"), 100, START - timedelta(days=1))
    board.waiting("alice", attributes={"Batch": True})
    assert board.vacates(an_occupied_slot(Rank=BATCH, PreemptionRequirements="False"), server_wide="False")


def test_does_not_preempt_for_equal_or_lower_rank() -> None:
    board = MatchBench()
    board.waiting(attributes={"Batch": True})
    assert board.vacates(an_occupied_slot(rank=1.0, Rank=BATCH)) == []
    assert board.vacates(an_occupied_slot(rank=2.0, Rank=BATCH)) == []


def test_does_not_preempt_for_a_job_that_may_not_start() -> None:
    board = MatchBench()
    board.waiting(attributes={"Batch": True}, cpus=2)
    board.waiting(attributes={"Batch": True}, traits={"requirements_expression": "TARGET.NoSuch"})
    board.waiting(attributes={"Batch": True, "Barred": True})
    assert board.vacates(an_occupied_slot(Rank=BATCH, Start="TARGET.Barred =!= True")) == []


def test_preempts_for_another_user_when_requirements_are_true() -> None:
    board = board_with_heavy_use_by_bob()
    board.waiting("alice")
    (vacate,) = board.vacates(an_occupied_slot(PreemptionRequirements=BETTER))
    assert not vacate.by_rank
    assert "user priority 0.50 to" in vacate.reason


def test_does_not_preempt_for_a_user_of_no_better_priority() -> None:
    board = board_with_heavy_use_by_bob()
    board.waiting("alice")
    assert board.vacates(an_occupied_slot(PreemptionRequirements=BETTER), users={"slot1": "carol"}) == []


def test_user_does_not_preempt_own_jobs_by_priority() -> None:
    board = MatchBench()
    board.waiting("bob")
    assert board.vacates(an_occupied_slot(PreemptionRequirements="True")) == []


def test_does_not_preempt_by_priority_without_requirements() -> None:
    board = board_with_heavy_use_by_bob()
    board.waiting("alice")
    assert board.vacates(an_occupied_slot(), an_occupied_slot("slot2", 1001, PreemptionRequirements="1")) == []


def test_rank_of_the_individual_job_decides() -> None:
    board = board_with_heavy_use_by_bob()
    queue = board.queue(traits={"requirements_expression": "MY.ProcId >= 0"})
    board.job(queue, ProcId=7)
    slot = an_occupied_slot(rank=0.0, Rank="TARGET.ProcId =?= undefined")
    assert board.vacates(slot, server_wide="true") == []


def test_requirements_of_slot_and_server_must_both_be_true() -> None:
    board = board_with_heavy_use_by_bob()
    board.waiting("alice")
    slot = an_occupied_slot(PreemptionRequirements="True")
    assert board.vacates(slot, server_wide="RemoteUserPrio < SubmitterUserPrio") == []
    assert board.vacates(slot, server_wide=BETTER)


def test_preemption_by_priority_needs_at_least_equal_rank() -> None:
    board = board_with_heavy_use_by_bob()
    board.waiting("alice", attributes={"Batch": False})
    assert board.vacates(an_occupied_slot(rank=1.0, Rank=BATCH, PreemptionRequirements="True")) == []


def test_one_job_makes_one_slot_vacate() -> None:
    board = MatchBench()
    queue = board.queue(attributes={"Batch": True})
    board.job(queue)
    slots = [an_occupied_slot(f"s{number}", number, Rank=BATCH) for number in range(1, 4)]
    assert [vacate.slot for vacate in board.vacates(*slots)] == ["s1"]
    assert board.vacates(an_occupied_slot("other", 9, Rank=BATCH), stamp="another pilot") == []
    board.job(queue)
    assert board.vacates(an_occupied_slot("other", 9, Rank=BATCH), stamp="another pilot")


def test_order_is_kept_while_its_slot_asks_and_its_job_waits() -> None:
    board = MatchBench()
    board.waiting(attributes={"Batch": True})
    first, second = an_occupied_slot("s1", 1, Rank=BATCH), an_occupied_slot("s2", 2, Rank=BATCH)
    assert [vacate.slot for vacate in board.vacates(first, second)] == ["s1"]
    ordered = an_occupied_slot("s2", 2, ordered=True, Rank=BATCH)
    for _ in range(3):
        board.now += ORDER_LIFE * 0.9
        assert [vacate.slot for vacate in board.vacates(an_occupied_slot("s1", 1, ordered=True, Rank=BATCH))] == ["s1"]
    assert board.vacates(ordered) == []


def test_earlier_order_takes_precedence_over_another_slot() -> None:
    board = MatchBench()
    board.waiting(attributes={"Batch": True})
    ordered = an_occupied_slot("s2", 2, ordered=True, Rank=BATCH)
    assert [vacate.slot for vacate in board.vacates(an_occupied_slot("s1", 1, Rank=BATCH), ordered)] == ["s2"]


def test_order_expires_when_its_slot_stops_asking() -> None:
    board = MatchBench()
    board.waiting(attributes={"Batch": True})
    assert board.vacates(an_occupied_slot("s1", 1, Rank=BATCH))
    other = an_occupied_slot("s2", 2, Rank=BATCH)
    assert board.vacates(other, stamp="another pilot") == []
    board.now += ORDER_LIFE
    assert board.vacates(other, stamp="another pilot")


def test_slot_with_an_order_polls_before_the_order_expires() -> None:
    ordered, unordered = an_occupied_slot("a", ordered=True), an_occupied_slot("b")
    assert longest_wait_s(3600.0, [unordered, ordered]) < ORDER_LIFE.total_seconds()
    assert longest_wait_s(5.0, [ordered]) == 5.0
    assert longest_wait_s(3600.0, [unordered]) == 3600.0


def test_order_is_withdrawn_when_its_job_is_gone() -> None:
    board = MatchBench()
    job = board.waiting(attributes={"Batch": True})
    assert board.vacates(an_occupied_slot(Rank=BATCH))
    board.index.remove_job(1, job)
    assert board.vacates(an_occupied_slot(Rank=BATCH, ordered=True)) == []


def test_does_not_preempt_for_a_job_that_a_free_slot_takes() -> None:
    board = MatchBench()
    queue = board.queue(attributes={"Batch": True})
    board.job(queue)
    assert board.vacates(an_occupied_slot(Rank=BATCH), a_slot("free")) == []
    board.job(queue)
    assert board.vacates(an_occupied_slot(Rank=BATCH), a_slot("free"))


def test_does_not_preempt_for_a_job_offered_to_free_slots() -> None:
    board = MatchBench()
    queue = board.queue(attributes={"Batch": True})
    board.job(queue)
    assert board.vacates(an_occupied_slot(Rank=BATCH), is_offered=lambda id_: id_ == queue) == []


def test_preempts_if_an_individual_job_may_start() -> None:
    board = MatchBench()
    queue = board.queue(traits={"escaped": ("run",)}, attributes={"Batch": True})
    slot = an_occupied_slot(Rank=BATCH, Start="TARGET.Run > 5")
    board.job(queue, Run=1)
    assert board.vacates(slot) == []
    board.job(queue, Run=7)
    assert board.vacates(slot)
