"""The slots that a pilot offers, with their policies: which can be matched now, and what is missing for the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pilotage.resource_tree import QueueId
from pilotage_server.core.openings import Policies
from pilotage_server.core.slot_policies import Moment, SlotJudge, SlotPolicy
from pilotage_server.core.slots import SlotOffer
from pilotage_server.operations.references import MOST_REFERENCES, is_room_for, unknown_references
from pilotage_server.operations.world import World


@dataclass(frozen=True, slots=True)
class AdPartText:
    """A part of slots' ads as a pilot brings it; the key is the SHA-256 of the text."""

    key: str
    text: str


@dataclass(frozen=True, slots=True)
class Offers:
    """The slots of a request.

    `slots` can be matched, each by its policy in `policies`; the others lack `parts_wanted`, or have policies that
    cannot be used: `faults` says why, by slot. None can be matched while policies look for attributes of jobs that
    task queues are not told apart by yet: those are `unreferred`.
    """

    slots: tuple[SlotOffer, ...]
    policies: Mapping[str, SlotPolicy]
    parts_wanted: tuple[str, ...] = ()
    unreferred: frozenset[str] = frozenset()
    faults: Mapping[str, str] = field(default_factory=dict)


NO_OFFERS = Offers((), {})


def take_in_parts(world: World, parts: Iterable[AdPartText]) -> None:
    """Keep the parts of ads that a pilot brings; raises InvalidInputError for one that is not that of its key."""
    with world.lock:
        for part in parts:
            world.policies.parts.take_in(part.key, part.text)


def read_offers(world: World, queue: QueueId, slots: Sequence[SlotOffer]) -> Offers:
    """Return the slots of a pilot at that queue with their policies."""
    if not any(slot.has_ad for slot in slots):
        return Offers(tuple(slots), {})
    with world.lock:
        policies = {slot.name: world.policies.policy(slot, queue) for slot in slots if slot.has_ad}
        wanted = world.policies.parts.missing(dict.fromkeys(key for slot in slots for key in slot.ad_parts))
        if not world.policies.names <= world.published:
            world.published |= world.policies.names
    there = {name: policy for name, policy in policies.items() if policy is not None}
    faults = {name: policy.fault for name, policy in there.items() if policy.fault}
    sound = {name: policy for name, policy in there.items() if name not in faults}
    new = {name: unknown_references(world, looked_for) for name, looked_for in _looked_for(world, slots, sound).items()}
    unreferred = frozenset[str]().union(*new.values())
    if not is_room_for(world, unreferred):
        faults |= {name: _no_room_for(names) for name, names in new.items() if names}
        unreferred = frozenset()
    if unreferred:
        return Offers((), there, wanted, unreferred, faults)
    usable = tuple(slot for slot in slots if not slot.has_ad or (slot.name in there and slot.name not in faults))
    return Offers(usable, there, wanted, unreferred, faults)


def _looked_for(
    world: World, slots: Sequence[SlotOffer], policies: Mapping[str, SlotPolicy]
) -> dict[str, frozenset[str]]:
    """Return the names of what policies look for in jobs, and the server's own where it may give a slot away."""
    server_wide = world.rules.preemption_requirements
    found = {name: policy.job_names for name, policy in policies.items()}
    if server_wide:
        for slot in slots:
            if slot.occupied is not None and slot.name in found:
                found[slot.name] |= policies[slot.name].looked_for(server_wide)
    return found


def _no_room_for(names: frozenset[str]) -> str:
    return f"jobs are told apart by {MOST_REFERENCES} attributes already, and not by {', '.join(sorted(names))}"


def policies_at(world: World, queue: QueueId, offers: Offers, moments: Mapping[str, Moment], usual: Moment) -> Policies:
    """Return the policies of a queue's slots at their moments; `usual` is that of all that `moments` does not name."""

    def judge(slot: SlotOffer) -> SlotJudge:
        policy = offers.policies.get(slot.name) or world.policies.policy(slot, queue)
        assert policy is not None, "a slot without an ad lacks no part of it"
        return world.policies.ask(policy.resized(slot.free), moments.get(slot.name, usual))

    return Policies(judge, world.policies.views)
