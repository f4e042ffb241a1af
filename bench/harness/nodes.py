"""Requests of nodes under a policy, as real pilots describe their slots."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

from harness.grid import a_slot
from pilotage.v1 import matcher_service_pb2
from pilotage.values.amounts import Amounts
from pilotage_pilot.policy.loading import load_policy
from support.live_slots import LiveSlots

BOLOGNA = Path(__file__).parents[2] / "deploy" / "policies" / "bologna.conf"
_SIZE = Amounts(cpus=6, memory_mib=16_000, disk_mib=80_000)
_SLOT = "slot1"


class PolicyNodes:
    """Nodes with different names under the policy of a file."""

    def __init__(self, policy: Path, nodes: int) -> None:
        loaded = load_policy(policy, _SIZE)
        self._nodes = [LiveSlots(loaded.policy, loaded.layout, _SIZE, f"node{number}") for number in range(nodes)]
        self._looks = count(1)

    def introductions(self) -> Iterator[bytes]:
        """Yield each node's first request, without its id, with all parts of the slot's ad."""
        for node in self._nodes:
            keys = node.ads.offer(_SLOT, node.now).part_keys
            parts = [matcher_service_pb2.AdPart(key=key, text=node.ads.part(key) or "") for key in keys]
            yield self._offer(node, *parts)

    def offers(self, looks: int) -> Iterator[bytes]:
        """Yield `looks` requests a node, without ids; load and idle time differ in each, as on real nodes."""
        for _ in range(looks):
            for node in self._nodes:
                yield self._offer(node)

    def _offer(self, node: LiveSlots, *parts: matcher_service_pb2.AdPart) -> bytes:
        look = next(self._looks)
        node.sample(load=0.1 + look % 19 / 100, keyboard_idle_s=86_400 + look)
        ad = node.ads.offer(_SLOT, node.now)
        slot = a_slot(_SLOT)
        slot.ad_parts.extend(ad.part_keys)
        slot.ad_changes = ad.changes
        slot.job_ad_wanted = True
        request = matcher_service_pb2.RequestJobsRequest(slots=[slot], ad_parts=parts)
        return request.SerializeToString()
