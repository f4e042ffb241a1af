"""The ads of all slots of a node, kept up to date change by change, and the ads of a node without a policy.

Rules
-----
Only changed attributes are written. A slot's state is written when its ad, or one that shows it, is next read: short
jobs have hardly any reader.
An offered ad has three parts and a rest, divided by how often they change: the node's part (1 to 10 kB, mostly
constant), the slot's part (300 bytes), the attributes that slots show each other (60 bytes a slot and attribute, one
text for all slots, so that it travels once), and the rest in each offer: state, claim, job, loads, free resources (500
bytes). Without a policy, or without the ClassAd library, nothing is evaluated and no job ad is read. Such an ad has no
Start and no Rank: every job may start, none is preferred.
"""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.classads.evaluation import CURRENT_TIME, Ad
from pilotage.classads.library import AdValue
from pilotage.classads.text import ad_text
from pilotage.text import fold
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.ads.attributes import (
    INITIAL_STATE,
    Neighbours,
    NodeFacts,
    NodeSample,
    ShownSlot,
    SlotFacts,
    SlotKind,
    amount_attributes,
    clock_attributes,
    load_shares,
    node_attributes,
    reading_attributes,
    slot_attributes,
    state_attributes,
    unix_seconds,
)
from pilotage_pilot.core.ads.layered_ad import AdOffer, AdParts, Layer, LayeredAd, SlotEntry, folded
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.policy import BuiltInPolicyEvaluator
from pilotage_pilot.core.slots.states import SlotState

_EVERY_SLOT = 4096
_REPORTED_SEPARATELY = frozenset({"state", "activity", "enteredcurrentstate", "enteredcurrentactivity"})
"""Attributes that a slot report has in fields of its own."""


