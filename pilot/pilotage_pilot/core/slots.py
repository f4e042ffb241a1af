"""A slot at one moment, as it is told and as a job is put into it.

Rules
-----
A value only. What a slot has is `slot_book`, what it does is `slot_machine`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.jobs import AttemptKey
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.slot_states import Activity, SlotState


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot at one moment.

    `since` is when it took up its activity and `since_state` when its state, `key` the attempt in it (None = none),
    `ad` its ClassAd without all these, empty = as it was told before, and `readings` its loads and idle times.
    """

    name: str
    state: SlotState
    activity: Activity
    amounts: Amounts
    free: Amounts
    since: Moment
    since_state: Moment
    key: AttemptKey | None = None
    gpu_ids: tuple[str, ...] = ()
    partitionable: bool = False
    ad: str = ""
    readings: Mapping[str, float] = field(default_factory=dict)
