"""The offered slots with their policies, the response budget, and the ads of first jobs.

Reading offers separates slots that can be matched from those that lack parts of their ads or have faulty policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from pilotage.classads.library import AdValue
from pilotage.resources.tree import QueueId
from pilotage.values.isolation import Isolation
from pilotage.values.offers import AdPart, SlotOffer
from pilotage_server.core.identity import PilotCredential
from pilotage_server.core.matching.slot_policy import SlotPolicy
from pilotage_server.core.queueing.job_ads import full_job_ad
from pilotage_server.core.queueing.waiting_jobs import QueueHead
from pilotage_server.operations.queueing.rekeying import MAX_REFERENCES, has_room_for, unknown_references
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.submission.templates import load_descriptions
from pilotage_server.storage.task_queues import load_first_waiting


@dataclass(frozen=True, slots=True)
class RequestingPilot:
    """The pilot of a request, its node's name and its isolation."""

    credential: PilotCredential
    node: str
    isolation: Isolation = Isolation.NONE


@dataclass(frozen=True, slots=True)
class Offers:
    """The slots of a request.

    `slots` can be matched, each by its policy in `policies`. The others lack `parts_wanted`, or get no jobs because
    their policies cannot be used or their pilot isolates too weakly: `faults` is why, by slot. No slot can be matched
    while policies refer to job attributes that are not significant yet: those are `unreferred`.
    """

    slots: tuple[SlotOffer, ...]
    policies: Mapping[str, SlotPolicy]
    parts_wanted: tuple[str, ...] = ()
    unreferred: frozenset[str] = frozenset()
    faults: Mapping[str, str] = field(default_factory=dict)


NO_OFFERS = Offers((), {})


def add_ad_parts(state: ServerState, parts: Iterable[AdPart]) -> None:
    """Store the ad parts that a pilot sends; raises InvalidInputError for a part that does not match its key."""
    for part in parts:
        with state.lock:  # for each part: a large one takes milliseconds
            state.policies.parts.add(part.key, part.text)


def read_offers(state: ServerState, queue: QueueId, slots: Sequence[SlotOffer]) -> Offers:
    """Return the slots of a pilot at that queue with their policies."""
    if not any(slot.has_ad for slot in slots):
        return Offers(tuple(slots), {})
    policies, unread = _policies(state, queue, [slot for slot in slots if slot.has_ad])
    with state.lock:
        missing = state.policies.parts.missing(dict.fromkeys(key for slot in slots for key in slot.ad_parts))
        if not state.policies.names <= state.published_attributes:
            state.published_attributes |= state.policies.names
    known = {name: policy for name, policy in policies.items() if policy is not None}
    faults = {name: policy.fault for name, policy in known.items() if policy.fault} | unread
    usable_policies = {name: policy for name, policy in known.items() if name not in faults}
    references = _job_references(state, slots, usable_policies)
    new = {name: unknown_references(state, names) for name, names in references.items()}
    unreferred = frozenset[str]().union(*new.values())
    if not has_room_for(state, unreferred):
        faults |= {name: _no_room_for(names) for name, names in new.items() if names}
        unreferred = frozenset()
    if unreferred:
        return Offers((), known, missing, unreferred, faults)
    usable = tuple(slot for slot in slots if not slot.has_ad or (slot.name in known and slot.name not in faults))
    return Offers(usable, known, missing, unreferred, faults)


MAX_FAULTY_SLOTS = 100
"""Slots of one call whose policies cannot be used; the slots after them are not read. The cache has room for more."""


def _policies(
    state: ServerState, queue: QueueId, slots: Sequence[SlotOffer]
) -> tuple[dict[str, SlotPolicy | None], dict[str, str]]:
    """Return the policies of slots, None = parts are missing, and why other slots are not read."""
    found: dict[str, SlotPolicy | None] = {}
    faulty = 0
    for slot in slots:
        if faulty >= MAX_FAULTY_SLOTS:
            break
        with state.lock:  # for each slot: reading a new ad takes up to milliseconds
            policy = found[slot.name] = state.policies.policy(slot, queue)
        faulty += policy is not None and bool(policy.fault)
    why = f"its ad is not read: {MAX_FAULTY_SLOTS} slots of the same call have policies that cannot be used"
    return found, {slot.name: why for slot in slots if slot.name not in found}


def read_offers_ahead(state: ServerState, queue: QueueId, parts: Iterable[AdPart], slots: Sequence[SlotOffer]) -> None:
    """Read ads ahead of the transaction that matches, which then finds them in the caches; raises as `add_ad_parts`."""
    add_ad_parts(state, parts)
    read_offers(state, queue, slots)


def _job_references(
    state: ServerState, slots: Sequence[SlotOffer], policies: Mapping[str, SlotPolicy]
) -> dict[str, frozenset[str]]:
    """Return the job attributes to which policies refer, with the server's own preemption policy for occupied slots."""
    server_wide = state.rules.preemption_requirements
    found = {name: policy.job_names for name, policy in policies.items()}
    if server_wide:
        for slot in slots:
            if slot.occupied is not None and slot.name in found:
                found[slot.name] |= policies[slot.name].job_references(server_wide)
    return found


def _no_room_for(names: frozenset[str]) -> str:
    return (
        f"{MAX_REFERENCES} job attributes are significant already, which leaves no room for {', '.join(sorted(names))}"
    )


MAX_ANSWER_CHARS = 8 * 1024 * 1024
"""The most characters of descriptions and ads in one response; a single job may exceed it.

A message on the wire has room for 64 MiB: for as many characters of four bytes, with macros filled in.
"""

_OF_A_MATCH = 500
"""About the characters that a match takes beside the job's description."""

_OF_AN_AD = 3500
"""About the characters that a job's ad takes beside the job's description."""


class ResponseBudget:
    """The room for jobs that is left in one response; `is_full` = a job had to be left for the next request."""

    __slots__ = ("_is_empty", "_left", "_of_a_job", "_times", "is_full")

    def __init__(self, *, with_ads: bool = False) -> None:
        # The job's ad repeats the description.
        self._times = 2 if with_ads else 1
        self._of_a_job = _OF_A_MATCH + (_OF_AN_AD if with_ads else 0)
        self._left = MAX_ANSWER_CHARS
        self._is_empty = True
        self.is_full = False

    @classmethod
    def of(cls, slots: Iterable[SlotOffer]) -> Self:
        """Return the budget of a response for these slots."""
        return cls(with_ads=any(slot.job_ad_wanted for slot in slots))

    def reserve(self, size: int) -> bool:
        """Reserve room for a job with a description of `size` characters; the first always has. False = no room."""
        self._left -= self._times * size + self._of_a_job
        fits = self._left >= 0 or self._is_empty
        self._is_empty = False
        self.is_full = self.is_full or not fits
        return fits


@dataclass(frozen=True, slots=True)
class HeadAd:
    """A waiting job and its ad."""

    head: QueueHead
    ad: Mapping[str, AdValue]


def head_ads(transaction: Transaction, task_queue_id: int, limit: int) -> list[HeadAd]:
    """Return at most `limit` jobs of the task queue that a match may take, in order."""
    jobs = load_first_waiting(transaction.session, task_queue_id, limit)
    descriptions = load_descriptions(transaction.session, {job.template_id for job in jobs})
    return [
        HeadAd(QueueHead(job.priority, job.id), full_job_ad(job, descriptions[job.template_id], transaction.now))
        for job in jobs
    ]
