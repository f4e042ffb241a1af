"""Long work with rests: what is to be worked on comes as it would without them."""

from __future__ import annotations

import gc

import pytest

from pilotage.clock import boot_time_s
from pilotage_server.operations.cooperative import WORK_S, cooperative, gc_frozen


def test_all_items_come_in_their_order_however_long_each_takes() -> None:
    taken: list[int] = []
    for item in cooperative(range(5)):
        until_s = boot_time_s() + WORK_S
        while boot_time_s() < until_s:
            pass
        taken.append(item)
    assert taken == [0, 1, 2, 3, 4]


def test_nothing_to_do_takes_no_rest() -> None:
    assert list(cooperative(())) == []


def test_nobody_looks_for_garbage_during_long_work_and_somebody_does_when_it_has_failed() -> None:
    during: list[bool] = []

    def fail() -> None:
        with gc_frozen():
            during.append(gc.isenabled())
            raise ZeroDivisionError

    try:
        with pytest.raises(ZeroDivisionError):
            fail()
        assert during == [False]
        assert gc.isenabled()
    finally:
        gc.unfreeze()
