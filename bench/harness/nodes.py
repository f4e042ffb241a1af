"""Nodes under a policy, as real pilots describe their slots: requests made once, to be sent again and again."""

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
    """So many nodes under the policy of a file; each has a name of its own."""

    def __init__(self, policy: Path, nodes: int) -> None:
        loaded = load_policy(policy, _SIZE)
        self._nodes = [LiveSlots(loaded.policy, loaded.layout, _SIZE, f"node{number}") for number in range(nodes)]
        self._looks = count(1)

    def introductions(self) -> Iterator[bytes]:
        """Yield each node's first request, without its id, with the parts of the slot's ad that the server lacks."""
        for node in self._nodes:
            keys = node.ads.offer(_SLOT, node.now).part_keys
            parts = [matcher_service_pb2.AdPart(key=key, text=node.ads.part(key) or "") for key in keys]
            yield self._offer(node, *parts)

    def offers(self, looks: int) -> Iterator[bytes]:
        """Yield requests without ids, so many a node; loads and idle times are others in each, as on real nodes."""
        for _ in range(looks):
            for node in self._nodes:
                yield self._offer(node)

    def _offer(self, node: LiveSlots, *parts: matcher_service_pb2.AdPart) -> bytes:
        look = next(self._looks)
        node.look(load=0.1 + look % 19 / 100, keyboard_idle_s=86_400 + look)
        ad = node.ads.offer(_SLOT, node.now)
        slot = a_slot(_SLOT)
        slot.ad_parts.extend(ad.part_keys)
        slot.ad_changes = ad.changes
        slot.job_ad_wanted = True
        request = matcher_service_pb2.RequestJobsRequest(slots=[slot], ad_parts=parts)
        return request.SerializeToString()
