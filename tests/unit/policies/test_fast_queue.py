"""The policy of a fast queue: its jobs have their own slots, and others make way for them."""

from __future__ import annotations

import pytest

from support.live_slots import CLAIMED, SHIPPED, SINGLE, Job, PolicyBench

FAST: Job = {"FastJob": True}


@pytest.fixture
def fast() -> PolicyBench:
    return PolicyBench(SHIPPED / "fast-queue.conf", cpus=4)


def test_fast_queue_gives_fast_jobs_their_own_slots(fast: PolicyBench) -> None:
    assert [fast.value("START", slot, FAST) for slot in range(1, 9)] == [False] * 4 + [True] * 4
    assert [fast.value("START", slot, SINGLE) for slot in range(1, 9)] == [True] * 4 + [False] * 4


def test_fast_queue_suspends_the_job_of_the_same_core_while_a_fast_one_runs(fast: PolicyBench) -> None:
    names = ("WANT_SUSPEND", "SUSPEND", "CONTINUE", "PREEMPT", "KILL")
    away = fast.values(2, SINGLE, State=CLAIMED, slot6_Activity="Busy")
    assert [away[name].value for name in names] == [True, True, False, False, False]
    neighbour = fast.values(3, SINGLE, State=CLAIMED, slot6_Activity="Busy")
    assert [neighbour[name].value for name in names] == [False, False, True, False, False]
    back = fast.values(2, SINGLE, State=CLAIMED, slot6_Activity="Idle")
    assert [back[name].value for name in names] == [False, False, True, False, False]


def test_fast_queue_never_suspends_a_fast_job(fast: PolicyBench) -> None:
    assert fast.value("SUSPEND", 6, FAST, State=CLAIMED, slot2_Activity="Busy", slot10_Activity="Busy") is False
