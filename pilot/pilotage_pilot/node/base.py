"""The edge to the node: what the pilot's shell asks of the machine that it is on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.slot_facts import NodeSample
from pilotage_pilot.supervise.base import PayloadTime


@dataclass(frozen=True, slots=True)
class Share:
    """What a pilot was given of its node, and where each figure comes from, for people.

    `gpu_ids` has one id a GPU. `ends_boot_s` is when the batch slot ends, on the boot clock; None = not known.
    """

    amounts: Amounts
    gpu_ids: tuple[str, ...]
    ends_boot_s: float | None
    host: str
    sources: tuple[str, ...]


class Node(Protocol):
    """A machine with a batch slot on it."""

    def share(self) -> Share:
        """Return what the pilot was given."""

    def sample(self, times: Iterable[PayloadTime]) -> NodeSample:
        """Return what goes on on the node; `times` are those of the payloads that run."""

    async def faults(self) -> tuple[str, ...]:
        """Return what makes the node unfit for work; none = it is fit."""
