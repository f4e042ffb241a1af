"""Slots that pilots offer for jobs, their ads, and orders to vacate them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

from pilotage.errors import InvalidInputError, Violation
from pilotage.values.accounts import Account, OwnerId
from pilotage.values.amounts import Amounts
from pilotage.values.attempts import AttemptKey
from pilotage.values.isolation import Isolation

POLICY_FAULT = "PolicyFault"
"""The attribute of a slot's report that tells why the server gives it no jobs for its policy or its isolation."""

MAX_PART_BYTES = 256 * 1024
"""The largest part of ads; an ad of a node with hundreds of slots is far smaller."""


@dataclass(frozen=True, slots=True)
class AdPart:
    """A part of slots' ads that rarely changes; `key` is the SHA-256 of `text`, in hex."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class OccupiedSlot:
    """The job in a slot that is offered for better jobs.

    `rank` = the slot's RANK of the job. `ordered` = the slot has an order to vacate that it has not carried out yet.
    """

    job_id: int
    attempt: int
    rank: float = 0.0
    ordered: bool = False

    @property
    def key(self) -> AttemptKey:
        """The attempt in the slot."""
        return AttemptKey(self.job_id, self.attempt)


class SlotOffer(NamedTuple):
    """A slot that requests work.

    `free` = what jobs may use: what is free now or, if `occupied` is set, what the present job leaves. `time_left` =
    how long a job may still run there, None = no known end. `cpu_power` = normalised CPU seconds per core and second, 0
    = not known, taken as 1. `max_jobs` = the most jobs in one answer, 0 = as many as fit. `declined_task_queues` = ids
    of task queues that the pilot declined for the slot in its present state.

    The slot's ad consists of the parts with the keys `ad_parts`, where later ones override earlier ones, and of
    `ad_changes`, a ClassAd that overrides them all; "" = no changes. `claim` = the account whose jobs go first. `ahead`
    = how many jobs of the same task queue may be prefetched with the first. `isolation` is the pilot's; `bound_to` is
    the owner whose jobs a pilot that isolates by owner holds, None = it holds none. `job_ad_wanted` = its jobs are sent
    with their ads. `has_containers` = the pilot runs jobs in container images.
    """

    name: str
    free: Amounts
    partitionable: bool = False
    time_left: timedelta | None = None
    cpu_power: float = 1.0
    max_jobs: int = 0
    declined_task_queues: frozenset[int] = frozenset()
    ad_parts: tuple[str, ...] = ()
    ad_changes: str = ""
    claim: Account | None = None
    ahead: int = 0
    isolation: Isolation = Isolation.NONE
    bound_to: OwnerId | None = None
    has_containers: bool = False
    occupied: OccupiedSlot | None = None
    job_ad_wanted: bool = False

    @property
    def match_key(self) -> tuple[object, ...]:
        """Return all that matching uses of a free slot; free slots with equal keys differ only in their names."""
        return self[1:-2]

    @property
    def has_ad(self) -> bool:
        """Whether the slot has an ad, which may hold a policy."""
        return bool(self.ad_parts or self.ad_changes)

    @property
    def binds(self) -> bool:
        """Whether its first job binds the pilot to an owner: no other slot may get a job in the same answer."""
        return self.isolation is Isolation.OWNER and self.bound_to is None

    def allocation_for(self, asked: Amounts) -> Amounts:
        """Return what a job with this request gets: its part of a partitionable slot, all of any other."""
        return asked if self.partitionable else self.free

    def remaining_after(self, given: Amounts) -> SlotOffer | None:
        """Return what is left to offer after an allocation; None = nothing."""
        if not self.partitionable or self.max_jobs == 1:
            return None
        return self._replace(free=self.free - given, max_jobs=max(0, self.max_jobs - 1))

    def after(self, waited: timedelta) -> SlotOffer:
        """Return the offer after the slot has waited for a job."""
        return self if self.time_left is None else self._replace(time_left=self.time_left - waited)


@dataclass(frozen=True, slots=True)
class VacateOrder:
    """An order to vacate an occupied slot for a better job; `by_rank` = the slot itself prefers that job."""

    slot: str
    reason: str
    by_rank: bool = False


def check_part(key: str, text: str) -> None:
    """Raise InvalidInputError unless the text is a valid part of ads with that key."""
    encoded = text.encode()
    if len(encoded) > MAX_PART_BYTES:
        raise InvalidInputError(Violation("text", f"has {len(encoded)} bytes, at most {MAX_PART_BYTES} are allowed"))
    if hashlib.sha256(encoded).hexdigest() != key:
        raise InvalidInputError(Violation("key", "is not the SHA-256 of the text"))
