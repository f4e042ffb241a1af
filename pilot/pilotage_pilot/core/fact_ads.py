"""The ads of all slots of a node, kept up to date change by change: what is so, whatever the policy.

Rules
-----
What is told here is written into the ads, and only what did change; what a slot does when its ad, or one that it shows
something to, is read next: where jobs are over in no time, hardly any reader comes. What a slot shows to the others
(its shared attributes) stands in their ads as plain values under its number.

An offered ad comes in three parts and a rest, cut by how often they change, not by what they mean: the node's part
(facts, policy and operator, 1 to 10 kB, for as long as the pilot lives, mostly), the slot's own (300 bytes, for as
long as the slot lives), what the slots show each other (60 bytes a slot and attribute, the same text for all slots,
so it travels once at a change of state and not once a slot), and in each offer the rest: state, claim, job, loads,
and a partitionable slot's free part (500 bytes).
"""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.ad_text import ad_text
from pilotage.classad_evaluation import CURRENT_TIME, Ad
from pilotage.classads import AdValue
from pilotage.folding import fold
from pilotage_pilot.core.ad_parts import AdOffer, AdParts
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.layered_ad import Layer, LayeredAd, folded
from pilotage_pilot.core.load_shares import load_shares
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.neighbours import Neighbours
from pilotage_pilot.core.slot_entry import SlotEntry
from pilotage_pilot.core.slot_facts import (
    UNSEEN,
    NodeFacts,
    NodeSample,
    ShownSlot,
    SlotFacts,
    SlotKind,
    of_amounts,
    of_node,
    of_readings,
    of_slot,
    of_state,
    seconds,
)
from pilotage_pilot.core.slot_states import SlotState

_EVERY_SLOT = 4096
_TOLD_BESIDE = frozenset({"state", "activity", "enteredcurrentstate", "enteredcurrentactivity"})
"""What a report of a slot says in its own fields."""


