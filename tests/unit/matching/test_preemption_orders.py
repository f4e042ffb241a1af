"""Which occupied slots are told to vacate, for whom, and how often."""

from __future__ import annotations

from datetime import timedelta

from pilotage.values.accounts import Account
from pilotage_server.core.matching.preemption import ORDER_LIFE
from pilotage_server.rpc.matching.service import longest_wait_s
from support.grid import a_slot
from support.match_board import Board, an_occupied_slot
from support.virtual_clock import START

BATCH = "TARGET.Batch =?= True"
BETTER = "RemoteUserPrio > SubmittorPrio * 1.2"


def a_board_where_bob_has_used_much() -> Board:
    board = Board()
    board.shares.start_run(Account("lhcb", "users", "bob"), 100, START - timedelta(days=1))
    return board


def test_a_slot_is_wanted_for_a_job_that_it_ranks_higher() -> None:
    board = Board()
    board.waiting(attributes={"Batch": True})
    (vacate,) = board.vacates(an_occupied_slot(Rank=BATCH))
    assert (vacate.slot, vacate.by_rank) == ("slot1", True)
    assert "lhcb/users/alice" in vacate.reason


def test_preemption_by_rank_consults_neither_the_requirements_nor_the_priorities() -> None:
    board = Board()
    board.shares.start_run(Account("lhcb", "users", "alice"), 100, START - timedelta(days=1))
    board.waiting("alice", attributes={"Batch": True})
    assert board.vacates(an_occupied_slot(Rank=BATCH, PreemptionRequirements="False"), server_wide="False")


def test_a_slot_is_not_wanted_for_what_it_ranks_no_higher() -> None:
    board = Board()
    board.waiting(attributes={"Batch": True})
    assert board.vacates(an_occupied_slot(rank=1.0, Rank=BATCH)) == []
    assert board.vacates(an_occupied_slot(rank=2.0, Rank=BATCH)) == []


def test_a_slot_is_not_wanted_for_a_job_that_may_not_start_there() -> None:
    board = Board()
    board.waiting(attributes={"Batch": True}, cpus=2)
    board.waiting(attributes={"Batch": True}, traits={"requirements_expression": "TARGET.NoSuch"})
    board.waiting(attributes={"Batch": True, "Barred": True})
    assert board.vacates(an_occupied_slot(Rank=BATCH, Start="TARGET.Barred =!= True")) == []


def test_another_user_drives_a_job_out_where_the_requirements_are_true() -> None:
    board = a_board_where_bob_has_used_much()
    board.waiting("alice")
    (vacate,) = board.vacates(an_occupied_slot(PreemptionRequirements=BETTER))
    assert not vacate.by_rank
    assert "user priority 0.50 to" in vacate.reason


def test_a_user_who_is_not_better_drives_nobody_out() -> None:
    board = a_board_where_bob_has_used_much()
    board.waiting("alice")
    assert board.vacates(an_occupied_slot(PreemptionRequirements=BETTER), users={"slot1": "carol"}) == []


def test_nobody_drives_out_his_own_job_by_priority() -> None:
    board = Board()
    board.waiting("bob")
    assert board.vacates(an_occupied_slot(PreemptionRequirements="True")) == []


def test_without_requirements_no_other_user_drives_a_job_out() -> None:
    board = a_board_where_bob_has_used_much()
    board.waiting("alice")
    assert board.vacates(an_occupied_slot(), an_occupied_slot("slot2", 1001, PreemptionRequirements="1")) == []


def test_a_job_that_by_itself_is_liked_no_better_drives_nobody_out_without_requirements() -> None:
    board = a_board_where_bob_has_used_much()
    queue = board.queue(traits={"requirements_expression": "MY.ProcId >= 0"})
    board.job(queue, ProcId=7)
    slot = an_occupied_slot(rank=0.0, Rank="TARGET.ProcId =?= undefined")
    assert board.vacates(slot, server_wide="true") == []


def test_the_requirements_of_the_server_have_to_be_true_as_well() -> None:
    board = a_board_where_bob_has_used_much()
    board.waiting("alice")
    slot = an_occupied_slot(PreemptionRequirements="True")
    assert board.vacates(slot, server_wide="RemoteUserPrio < SubmitterUserPrio") == []
    assert board.vacates(slot, server_wide=BETTER)


