"""Owner, Unclaimed and Claimed states of a slot, and the worklife of its claim."""

from __future__ import annotations

import pytest

from pilotage_pilot.core.slots import events as ev
from pilotage_pilot.core.slots.machine import IllegalSlotEventError
from support.slot_bench import ANN, BOB, BUSY, IDLE, OWNED, UNCLAIMED, VACATING, SlotBench, a_busy_slot, kinds


def test_new_slot_is_unclaimed_after_first_poll() -> None:
    assert SlotBench().state_and_activity == UNCLAIMED


def test_new_slot_stays_in_owner_state_while_is_owner_is_true() -> None:
    assert SlotBench(IS_OWNER=True).state_and_activity == OWNED


def test_unclaimed_slot_follows_is_owner() -> None:
    slot = SlotBench()
    slot.poll(IS_OWNER=True)
    assert slot.state_and_activity == OWNED
    slot.poll(IS_OWNER=False)
    assert slot.state_and_activity == UNCLAIMED


@pytest.mark.parametrize("value", [None, "True", 1])
def test_is_owner_must_be_exactly_true(value: object) -> None:
    assert SlotBench(IS_OWNER=value).state_and_activity == UNCLAIMED


def test_undefined_start_leaves_slot_unclaimed() -> None:
    start: dict[str, object] = {"START": None}
    slot = SlotBench(IS_OWNER=lambda: start["START"] is False)
    assert slot.state_and_activity == UNCLAIMED
    start["START"] = False
    slot.poll()
    assert slot.state_and_activity == OWNED


def test_slot_in_owner_state_accepts_claim_when_is_owner_is_false() -> None:
    slot = SlotBench(IS_OWNER=True)
    slot.answer(IS_OWNER=False)
    assert slot.claim() == ()
    assert slot.state_and_activity == IDLE


def test_claim_is_refused_while_is_owner_is_true() -> None:
    slot = SlotBench()
    slot.boot_s += 10
    since = slot.machine.entered_state
    slot.answer(IS_OWNER=True)
    assert slot.claim() == (ev.RefuseClaim("IS_OWNER of its slot is true"),)
    assert (slot.state_and_activity, slot.machine.entered_state, slot.machine.claim) == (UNCLAIMED, since, None)


def test_dynamic_slot_is_deleted_after_refused_claim() -> None:
    slot = SlotBench(dynamic=True, IS_OWNER=True)
    assert kinds(slot.claim()) == [ev.RefuseClaim]
    assert slot.poll() == (ev.DeleteSlot(),)
    assert slot.machine.deleted


def test_claim_outlives_its_job() -> None:
    slot = SlotBench()
    slot.claim(rank=2.5)
    assert slot.feed(ev.JobStarted()) == ()
    assert slot.state_and_activity == BUSY
    assert slot.end() == ()
    assert slot.state_and_activity == IDLE
    claim = slot.machine.claim
    assert claim is not None
    assert (claim.holder, claim.activations, claim.rank) == (ANN, 1, 2.5)


def test_claims_are_reused_for_several_jobs() -> None:
    slots = [SlotBench(dynamic=True), SlotBench(dynamic=True)]
    for _ in range(3):
        for slot in slots:
            assert slot.start() == ()
            slot.pass_time(1)
            assert slot.end() == ()
    assert [slot.machine.claim.activations for slot in slots if slot.machine.claim] == [3, 3]


def test_claim_of_other_account_replaces_idle_claim() -> None:
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


def test_slot_with_job_rejects_claim_and_stays_unchanged() -> None:
    slot = SlotBench()
    slot.claim()
    with pytest.raises(IllegalSlotEventError, match="Claimed/Idle"):
        slot.claim(BOB)
    slot.feed(ev.JobStarted())
    with pytest.raises(IllegalSlotEventError, match="Claimed/Busy"):
        slot.claim(BOB)
    assert slot.machine.claim is not None
    assert slot.machine.claim.holder == ANN


def test_job_events_without_job_are_illegal() -> None:
    slot = a_busy_slot()
    slot.end()
    with pytest.raises(IllegalSlotEventError):
        slot.feed(ev.JobStarted())
    with pytest.raises(IllegalSlotEventError):
        slot.end()
    assert slot.state_and_activity == IDLE


