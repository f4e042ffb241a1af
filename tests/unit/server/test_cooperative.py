"""Cooperative work: pauses change neither the items nor their order."""

from __future__ import annotations

from pilotage.clock import boot_time_s
from pilotage_server.operations.cooperative import WORK_S, cooperative


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
