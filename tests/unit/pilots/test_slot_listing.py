"""Listed slot ads include the attributes that slots of one node share (STARTD_SLOT_ATTRS)."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from pilotage.classads.evaluation import Ad
from pilotage.resources.tree import QueueId
from pilotage.values.amounts import Amounts
from pilotage_server.core.attempts.reports import ReportedSlot
from pilotage_server.core.pilots.pilots import SlotInfo
from pilotage_server.core.pilots.slot_listing import slot_ads
from support.live_slots import BEGIN, LiveSlots, job_ad, policy_of

LONG = QueueId("SITE", "ce01", "long")


def listed(node: LiveSlots, pilot_stamp: str = "p1") -> list[tuple[SlotInfo, Ad]]:
    """Return the node's slots as the server lists them from the reports of their pilot."""
    infos = []
    for number, slot in enumerate(node.layout.slots, start=1):
        ad, since = (
            node.ad_values(number),
            datetime.fromtimestamp(int(str(node.ad_values(number)["EnteredCurrentState"])), UTC),
        )
        size = Amounts(slot.amounts.cpus, slot.amounts.memory_mib)
        reported = ReportedSlot(
            slot.name, str(ad["State"]), str(ad["Activity"]), size, size, since=since, since_state=since
        )
        reported = replace(reported, ad=node.ads.full_text(slot.name))
        infos.append(SlotInfo(reported, "node1", pilot_stamp, LONG, BEGIN))
    return slot_ads(infos, node.now.utc)


def a_node(**texts: str) -> LiveSlots:
    return LiveSlots(policy_of(NUM_SLOTS="3", **texts))


def test_listed_slot_has_shared_attributes_of_all_slots() -> None:
    node = a_node(
        STARTD_SLOT_ATTRS="State, EnteredCurrentState", STARTD_SLOT_EXPRS="Half", STARTD_ATTRS="Half", Half="Cpus / 2.0"
    )
    node.poll(7.0)
    node.start(2, job_ad())
    names = [f"{slot}{number}_{name}" for slot in ("slot", "vm") for number in (1, 2, 3) for name in ("State", "Half")]
    names += [f"slot{number}_EnteredCurrentState" for number in (1, 2, 3)]
    for number, (_, ad) in enumerate(listed(node), start=1):
        expected = Ad(node.ad_values(number))
        assert {name: ad.value(name) for name in names} == {name: expected.value(name) for name in names}
        assert [ad.value(name) for name in ("SLOT1_STATE", "vm2_State", "slot1_Half")] == ["Unclaimed", "Claimed", 1.0]


def test_slots_share_attributes_only_within_a_node() -> None:
    infos = [info for stamp in ("p1", "p2") for info, _ in listed(a_node(STARTD_SLOT_ATTRS="State"), stamp)]
    claimed = replace(infos[0], slot=replace(infos[0].slot, state="Claimed"))
    ads = slot_ads([claimed, *infos[1:]], BEGIN)
    assert [ad.value("slot1_State") for _, ad in ads] == ["Claimed"] * 3 + ["Unclaimed"] * 3


def test_dynamic_slot_shares_attributes_under_its_name() -> None:
    parent = ReportedSlot("slot1", "Unclaimed", "Idle", Amounts(8), Amounts(6), partitionable=True)
    child = ReportedSlot("slot1_2", "Claimed", "Busy", Amounts(2), Amounts())
    shared = 'SharedSlotAttributes = "State"; SlotID = 1'
    slots = replace(parent, ad=f"[{shared}]"), replace(child, ad=f"[{shared}; DynamicSlot = true]")
    for _, ad in slot_ads((SlotInfo(slot, "node1", "p1", LONG, BEGIN) for slot in slots), BEGIN):
        assert [ad.value(f"{name}_State") for name in ("slot1", "vm1", "slot1_2")] == ["Unclaimed"] * 2 + ["Claimed"]


def test_slots_share_nothing_without_policy() -> None:
    ((_, ad), *_) = listed(a_node())
    assert not [name for name in ad.plain() if name.lower().startswith(("slot1_", "vm1_", "shared"))]
