"""The real node: this machine."""

from __future__ import annotations

from collections.abc import Iterable

from pilotage.clock import BootClock, Clock
from pilotage_pilot.core.slot_facts import NodeSample
from pilotage_pilot.node.activity import ActivityMeter
from pilotage_pilot.node.base import Share
from pilotage_pilot.node.probe import Probe
from pilotage_pilot.node.validate import Checks, node_faults
from pilotage_pilot.supervise.base import PayloadTime


class LocalNode:
    """The machine that the pilot is on, as far as its batch slot lets the pilot use it."""

    def __init__(self, probe: Probe, checks: Checks, clock: Clock, boot_clock: BootClock) -> None:
        self._probe = probe
        self._activity = ActivityMeter(checks.scratch)
        self._checks = checks
        self._clock = clock
        self._boot_clock = boot_clock

    def share(self) -> Share:
        """Return what the pilot was given."""
        return self._probe.share(self._clock().timestamp(), self._boot_clock())

    def sample(self, times: Iterable[PayloadTime]) -> NodeSample:
        """Return what goes on on the node; `times` are those of the payloads that run."""
        return self._activity.sample(times, self._clock().timestamp(), self._boot_clock())

    async def faults(self) -> tuple[str, ...]:
        """Return what makes the node unfit for work; none = it is fit."""
        return await node_faults(self._checks, self._clock)