def test_a_better_user_needs_at_least_the_rank_of_the_present_job() -> None:
    board = a_board_where_bob_has_used_much()
    board.waiting("alice", attributes={"Batch": False})
    assert board.vacates(an_occupied_slot(rank=1.0, Rank=BATCH, PreemptionRequirements="True")) == []


def test_one_job_makes_one_slot_vacate() -> None:
    board = Board()
    queue = board.queue(attributes={"Batch": True})
    board.job(queue)
    slots = [an_occupied_slot(f"s{number}", number, Rank=BATCH) for number in range(1, 4)]
    assert [vacate.slot for vacate in board.vacates(*slots)] == ["s1"]
    assert board.vacates(an_occupied_slot("other", 9, Rank=BATCH), stamp="another pilot") == []
    board.job(queue)
    assert board.vacates(an_occupied_slot("other", 9, Rank=BATCH), stamp="another pilot")


def test_an_order_holds_as_long_as_its_slot_asks_and_its_job_waits() -> None:
    board = Board()
    board.waiting(attributes={"Batch": True})
    first, second = an_occupied_slot("s1", 1, Rank=BATCH), an_occupied_slot("s2", 2, Rank=BATCH)
    assert [vacate.slot for vacate in board.vacates(first, second)] == ["s1"]
    told = an_occupied_slot("s2", 2, ordered=True, Rank=BATCH)
    for _ in range(3):
        board.now += ORDER_LIFE * 0.9
        assert [vacate.slot for vacate in board.vacates(an_occupied_slot("s1", 1, ordered=True, Rank=BATCH))] == ["s1"]
    assert board.vacates(told) == []


def test_of_two_slots_the_one_that_was_told_before_stays_told() -> None:
    board = Board()
    board.waiting(attributes={"Batch": True})
    told = an_occupied_slot("s2", 2, ordered=True, Rank=BATCH)
    assert [vacate.slot for vacate in board.vacates(an_occupied_slot("s1", 1, Rank=BATCH), told)] == ["s2"]


def test_an_order_that_nobody_asks_about_is_forgotten() -> None:
    board = Board()
    board.waiting(attributes={"Batch": True})
    assert board.vacates(an_occupied_slot("s1", 1, Rank=BATCH))
    other = an_occupied_slot("s2", 2, Rank=BATCH)
    assert board.vacates(other, stamp="another pilot") == []
    board.now += ORDER_LIFE
    assert board.vacates(other, stamp="another pilot")


def test_who_is_to_vacate_a_slot_asks_about_it_before_the_order_is_forgotten() -> None:
    told, not_told = an_occupied_slot("a", ordered=True), an_occupied_slot("b")
    assert longest_wait_s(3600.0, [not_told, told]) < ORDER_LIFE.total_seconds()
    assert longest_wait_s(5.0, [told]) == 5.0
    assert longest_wait_s(3600.0, [not_told]) == 3600.0


def test_an_order_is_withdrawn_when_its_job_waits_no_more() -> None:
    board = Board()
    job = board.waiting(attributes={"Batch": True})
    assert board.vacates(an_occupied_slot(Rank=BATCH))
    board.index.remove_job(1, job)
    assert board.vacates(an_occupied_slot(Rank=BATCH, ordered=True)) == []


def test_a_job_that_a_free_slot_of_the_call_takes_drives_nobody_out() -> None:
    board = Board()
    queue = board.queue(attributes={"Batch": True})
    board.job(queue)
    assert board.vacates(an_occupied_slot(Rank=BATCH), a_slot("free")) == []
    board.job(queue)
    assert board.vacates(an_occupied_slot(Rank=BATCH), a_slot("free"))


def test_a_job_that_free_slots_elsewhere_are_about_to_look_at_drives_nobody_out() -> None:
    board = Board()
    queue = board.queue(attributes={"Batch": True})
    board.job(queue)
    assert board.vacates(an_occupied_slot(Rank=BATCH), is_offered=lambda id_: id_ == queue) == []


def test_jobs_that_are_asked_one_by_one_drive_out_where_one_of_them_may_start() -> None:
    board = Board()
    queue = board.queue(traits={"escaped": ("run",)}, attributes={"Batch": True})
    slot = an_occupied_slot(Rank=BATCH, Start="TARGET.Run > 5")
    board.job(queue, Run=1)
    assert board.vacates(slot) == []
    board.job(queue, Run=7)
    assert board.vacates(slot)
