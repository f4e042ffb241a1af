"""Long work with rests: what is to be worked on comes as it would without them."""

from __future__ import annotations

from pilotage.clock import boot_time_s
from pilotage_server.operations.unhurried import WORK_S, unhurried


def test_all_items_come_in_their_order_however_long_each_takes() -> None:
    taken: list[int] = []
    for item in unhurried(range(5)):
        until_s = boot_time_s() + WORK_S
        while boot_time_s() < until_s:
            pass
        taken.append(item)
    assert taken == [0, 1, 2, 3, 4]


def test_nothing_to_do_takes_no_rest() -> None:
    assert list(unhurried(())) == []