class FactAds:
    """The ads of a node's slots; `shared` names the attributes that each shows in the others' ads."""

    def __init__(self, node: NodeFacts, shared: tuple[str, ...] = ()) -> None:
        self._node = node
        self._entries: dict[str, SlotEntry] = {}
        self._unwritten: dict[str, SlotEntry] = {}
        self._common: dict[Layer, dict[str, tuple[str, AdValue]]] = {}
        self._common_version = 0
        self._seats = (_EVERY_SLOT, _EVERY_SLOT)
        self._sample = NodeSample(boot_s=0.0)
        self._loads: dict[str, dict[str, float]] = {}
        self._neighbours = Neighbours(shared)
        self._parts = AdParts()
        self._node_part: str | None = None
        self._neighbours_part: str | None = None
        self._lay_node()

    # Slots ------------------------------------------------------------------------------------------------------

    def add(self, slot: SlotFacts) -> None:
        """Add the ad of a slot."""
        assert slot.name not in self._entries, f"there is a {slot.name} already"
        entry = SlotEntry(slot, LayeredAd(self._new_live()), slot.amounts)
        self._entries[slot.name] = entry
        for layer, attributes in self._common.items():
            entry.ad.lay(layer, attributes)
        entry.ad.lay(Layer.SLOT, folded(slot_attributes(slot, self._node)))
        entry.ad.lay(Layer.STATE, folded(INITIAL_STATE))
        self._lay_free(entry)
        self._lay_readings(entry)
        self._lay_policy(entry)
        self._count_dynamic(slot)
        entry.ad.set_shared(self._neighbours.seen_by(slot))
        self._show_neighbours(entry)

    def remove(self, name: str) -> None:
        """Remove the ad of a slot, if it exists."""
        entry = self._entries.pop(name, None)
        if entry is None:
            return
        self._loads.pop(name, None)
        self._unwritten.pop(name, None)
        self._count_dynamic(entry.facts)
        self._write(entry.facts, self._neighbours.hide(entry.facts))

    def resize(self, name: str, free: Amounts) -> None:
        """Set the free resources of a partitionable slot."""
        entry = self._entries[name]
        entry.free = free
        self._lay_free(entry)
        self._show_neighbours(entry)

    def show(self, name: str, machine: ShownSlot) -> None:
        """Set the state of a slot."""
        entry = self._entries[name]
        entry.is_owners = machine.state is SlotState.OWNER
        entry.machine = machine
        self._unwritten[name] = entry

    def job_entered(self, name: str, job_ad: str, job_id: str, now: Now) -> None:
        """Set the job of a slot; raises InvalidInputError if its ad is needed and invalid."""
        entry = self._entries[name]
        entry.job_id = job_id
        self._unwritten[name] = entry

    def job_left(self, name: str) -> None:
        """Remove the job of a slot; expressions of a kept claim still use its last job."""
        entry = self._entries[name]
        entry.job_id = ""
        self._unwritten[name] = entry

    def claim_ended(self, name: str) -> None:
        """Record the end of a slot's claim."""

    def sample(self, sample: NodeSample, now: Now) -> None:
        """Apply a sample of the node."""
        before, self._sample = self._sample, sample
        if sample.utc_offset_s != before.utc_offset_s:
            self._lay_node()
        entries = sorted(self._entries.values(), key=lambda entry: not entry.is_owners)
        self._loads = load_shares(sample.load, sample.condor_loads, [entry.facts.name for entry in entries])
        for entry in self._entries.values():
            self._lay_readings(entry)
            self._lay_cpu_busy(entry, now)
            self._show_neighbours(entry)

    # Reading ----------------------------------------------------------------------------------------------------

    def offer(self, name: str, now: Now) -> AdOffer:
        """Return a slot's ad for an offer, without the time."""
        entry = self._read_entry(name)
        keys = [self._node_key(), self._slot_key(entry)]
        if self._neighbours.shared:
            keys.insert(0, self._neighbours_key())
        changes = entry.ad.of(Layer.FREE, Layer.STATE, Layer.READINGS, Layer.JOB)
        return AdOffer(tuple(keys), ad_text(changes))

    def part(self, key: str) -> str | None:
        """Return the text of an offered part, None = no longer kept."""
        return self._parts.text(key)

    def version(self, name: str) -> int:
        """Return a number that grows with every change of a slot's ad except loads, idle times and time."""
        return self._read_entry(name).version + self._common_version

    def full_text(self, name: str) -> str:
        """Return a slot's ad without state, activity, readings and attributes of other slots."""
        entry = self._read_entry(name)
        if entry.full_text is None:
            attributes = entry.ad.of(*(layer for layer in Layer if layer not in (Layer.KNOBS, Layer.READINGS)))
            entry.full_text = ad_text(
                {each: value for each, value in attributes.items() if fold(each) not in _REPORTED_SEPARATELY}
            )
        return entry.full_text

    def machine_ad(self, name: str, now: Now) -> str:
        """Return the full ad of a slot for its job."""
        attributes = self._read_entry(name).ad.of(*(layer for layer in Layer if layer is not Layer.KNOBS))
        return ad_text(attributes | self._neighbours.values | {CURRENT_TIME: unix_seconds(now)})

    def readings(self, name: str) -> Mapping[str, float]:
        """Return the readings of a slot: loads, idle times, free disk and memory."""
        return self._entries[name].readings

    def plain(self, name: str, now: Now) -> dict[str, AdValue]:
        """Return all attributes of a slot's ad, including the pilot's own expressions."""
        entry = self._read_entry(name)
        return entry.ad.of(*Layer) | self._neighbours.seen_by(entry.facts) | {CURRENT_TIME: unix_seconds(now)}

    def _read_entry(self, name: str) -> SlotEntry:
        """Return a slot after writing all pending changes that its ad shows."""
        entry = self._entries[name]
        for stale in tuple(self._unwritten.values()) if self._neighbours.shared else (entry,):
            if self._unwritten.pop(stale.facts.name, None) is not None:
                if stale.machine is not None:
                    self._lay(stale, Layer.STATE, state_attributes(stale.machine))
                self._lay_job(stale)
                self._show_neighbours(stale)
        return entry

    # Layers -----------------------------------------------------------------------------------------------------

    def _new_live(self) -> Ad | None:
        """Return a new live ad, None = without library."""
        return None

    def _value(self, entry: SlotEntry, name: str) -> AdValue | None:
        """Return the value that a slot shows for `name`, None = undefined."""
        return entry.ad.get(fold(name))

    def _lay_policy(self, entry: SlotEntry) -> None:
        """Write the policy's attributes into a slot's ad; without a policy there are none."""

    def _remembered(self, entry: SlotEntry) -> dict[str, AdValue]:
        """Return the attributes of its job that a slot shows."""
        return {}

    def _lay_job(self, entry: SlotEntry) -> None:
        self._lay(entry, Layer.JOB, {"JobId": entry.job_id} | self._remembered(entry) if entry.job_id else {})

    def _lay(self, entry: SlotEntry, layer: Layer, attributes: Mapping[str, AdValue]) -> None:
        if entry.ad.lay(layer, folded(attributes)):
            entry.version += 1
            entry.full_text = None

    def _lay_node(self) -> None:
        self._lay_common(Layer.NODE, node_attributes(self._node) | clock_attributes(self._sample.utc_offset_s))

    def _lay_common(self, layer: Layer, attributes: Mapping[str, AdValue]) -> None:
        self._common[layer] = folded(attributes)
        self._common_version += 1
        self._node_part = None
        for entry in self._entries.values():
            entry.part_key = entry.full_text = None
            entry.ad.lay(layer, self._common[layer])

    def _reshare(self, shared: tuple[str, ...]) -> None:
        """Change the set of shared attributes; `_show_neighbours` writes their values."""
        for entry in self._entries.values():
            self._write(entry.facts, self._neighbours.hide(entry.facts))
        before, self._neighbours = self._neighbours, Neighbours(shared)
        for entry in self._entries.values():
            entry.ad.set_shared(dict.fromkeys(before.seen_by(entry.facts)))
            entry.ad.set_shared(self._neighbours.seen_by(entry.facts))

    def _lay_free(self, entry: SlotEntry) -> None:
        if entry.facts.kind is SlotKind.PARTITIONABLE:
            slot_id = entry.facts.key.slot_id
            of_all = (each.facts for each in self._entries.values())
            children = sum(each.kind is SlotKind.DYNAMIC and each.key.slot_id == slot_id for each in of_all)
            # No new version: an offer has the free resources in a field, and stays valid for less of them.
            entry.full_text = None
            entry.ad.lay(Layer.FREE, folded(amount_attributes(entry.free) | {"NumDynamicSlots": children}))

    def _lay_readings(self, entry: SlotEntry) -> None:
        slot_id = entry.facts.key.slot_id
        keyboards, consoles = self._seats
        attributes = reading_attributes(self._sample, slot_id <= keyboards, slot_id <= consoles)
        loads = self._loads.get(entry.facts.name) or load_shares(0.0, {}, (entry.facts.name,))[entry.facts.name]
        entry.readings = {**attributes, **loads}
        entry.ad.lay(Layer.READINGS, folded({**entry.readings, **entry.cpu_busy}))

    def _lay_cpu_busy(self, entry: SlotEntry, now: Now) -> None:
        """Write whether the policy's CpuBusy is true; without a policy it is not."""

    def _count_dynamic(self, slot: SlotFacts) -> None:
        parent = self._entries.get(f"slot{slot.key.slot_id}")
        if slot.kind is SlotKind.DYNAMIC and parent is not None:
            self._lay_free(parent)

    # Neighbours -------------------------------------------------------------------------------------------------

    def _show_neighbours(self, entry: SlotEntry) -> None:
        """Write the changed shared attributes of a slot into the ads of the others."""
        shown = {attribute: self._value(entry, attribute) for attribute in self._neighbours.shared}
        self._write(entry.facts, self._neighbours.show(entry.facts, shown))

    def _write(self, slot: SlotFacts, changes: Mapping[str, AdValue | None]) -> None:
        if not changes:
            return
        self._neighbours_part = None
        self._common_version += self._neighbours.is_significant(slot, changes)
        for other in self._entries.values():
            if other.facts is not slot:
                other.ad.set_shared(changes)

    # Parts ------------------------------------------------------------------------------------------------------

    def _node_key(self) -> str:
        if self._node_part is None:
            layers = [self._common[layer] for layer in sorted(self._common)]
            merged = {name: named for layer in layers for name, named in layer.items()}
            self._node_part = self._parts.key(dict(merged.values()))
        self._parts.touch(self._node_part)
        return self._node_part

    def _slot_key(self, entry: SlotEntry) -> str:
        if entry.part_key is None:
            entry.part_key = self._parts.key(entry.ad.of(Layer.SLOT, Layer.OWN_POLICY))
        self._parts.touch(entry.part_key)
        return entry.part_key

    def _neighbours_key(self) -> str:
        if self._neighbours_part is None:
            self._neighbours_part = self._parts.key(self._neighbours.values)
        self._parts.touch(self._neighbours_part)
        return self._neighbours_part


class BuiltInAds(FactAds):
    """The ads of a node's slots under the built-in policy."""

    settable: tuple[str, ...] = ()
    preempts = False
    uses_claim_ends = False

    def evaluator(self, name: str, now: Now) -> BuiltInPolicyEvaluator:
        """Return the evaluator of the slot's expressions."""
        return BuiltInPolicyEvaluator()

    def starts(self, name: str, job_ad: str, now: Now) -> bool | None:
        """Whether a job may start in a slot: any may."""
        return True

    def rank(self, name: str, job_ad: str, now: Now) -> float:
        """Return the slot's rank of a job: 0 for all."""
        return 0.0

    def renice(self, name: str, job_ad: str, now: Now) -> int:
        """Return the nice value of a job in a slot."""
        return 0

    def set_attributes(self, expressions: Mapping[str, str]) -> dict[str, str]:
        """Refuse all attributes; returns the reasons by attribute."""
        return dict.fromkeys(expressions, "this node has no policy that lists it as settable")
