"""The node's share as one partitionable slot, out of which every job is given a dynamic slot of its own.

Rules
-----
The dynamic slots together never exceed the share; a GPU belongs to at most one of them. States and activities are
HTCondor's words. Which job may come at all is the server's decision; here is only what fits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from pilotage_pilot.core.amounts import NOTHING, Amounts
from pilotage_pilot.core.jobs import AttemptKey
from pilotage_pilot.core.moment import Moment

PARTITIONABLE = "slot1"


class SlotState(StrEnum):
    """A slot's state, in HTCondor's words."""

    UNCLAIMED = "Unclaimed"
    CLAIMED = "Claimed"
    PREEMPTING = "Preempting"
    DRAINED = "Drained"


class Activity(StrEnum):
    """A slot's activity, in HTCondor's words."""

    IDLE = "Idle"
    BUSY = "Busy"
    SUSPENDED = "Suspended"
    RETIRING = "Retiring"
    VACATING = "Vacating"
    KILLING = "Killing"


STATES = frozenset(
    {
        (SlotState.UNCLAIMED, Activity.IDLE),
        (SlotState.CLAIMED, Activity.IDLE),
        (SlotState.CLAIMED, Activity.BUSY),
        (SlotState.CLAIMED, Activity.SUSPENDED),
        (SlotState.PREEMPTING, Activity.VACATING),
        (SlotState.PREEMPTING, Activity.KILLING),
        (SlotState.DRAINED, Activity.RETIRING),
        (SlotState.DRAINED, Activity.IDLE),
    }
)
"""Every state with the activities that it can have."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A slot at one moment; `key` is the attempt in it (None = the partitionable slot itself)."""

    name: str
    state: SlotState
    activity: Activity
    amounts: Amounts
    free: Amounts
    since: Moment
    key: AttemptKey | None = None
    gpu_ids: tuple[str, ...] = ()

    @property
    def partitionable(self) -> bool:
        """Whether dynamic slots are carved out of it."""
        return self.key is None


class Partition:
    """The share of a node and the slots that it is divided into."""

    def __init__(self, share: Amounts, gpu_ids: tuple[str, ...], now: Moment) -> None:
        assert len(gpu_ids) >= share.gpus, "every GPU of the share has an id"
        self._share = share
        self._gpu_ids = gpu_ids[: share.gpus]
        self._free = share
        self._root = Slot(PARTITIONABLE, SlotState.UNCLAIMED, Activity.IDLE, share, share, now)
        self._dynamic: dict[AttemptKey, Slot] = {}
        self._numbers_in_use: set[int] = set()
        self.version = 0
        """Grows with every change that a report of the slots would show."""

    @property
    def share(self) -> Amounts:
        """What there is in all."""
        return self._share

    @property
    def free(self) -> Amounts:
        """What no dynamic slot has."""
        return self._free

    def slots(self) -> tuple[Slot, ...]:
        """Return every slot, the partitionable one first."""
        return (replace(self._root, free=self._free), *self._dynamic.values())

    def of(self, key: AttemptKey) -> Slot | None:
        """Return the dynamic slot of an attempt; None = it has none (any more)."""
        return self._dynamic.get(key)

    def carve(self, key: AttemptKey, amounts: Amounts, now: Moment) -> Slot | None:
        """Return a new dynamic slot for an attempt; None = the free part has not so much."""
        assert key not in self._dynamic, f"{key} has a slot already"
        if not amounts.fits_in(self._free):
            return None
        number = next(n for n in range(1, len(self._dynamic) + 2) if n not in self._numbers_in_use)
        self._numbers_in_use.add(number)
        self._free -= amounts
        self.version += 1
        gpus = tuple(self._free_gpus())[: amounts.gpus]
        name = f"{PARTITIONABLE}_{number}"
        slot = Slot(name, SlotState.CLAIMED, Activity.IDLE, amounts, NOTHING, now, key, gpus)
        self._dynamic[key] = slot
        return slot

    def keep_disk_only(self, key: AttemptKey) -> None:
        """Give back all but the disk of an attempt whose payload has ended and whose files are still there."""
        slot = self._dynamic[key]
        kept = Amounts(disk_mib=slot.amounts.disk_mib)
        self._free += slot.amounts - kept
        self.version += 1
        self._dynamic[key] = replace(slot, amounts=kept, gpu_ids=())

    def release(self, key: AttemptKey) -> None:
        """Give back the slot of an attempt, if it has one still."""
        slot = self._dynamic.pop(key, None)
        if slot is not None:
            self._free += slot.amounts
            self.version += 1
            self._numbers_in_use.remove(int(slot.name.rpartition("_")[2]))

    def show(self, key: AttemptKey | None, state: SlotState, activity: Activity, now: Moment) -> None:
        """Set state and activity of an attempt's slot; None = of the partitionable one."""
        assert (state, activity) in STATES, f"a slot is never {state}/{activity}"
        slot = self._root if key is None else self._dynamic.get(key)
        if slot is None or (slot.state, slot.activity) == (state, activity):
            return
        self.version += 1
        shown = replace(slot, state=state, activity=activity, since=now)
        if key is None:
            self._root = shown
        else:
            self._dynamic[key] = shown

    def _free_gpus(self) -> Iterator[str]:
        taken = {gpu for slot in self._dynamic.values() for gpu in slot.gpu_ids}
        return (gpu for gpu in self._gpu_ids if gpu not in taken)

    def validate(self) -> None:
        """Raise AssertionError where the slots and the share do not add up."""
        total = self._free
        gpus: list[str] = []
        for slot in self._dynamic.values():
            total += slot.amounts
            gpus += slot.gpu_ids
            assert len(slot.gpu_ids) == slot.amounts.gpus, f"{slot.name} has not the GPUs that it was given"
        assert total == self._share, f"slots and free part make {total}, the share is {self._share}"
        assert len(gpus) == len(set(gpus)), f"a GPU is in two slots: {gpus}"
        names = [slot.name for slot in self._dynamic.values()]
        assert len(names) == len(set(names)) == len(self._numbers_in_use), f"names of slots clash: {names}"
