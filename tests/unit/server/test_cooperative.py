"""Cooperative work: pauses change neither the items nor their order."""

from __future__ import annotations

import gc
import weakref

import pytest

from pilotage.clock import boot_time_s
from pilotage_server.operations.cooperative import WORK_S, cooperative, gc_paused


def test_yields_all_items_in_order() -> None:
    yielded: list[int] = []
    for item in cooperative(range(5)):
        until_s = boot_time_s() + WORK_S
        while boot_time_s() < until_s:
            pass
        yielded.append(item)
    assert yielded == [0, 1, 2, 3, 4]


def test_yields_nothing_for_empty_input() -> None:
    assert list(cooperative(())) == []


def test_gc_is_disabled_during_work_and_restored_after_error() -> None:
    enabled_during_work: list[bool] = []

    def fail() -> None:
        with gc_paused():
            enabled_during_work.append(gc.isenabled())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert enabled_during_work == [False]
    assert gc.isenabled()


class Node:
    """An object that references itself."""

    def __init__(self) -> None:
        self.itself = self


def test_reference_cycles_of_others_are_collected_after_the_pause() -> None:
    node = Node()
    seen = weakref.ref(node)
    with gc_paused():
        del node
    gc.collect()
    assert seen() is None