def test_claim_ends_with_first_job_that_never_starts() -> None:
    slot = SlotBench(dynamic=True)
    slot.claim()
    assert kinds(slot.end()) == [ev.EndClaim, ev.DeleteSlot]


def test_used_claim_outlives_job_that_never_starts() -> None:
    slot = a_busy_slot()
    slot.end()
    slot.claim()
    assert slot.end() == ()
    assert slot.state_and_activity == IDLE


def test_idle_claim_ends_when_is_owner_becomes_true() -> None:
    slot = a_busy_slot()
    slot.end()
    effects = slot.poll(IS_OWNER=True)
    assert [(type(effect), effect.reason) for effect in effects if isinstance(effect, ev.EndClaim)] == [
        (ev.EndClaim, "IS_OWNER of its slot is true")
    ]
    assert slot.state_and_activity == OWNED


def test_job_in_preparation_is_stopped_when_is_owner_becomes_true() -> None:
    slot = SlotBench()
    slot.claim()
    assert kinds(slot.poll(IS_OWNER=True)) == [ev.StopJob]
    assert slot.state_and_activity == VACATING
    slot.end()
    assert slot.state_and_activity == OWNED


def test_is_owner_does_not_affect_running_job() -> None:
    slot = a_busy_slot()
    assert slot.poll(IS_OWNER=True) == ()
    assert slot.state_and_activity == BUSY


def test_claim_ends_idle_after_its_worklife() -> None:
    slot = a_busy_slot(CLAIM_WORKLIFE=1200)
    slot.pass_time(1100)
    slot.end()
    assert slot.pass_time(100) == []
    assert slot.state_and_activity == IDLE
    (ended,) = slot.pass_time(1)
    assert isinstance(ended, ev.EndClaim)
    assert ended.reason == "its worklife is over"
    assert slot.state_and_activity == UNCLAIMED


def test_claim_worklife_ends_claim_after_running_job() -> None:
    slot = a_busy_slot(CLAIM_WORKLIFE=100)
    assert slot.pass_time(10_000) == []
    assert kinds(slot.end()) == [ev.EndClaim]


def test_claim_worklife_of_zero_allows_one_job() -> None:
    slot = a_busy_slot(CLAIM_WORKLIFE=0)
    assert kinds(slot.end()) == [ev.EndClaim]


def test_negative_claim_worklife_is_unlimited() -> None:
    slot = a_busy_slot(CLAIM_WORKLIFE=-1)
    slot.end()
    assert slot.pass_time(50_000) == []
    assert slot.state_and_activity == IDLE


def test_claim_worklife_that_is_no_number_uses_default() -> None:
    slot = a_busy_slot(CLAIM_WORKLIFE="long")
    slot.end()
    assert slot.pass_time(1200) == []
    assert kinds(slot.pass_time(1)) == [ev.EndClaim]


def test_claim_worklife_does_not_stop_job_in_preparation() -> None:
    slot = a_busy_slot(CLAIM_WORKLIFE=100)
    slot.pass_time(99)
    slot.end()
    slot.claim()
    assert slot.pass_time(50) == []
    slot.feed(ev.JobStarted())
    assert slot.state_and_activity == BUSY


def test_expired_claim_is_replaced_by_new_claim() -> None:
    slot = a_busy_slot(CLAIM_WORKLIFE=100)
    slot.end()
    slot.boot_s += 101
    (ended,) = slot.claim()
    assert isinstance(ended, ev.EndClaim)
    assert ended.reason == "its worklife is over"
    assert slot.machine.claim is not None
    assert slot.machine.claim.since == slot.now


def test_dynamic_slot_is_deleted_with_its_claim() -> None:
    slot = SlotBench(dynamic=True)
    slot.start()
    slot.end()
    assert kinds(slot.feed(ev.ReleaseOrdered("no job requests it"))) == [ev.EndClaim, ev.DeleteSlot]
    with pytest.raises(IllegalSlotEventError, match="deleted"):
        slot.poll()


def test_released_claim_vacates_job_without_retirement() -> None:
    slot = a_busy_slot(MaxJobRetirementTime=9999)
    assert kinds(slot.feed(ev.ReleaseOrdered("go"))) == [ev.StopJob]
    assert slot.state_and_activity == VACATING
