"""A slot's ad in layers: who says what of a slot, and who has the last word.

Rules
-----
Of each name the uppermost layer that has it is what the ad says. Where the ClassAd library is there, a live ad
follows every change, in place; only what did change is written. Names are case-insensitive, as in every ad.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import IntEnum
from typing import TypeAlias

from pilotage.classad_evaluation import Ad
from pilotage.classads import AdValue
from pilotage.folding import fold

Named: TypeAlias = tuple[str, AdValue]
"""An attribute as it is spelled, and its value."""

Attributes: TypeAlias = Mapping[str, Named]
"""Attributes by their folded names."""


class Layer(IntEnum):
    """Who says it, from the one that gives way to all others."""

    KNOBS = 0
    """Expressions of the policy that are for the pilot alone, as HTCondor's startd keeps them beside the ad."""
    NODE = 1
    SLOT = 2
    FREE = 3
    STATE = 4
    READINGS = 5
    POLICY = 6
    OWN_POLICY = 7
    """What a policy says of this slot otherwise than of the node's other slots."""
    JOB = 8
    OPERATOR = 9


FACTS = (Layer.NODE, Layer.SLOT, Layer.FREE, Layer.STATE, Layer.READINGS)
"""The layers that are the pilot's own."""


class LayeredAd:
    """One slot's ad; `live` is the library's ad that follows it, None = there is none."""

    def __init__(self, live: Ad | None) -> None:
        self.live = live
        self._layers: list[Attributes] = [{} for _ in Layer]

    def lay(self, layer: Layer, attributes: Attributes) -> bool:
        """Put `attributes` in the place of what `layer` said; says whether anything is different now."""
        before = self._layers[layer]
        self._layers[layer] = attributes
        changed = [name for name in {**before, **attributes} if not _same(before.get(name), attributes.get(name))]
        for name in changed:
            self._follow(name)
        return bool(changed)

    def see(self, others: Mapping[str, AdValue | None]) -> None:
        """Let the live ad say, beneath no layer, what other slots show; None = it no longer does."""
        if self.live is None:
            return
        for name, value in others.items():
            if value is None:
                self.live.discard(name)
            else:
                self.live.set(name, value)

    def get(self, name: str) -> AdValue | None:
        """Return what the ad says under the folded `name`, None = nothing."""
        found = self._find(name)
        return None if found is None else found[1]

    def has_fact(self, name: str) -> bool:
        """Say whether the pilot itself says something under the folded `name`."""
        return any(name in self._layers[layer] for layer in FACTS)

    def of(self, *layers: Layer) -> dict[str, AdValue]:
        """Return what these layers say and no other gainsays."""
        return dict(self._uncontested(layers))

    def _uncontested(self, layers: tuple[Layer, ...]) -> Iterator[Named]:
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
