"""Who may have a slot: its owner, a claim, nobody; and for how long a claim holds it."""

from __future__ import annotations

import pytest

from pilotage_pilot.core.slots import events as ev
from pilotage_pilot.core.slots.machine import IllegalSlotEventError
from support.slot_bench import ANN, BOB, BUSY, IDLE, OWNED, UNCLAIMED, VACATING, SlotBench, a_busy_slot, kinds


def test_a_new_slot_is_unclaimed_as_soon_as_it_is_looked_at() -> None:
    assert SlotBench().shows == UNCLAIMED


def test_a_new_slot_stays_its_owners_while_is_owner_is_true() -> None:
    assert SlotBench(IS_OWNER=True).shows == OWNED


def test_an_unclaimed_slot_becomes_its_owners_and_comes_back() -> None:
    slot = SlotBench()
    slot.poll(IS_OWNER=True)
    assert slot.shows == OWNED
    slot.poll(IS_OWNER=False)
    assert slot.shows == UNCLAIMED


@pytest.mark.parametrize("said", [None, "True", 1])
def test_an_is_owner_that_is_not_exactly_true_makes_no_owner(said: object) -> None:
    assert SlotBench(IS_OWNER=said).shows == UNCLAIMED


def test_start_that_is_undefined_without_a_job_counts_as_willing() -> None:
    start: dict[str, object] = {"START": None}
    slot = SlotBench(IS_OWNER=lambda: start["START"] is False)
    assert slot.shows == UNCLAIMED
    start["START"] = False
    slot.poll()
    assert slot.shows == OWNED


def test_an_owners_slot_can_be_claimed_when_it_is_willing_to_take_that_job() -> None:
    slot = SlotBench(IS_OWNER=True)
    slot.answer(IS_OWNER=False)
    assert slot.claim() == ()
    assert slot.shows == IDLE


def test_a_claim_that_would_be_thrown_out_at_once_is_refused_and_the_slot_is_as_before() -> None:
    slot = SlotBench()
    slot.boot_s += 10
    since = slot.machine.entered_state
    slot.answer(IS_OWNER=True)
    assert slot.claim() == (ev.RefuseClaim("IS_OWNER of its slot is true"),)
    assert (slot.shows, slot.machine.entered_state, slot.machine.claim) == (UNCLAIMED, since, None)


def test_a_refused_claim_leaves_a_dynamic_slot_to_be_deleted() -> None:
    slot = SlotBench(dynamic=True, IS_OWNER=True)
    assert kinds(slot.claim()) == [ev.RefuseClaim]
    assert slot.poll() == (ev.DeleteSlot(),)
    assert slot.machine.deleted


def test_a_job_that_starts_makes_the_slot_busy_and_one_that_ends_leaves_the_claim() -> None:
    slot = SlotBench()
    slot.claim(rank=2.5)
    assert slot.feed(ev.JobStarted()) == ()
    assert slot.shows == BUSY
    assert slot.end() == ()
    assert slot.shows == IDLE
    claim = slot.machine.claim
    assert claim is not None
    assert (claim.holder, claim.activations, claim.rank) == (ANN, 1, 2.5)


def test_claim_reuse() -> None:
    slots = [SlotBench(dynamic=True), SlotBench(dynamic=True)]
    for _ in range(3):
        for slot in slots:
            assert slot.start() == ()
            slot.pass_time(1)
            assert slot.end() == ()
    assert [slot.machine.claim.activations for slot in slots if slot.machine.claim] == [3, 3]


def test_another_account_takes_an_idle_slot_with_a_claim_of_its_own() -> None:
    slot = a_busy_slot()
    slot.end()
    slot.pass_time(7)
    (ended,) = slot.claim(BOB)
    assert isinstance(ended, ev.EndClaim)
    assert ended.claim.holder == ANN
    claim = slot.machine.claim
    assert claim is not None
    assert (claim.holder, claim.activations, claim.since) == (BOB, 0, slot.now)
    assert slot.machine.entered_state == slot.now


def test_a_slot_with_a_job_cannot_be_claimed_again_and_nothing_has_changed() -> None:
    slot = SlotBench()
    slot.claim()
    with pytest.raises(IllegalSlotEventError, match="Claimed/Idle"):
        slot.claim(BOB)
    slot.feed(ev.JobStarted())
    with pytest.raises(IllegalSlotEventError, match="Claimed/Busy"):
        slot.claim(BOB)
    assert slot.machine.claim is not None
    assert slot.machine.claim.holder == ANN


