"""A slot's ad in layers, and the parts of ads that are offered by their hash.

Rules
-----
The uppermost layer that has an attribute gives its value. A live ad of the ClassAd library follows each change in
place. Attribute names are case-insensitive.
Equal texts are one part, whatever slots they come from. Parts are kept while in use or used lately, so that a server
that has lost one can get it again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TypeAlias

from pilotage.classads.evaluation import Ad
from pilotage.classads.library import AdValue
from pilotage.classads.text import ad_text
from pilotage.text import fold
from pilotage.values.amounts import NOTHING, Amounts
from pilotage_pilot.core.ads.attributes import ShownSlot, SlotFacts

Named: TypeAlias = tuple[str, AdValue]
"""Spelled name and value of an attribute."""

Attributes: TypeAlias = Mapping[str, Named]
"""Attributes by their folded names."""


class Layer(IntEnum):
    """Layers of an ad, the lowest precedence first."""

    KNOBS = 0
    """Expressions of the policy for the pilot alone, as HTCondor's startd keeps them outside the ad."""
    NODE = 1
    SLOT = 2
    FREE = 3
    STATE = 4
    READINGS = 5
    POLICY = 6
    OWN_POLICY = 7
    """Policy values that differ from those of the node's other slots."""
    JOB = 8
    OPERATOR = 9


FACTS = (Layer.NODE, Layer.SLOT, Layer.FREE, Layer.STATE, Layer.READINGS)
"""The layers with the pilot's own facts."""


class LayeredAd:
    """One slot's ad; `live` is the library's ad that follows it, None = none."""

    def __init__(self, live: Ad | None) -> None:
        self.live = live
        self._layers: list[Attributes] = [{} for _ in Layer]

    def lay(self, layer: Layer, attributes: Attributes) -> bool:
        """Replace the attributes of a layer; returns whether any has changed."""
        before = self._layers[layer]
        self._layers[layer] = attributes
        changed = [name for name in {**before, **attributes} if not _same(before.get(name), attributes.get(name))]
        for name in changed:
            self._follow(name)
        return bool(changed)

    def set_shared(self, others: Mapping[str, AdValue | None]) -> None:
        """Set the attributes of other slots in the live ad only; None = remove."""
        if self.live is None:
            return
        for name, value in others.items():
            if value is None:
                self.live.discard(name)
            else:
                self.live.set(name, value)

    def get(self, name: str) -> AdValue | None:
        """Return the value of the folded `name`, None = undefined."""
        found = self._find(name)
        return None if found is None else found[1]

    def has_fact(self, name: str) -> bool:
        """Whether the folded `name` is one of the pilot's facts."""
        return any(name in self._layers[layer] for layer in FACTS)

    def of(self, *layers: Layer) -> dict[str, AdValue]:
        """Return the attributes of these layers that no upper layer overrides."""
        return dict(self._effective(layers))

    def _effective(self, layers: tuple[Layer, ...]) -> Iterator[Named]:
        for layer in layers:
            above = self._layers[layer + 1 :]
            for name, named in self._layers[layer].items():
                if not any(name in each for each in above):
                    yield named

    def _find(self, name: str) -> Named | None:
        return next((layer[name] for layer in reversed(self._layers) if name in layer), None)

    def _follow(self, name: str) -> None:
        if self.live is None:
            return
        found = self._find(name)
        if found is None:
            self.live.discard(name)
        else:
            self.live.set(*found)


def folded(attributes: Mapping[str, AdValue]) -> dict[str, Named]:
    """Return attributes by their folded names."""
    return {fold(name): (name, value) for name, value in attributes.items()}


def _same(before: Named | None, after: Named | None) -> bool:
    if before is None or after is None:
        return before is after
    # True, 1 and 1.0 are different things to a policy.
    return type(before[1]) is type(after[1]) and before[1] == after[1]


_KEPT = 1024
"""Number of parts to keep: more than a node with a slot per core uses."""


@dataclass(frozen=True, slots=True)
class AdOffer:
    """An ad for an offer: the keys of its parts, the later wins, and `changes`, which win over all parts."""

    part_keys: tuple[str, ...]
    changes: str


class AdParts:
    """The last used parts, by key."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def key(self, attributes: Mapping[str, AdValue]) -> str:
        """Return the key of the part with these attributes."""
        text = ad_text(attributes)
        key = hashlib.sha256(text.encode()).hexdigest()
        self.touch(key, text)
        return key

    def touch(self, key: str, text: str | None = None) -> None:
        """Mark a part as used; `text` None = known part."""
        kept = self._texts.pop(key, text)
        assert kept is not None, f"no part {key}"
        self._texts[key] = kept
        if len(self._texts) > _KEPT:
            del self._texts[next(iter(self._texts))]

    def text(self, key: str) -> str | None:
        """Return the text of a part, None = no longer kept."""
        return self._texts.get(key)


@dataclass(slots=True)
class SlotEntry:
    """A slot and its ad; `free` are the free resources of a partitionable slot.

    `machine` None = no state yet. `part_key` and `full_text` are cached, None = changed since. `readings` are its loads
    and idle times, `cpu_busy` the state of the policy's CpuBusy.
    """

    facts: SlotFacts
    ad: LayeredAd
    free: Amounts = NOTHING
    machine: ShownSlot | None = None
    is_owners: bool = False
    job_id: str = ""
    version: int = 0
    part_key: str | None = None
    full_text: str | None = None
    readings: Mapping[str, float] = field(default_factory=dict)
    cpu_busy: Mapping[str, AdValue] = field(default_factory=dict)