class FactAds:
    """The ads of a node's slots; `shared` are the names of the attributes that each shows in the others' ads."""

    def __init__(self, node: NodeFacts, shared: tuple[str, ...] = ()) -> None:
        self._node = node
        self._entries: dict[str, SlotEntry] = {}
        self._unwritten: dict[str, SlotEntry] = {}
        self._common: dict[Layer, dict[str, tuple[str, AdValue]]] = {Layer.NODE: folded(of_node(node))}
        self._common_version = 0
        self._seats = (_EVERY_SLOT, _EVERY_SLOT)
        self._sample = NodeSample(boot_s=0.0)
        self._loads: dict[str, dict[str, float]] = {}
        self._neighbours = Neighbours(shared)
        self._parts = AdParts()
        self._node_part: str | None = None
        self._neighbours_part: str | None = None

    # Slots ------------------------------------------------------------------------------------------------------

    def add(self, slot: SlotFacts) -> None:
        """Begin the ad of a slot."""
        assert slot.name not in self._entries, f"there is a {slot.name} already"
        entry = SlotEntry(slot, LayeredAd(self._new_live()), slot.amounts)
        self._entries[slot.name] = entry
        for layer, attributes in self._common.items():
            entry.ad.lay(layer, attributes)
        entry.ad.lay(Layer.SLOT, folded(of_slot(slot, self._node)))
        entry.ad.lay(Layer.STATE, folded(UNSEEN))
        self._lay_free(entry)
        self._lay_readings(entry)
        self._lay_policy(entry)
        self._count_dynamic(slot)
        entry.ad.see(self._neighbours.seen_by(slot))
        self._show_neighbours(entry)

    def remove(self, name: str) -> None:
        """End the ad of a slot, if there is one."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        self._loads.pop(name, None)
        self._unwritten.pop(name, None)
        self._count_dynamic(entry.facts)
        self._write(entry.facts, self._neighbours.hide(entry.facts))

    def resize(self, name: str, free: Amounts) -> None:
        """Tell what is free of a partitionable slot."""
        entry = self._entries[name]
        entry.free = free
        self._lay_free(entry)
        self._show_neighbours(entry)

    def show(self, name: str, machine: ShownSlot) -> None:
        """Tell what a slot does."""
        entry = self._entries[name]
        entry.is_owners = machine.state is SlotState.OWNER
        entry.machine = machine
        self._unwritten[name] = entry

    def job_entered(self, name: str, job_ad: str, job_id: str, now: Moment) -> None:
        """Tell which job is in a slot; raises InvalidInputError when `job_ad` is read and is no ad."""
        entry = self._entries[name]
        entry.job_id = job_id
        self._unwritten[name] = entry

    def job_left(self, name: str) -> None:
        """Tell that no job is in a slot; a claim that is kept goes on being judged by its last job."""
        entry = self._entries[name]
        entry.job_id = ""
        self._unwritten[name] = entry

    def claim_ended(self, name: str) -> None:
        """Tell that nobody holds a slot."""

    def sample(self, sample: NodeSample) -> None:
        """Tell what a look at the node found."""
        self._sample = sample
        entries = sorted(self._entries.values(), key=lambda entry: not entry.is_owners)
        self._loads = load_shares(sample.load, sample.condor_loads, [entry.facts.name for entry in entries])
        for entry in self._entries.values():
            self._lay_readings(entry)
            self._show_neighbours(entry)

    # What is told of them ---------------------------------------------------------------------------------------

    def offer(self, name: str, now: Moment) -> AdOffer:
        """Return a slot's ad as it is offered to the server, which knows the time itself."""
        entry = self._read_entry(name)
        keys = [self._node_key(), self._slot_key(entry)]
        if self._neighbours.shared:
            keys.insert(0, self._neighbours_key())
        changes = entry.ad.of(Layer.FREE, Layer.STATE, Layer.READINGS, Layer.JOB)
        return AdOffer(tuple(keys), ad_text(changes))

    def part(self, key: str) -> str | None:
        """Return the text of a part that was offered, None = it was not for long."""
        return self._parts.text(key)

    def version(self, name: str) -> int:
        """Return a number that grows when a slot's ad changes in more than loads, idle times and time."""
        return self._read_entry(name).version + self._common_version

    def full_text(self, name: str) -> str:
        """Return a slot's ad without state and activity, readings and what other slots show."""
        entry = self._read_entry(name)
        if entry.told is None:
            said = entry.ad.of(*(layer for layer in Layer if layer not in (Layer.KNOBS, Layer.READINGS)))
            entry.told = ad_text({each: value for each, value in said.items() if fold(each) not in _TOLD_BESIDE})
        return entry.told

    def machine_ad(self, name: str, now: Moment) -> str:
        """Return all of a slot's ad as it is now, for the job in it."""
        said = self._read_entry(name).ad.of(*(layer for layer in Layer if layer is not Layer.KNOBS))
        return ad_text(said | self._neighbours.said | {CURRENT_TIME: seconds(now)})

    def readings(self, name: str) -> Mapping[str, float]:
        """Return what looks at the node found for a slot: loads, idle times, what is free of disk and memory."""
        return self._entries[name].readings

    def plain(self, name: str, now: Moment) -> dict[str, AdValue]:
        """Return all that is in a slot's ad, the policy's own expressions and its own view of itself among it."""
        entry = self._read_entry(name)
        return entry.ad.of(*Layer) | self._neighbours.seen_by(entry.facts) | {CURRENT_TIME: seconds(now)}

    def _read_entry(self, name: str) -> SlotEntry:
        """Return a slot and its ad, in which all is written by now that it shows, or that is shown to it."""
        entry = self._entries[name]
        for stale in tuple(self._unwritten.values()) if self._neighbours.shared else (entry,):
            if self._unwritten.pop(stale.facts.name, None) is not None:
                if stale.machine is not None:
                    self._lay(stale, Layer.STATE, of_state(stale.machine))
                self._lay_job(stale)
                self._show_neighbours(stale)
        return entry

    # Layers -----------------------------------------------------------------------------------------------------

    def _new_live(self) -> Ad | None:
        """Return the library's ad that is to follow a slot's, None = none does."""
        return None

    def _value(self, entry: SlotEntry, name: str) -> AdValue | None:
        """Return what a slot shows the others under `name`, None = nothing."""
        return entry.ad.get(fold(name))

    def _lay_policy(self, entry: SlotEntry) -> None:
        """Write what a policy says into a slot's ad: there is none."""

    def _remembered(self, entry: SlotEntry) -> dict[str, AdValue]:
        """Return what a slot's ad says of the job in it."""
        return {}

    def _lay_job(self, entry: SlotEntry) -> None:
        self._lay(entry, Layer.JOB, {"JobId": entry.job_id} | self._remembered(entry) if entry.job_id else {})

    def _lay(self, entry: SlotEntry, layer: Layer, attributes: Mapping[str, AdValue]) -> None:
        if entry.ad.lay(layer, folded(attributes)):
            entry.version += 1
            entry.told = None

    def _lay_common(self, layer: Layer, attributes: Mapping[str, AdValue]) -> None:
        self._common[layer] = folded(attributes)
        self._common_version += 1
        self._node_part = None
        for entry in self._entries.values():
            entry.part = entry.told = None
            entry.ad.lay(layer, self._common[layer])

    def _reshare(self, shared: tuple[str, ...]) -> None:
        """Show other attributes to the others than before; what they are is written by `_show_neighbours`."""
        for entry in self._entries.values():
            self._write(entry.facts, self._neighbours.hide(entry.facts))
        before, self._neighbours = self._neighbours, Neighbours(shared)
        for entry in self._entries.values():
            entry.ad.see(dict.fromkeys(before.seen_by(entry.facts)))
            entry.ad.see(self._neighbours.seen_by(entry.facts))

    def _lay_free(self, entry: SlotEntry) -> None:
        if entry.facts.kind is SlotKind.PARTITIONABLE:
            slot_id = entry.facts.key.slot_id
            of_all = (each.facts for each in self._entries.values())
            children = sum(each.kind is SlotKind.DYNAMIC and each.key.slot_id == slot_id for each in of_all)
            # No new version: what is free is in the offer itself, and an offer of less of it goes on being good.
            entry.told = None
            entry.ad.lay(Layer.FREE, folded(of_amounts(entry.free) | {"NumDynamicSlots": children}))

    def _lay_readings(self, entry: SlotEntry) -> None:
        slot_id = entry.facts.key.slot_id
        keyboards, consoles = self._seats
        said = of_readings(self._sample, slot_id <= keyboards, slot_id <= consoles)
        loads = self._loads.get(entry.facts.name) or load_shares(0.0, {}, (entry.facts.name,))[entry.facts.name]
        entry.readings = {**said, **loads}
        entry.ad.lay(Layer.READINGS, folded(entry.readings))

    def _count_dynamic(self, slot: SlotFacts) -> None:
        parent = self._entries.get(f"slot{slot.key.slot_id}")
        if slot.kind is SlotKind.DYNAMIC and parent is not None:
            self._lay_free(parent)

    # Neighbours -------------------------------------------------------------------------------------------------

    def _show_neighbours(self, entry: SlotEntry) -> None:
        """Write what a slot shows into the ads of the others, where it has changed."""
        shown = {attribute: self._value(entry, attribute) for attribute in self._neighbours.shared}
        self._write(entry.facts, self._neighbours.show(entry.facts, shown))

    def _write(self, slot: SlotFacts, changes: Mapping[str, AdValue | None]) -> None:
        if not changes:
            return
        self._neighbours_part = None
        self._common_version += self._neighbours.matter(slot, changes)
        for other in self._entries.values():
            if other.facts is not slot:
                other.ad.see(changes)

    # Parts ------------------------------------------------------------------------------------------------------

    def _node_key(self) -> str:
        if self._node_part is None:
            said = [self._common[layer] for layer in sorted(self._common)]
            merged = {name: named for layer in said for name, named in layer.items()}
            self._node_part = self._parts.key(dict(merged.values()))
        self._parts.use(self._node_part)
        return self._node_part

    def _slot_key(self, entry: SlotEntry) -> str:
        if entry.part is None:
            entry.part = self._parts.key(entry.ad.of(Layer.SLOT, Layer.OWN_POLICY))
        self._parts.use(entry.part)
        return entry.part

    def _neighbours_key(self) -> str:
        if self._neighbours_part is None:
            self._neighbours_part = self._parts.key(self._neighbours.said)
        self._parts.use(self._neighbours_part)
        return self._neighbours_part