def test_a_payload_cannot_start_where_no_job_is() -> None:
    slot = a_busy_slot()
    slot.end()
    with pytest.raises(IllegalSlotEventError):
        slot.feed(ev.JobStarted())
    with pytest.raises(IllegalSlotEventError):
        slot.end()
    assert slot.shows == IDLE


def test_a_claim_whose_first_job_never_starts_ends_with_it() -> None:
    slot = SlotBench(dynamic=True)
    slot.claim()
    assert kinds(slot.end()) == [ev.EndClaim, ev.DeleteSlot]


def test_a_claim_that_has_had_a_job_outlives_one_that_does_not_start() -> None:
    slot = a_busy_slot()
    slot.end()
    slot.claim()
    assert slot.end() == ()
    assert slot.shows == IDLE


def test_claim_idle_claim_with_is_owner_true_is_released() -> None:
    slot = a_busy_slot()
    slot.end()
    said = slot.poll(IS_OWNER=True)
    assert [(type(effect), effect.reason) for effect in said if isinstance(effect, ev.EndClaim)] == [
        (ev.EndClaim, "IS_OWNER of its slot is true")
    ]
    assert slot.shows == OWNED


def test_a_job_that_is_made_ready_is_stopped_when_the_owner_comes() -> None:
    slot = SlotBench()
    slot.claim()
    assert kinds(slot.poll(IS_OWNER=True)) == [ev.StopJob]
    assert slot.shows == VACATING
    slot.end()
    assert slot.shows == OWNED


def test_is_owner_does_not_touch_a_running_job() -> None:
    slot = a_busy_slot()
    assert slot.poll(IS_OWNER=True) == ()
    assert slot.shows == BUSY


def test_claim_worklife() -> None:
    slot = a_busy_slot(CLAIM_WORKLIFE=1200)
    slot.pass_time(1100)
    slot.end()
    assert slot.pass_time(100) == []
    assert slot.shows == IDLE
    (ended,) = slot.pass_time(1)
    assert isinstance(ended, ev.EndClaim)
    assert ended.reason == "its worklife is over"
    assert slot.shows == UNCLAIMED


def test_claim_worklife_never_cuts_a_running_job_but_ends_the_claim_after_it() -> None:
    slot = a_busy_slot(CLAIM_WORKLIFE=100)
    assert slot.pass_time(10_000) == []
    assert kinds(slot.end()) == [ev.EndClaim]


def test_claim_worklife_of_zero_means_one_job_a_claim() -> None:
    slot = a_busy_slot(CLAIM_WORKLIFE=0)
    assert kinds(slot.end()) == [ev.EndClaim]


def test_claim_worklife_below_zero_has_no_end() -> None:
    slot = a_busy_slot(CLAIM_WORKLIFE=-1)
    slot.end()
    assert slot.pass_time(10**6) == []
    assert slot.shows == IDLE


def test_claim_worklife_without_a_number_is_htcondors_default() -> None:
    slot = a_busy_slot(CLAIM_WORKLIFE="long")
    slot.end()
    assert slot.pass_time(1200) == []
    assert kinds(slot.pass_time(1)) == [ev.EndClaim]


def test_a_worklife_that_ends_while_the_next_job_is_made_ready_does_not_cut_it() -> None:
    slot = a_busy_slot(CLAIM_WORKLIFE=100)
    slot.pass_time(99)
    slot.end()
    slot.claim()
    assert slot.pass_time(50) == []
    slot.feed(ev.JobStarted())
    assert slot.shows == BUSY


def test_an_old_claim_takes_no_other_job_but_its_holder_may_have_a_new_one() -> None:
    slot = a_busy_slot(CLAIM_WORKLIFE=100)
    slot.end()
    slot.boot_s += 101
    (ended,) = slot.claim()
    assert isinstance(ended, ev.EndClaim)
    assert ended.reason == "its worklife is over"
    assert slot.machine.claim is not None
    assert slot.machine.claim.since == slot.now


def test_a_dynamic_slot_goes_with_its_claim() -> None:
    slot = SlotBench(dynamic=True)
    slot.start()
    slot.end()
    assert kinds(slot.feed(ev.ReleaseOrdered("nobody asks for it"))) == [ev.EndClaim, ev.DeleteSlot]
    with pytest.raises(IllegalSlotEventError, match="deleted"):
        slot.poll()


def test_a_released_claim_vacates_its_job_without_retirement() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=9999)
    assert kinds(slot.feed(ev.ReleaseOrdered("go"))) == [ev.StopJob]
    assert slot.shows == VACATING
