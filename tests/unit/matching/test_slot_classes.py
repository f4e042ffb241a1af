"""Free slots are alike when they differ in nothing that matching looks at."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage.values.offers import SlotOffer
from support.grid import a_slot

SLOT = a_slot("a")
NOT_LOOKED_AT: dict[str, Any] = {"name": "b", "job_ad_wanted": True}
OF_NO_FREE_SLOT = {"occupied"}
OTHERS: dict[str, Any] = {
    "free": Amounts(2, 0, 0, 0),
    "partitionable": True,
    "time_left": timedelta(hours=1),
    "cpu_power": 2.0,
    "max_jobs": 1,
    "declined_task_queues": frozenset({1}),
    "ad_parts": ("0" * 64,),
    "ad_changes": "[Start = false]",
    "claim": Account("lhcb", "users", "ann"),
    "ahead": 1,
}


@pytest.mark.parametrize("field", sorted({*SlotOffer._fields} - {*NOT_LOOKED_AT} - OF_NO_FREE_SLOT))
def test_slots_are_told_apart_by_each_field_that_matching_looks_at(field: str) -> None:
    assert SLOT._replace(**{field: OTHERS[field]}).match_key != SLOT.match_key


@pytest.mark.parametrize("field", NOT_LOOKED_AT)
def test_slots_are_alike_whatever_else_they_differ_in(field: str) -> None:
    assert SLOT._replace(**{field: NOT_LOOKED_AT[field]}).match_key == SLOT.match_key
