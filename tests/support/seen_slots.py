"""What the server sees of the slots of a node."""

from __future__ import annotations

from pilotage.classads.evaluation import Ad
from pilotage.classads.library import Expression
from support.live_slots import LiveSlots, policy_of


def a_node(**texts: str) -> LiveSlots:
    """Return a node under a policy of these texts."""
    return LiveSlots(policy_of(**texts))


def seen(node: LiveSlots, slot: int, expression: str) -> object:
    """Return what the server makes of an expression in the ad that it is offered."""
    offer = node.ads.offer(f"slot{slot}", node.now)
    ad = Ad({})
    for key in offer.part_keys:
        text = node.ads.part(key)
        assert text is not None
        ad.update(text)
    ad.update(offer.changes)
    ad.set("Asked", Expression(expression))
    return ad.value("Asked")
