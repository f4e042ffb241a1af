"""The slots of a node with their live ads and their machines, under a policy, in virtual time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from pilotage.classads.library import AdValue
from pilotage.classads.text import ad_text, new_job_ad, overlaid
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.ads.attributes import NodeFacts, NodeSample, SlotFacts
from pilotage_pilot.core.ads.policy_ads import SlotAds
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.core.slots.events import (
    ClaimGranted,
    JobEnded,
    JobStarted,
    Polled,
    RefuseClaim,
    SlotEffect,
    SlotEvent,
)
from pilotage_pilot.core.slots.layout import Layout, lay_out
from pilotage_pilot.core.slots.machine import SlotMachine
from pilotage_pilot.policy.loading import load_policy

BEGIN = datetime(2026, 11, 20, 12, tzinfo=UTC)
BEGIN_S = int(BEGIN.timestamp())
BOOT_S = 50_000.0
ANN = Account("lhcb", "user", "ann")
NODE = Amounts(cpus=8, memory_mib=16000, disk_mib=80_000)


def policy_of(**texts: str) -> Policy:
    """Return a policy that says this; SLOT1_START and the like too."""
    return Policy({name.lower(): text for name, text in texts.items()})


def job_ad(**attributes: AdValue) -> str:
    """Return the ad of a job that has just been queued, with these attributes."""
    return ad_text(overlaid(new_job_ad(BEGIN_S), attributes))


class LiveSlots:
    """A node whose slots hear what the test tells them."""

    def __init__(self, policy: Policy, layout: Layout | None = None, size: Amounts = NODE, name: str = "node1") -> None:
        self.layout = layout or lay_out(policy, size)
        self.ads = SlotAds(policy, NodeFacts.of(name, size, self.layout))
        self.now = Now(BEGIN, BOOT_S)
        self.machines: dict[str, SlotMachine] = {}
        for slot in self.layout.slots:
            self.ads.add(SlotFacts.of(slot))
            self.machines[slot.name] = SlotMachine(self.now)
            self.ads.show(slot.name, self.machines[slot.name])
        self.look()
        self.poll()

    @classmethod
    def loaded(cls, path: Path, size: Amounts = NODE) -> LiveSlots:
        """Return a node under the policy of a file."""
        found = load_policy(path, size)
        return cls(found.policy, found.layout, size)

    def tell(self, slot: int, event: SlotEvent) -> tuple[SlotEffect, ...]:
        """Let something happen to a slot."""
        name = f"slot{slot}"
        effects = self.machines[name].handle(event, self.ads.evaluator(name, self.now), self.now)
        self.ads.show(name, self.machines[name])
        return effects

    def start(self, slot: int, ad: str, holder: Account = ANN) -> tuple[SlotEffect, ...]:
        """Give a job to a slot and let it run, if the slot takes it."""
        name = f"slot{slot}"
        self.ads.job_entered(name, ad, "7.0", self.now)
        effects = self.tell(slot, ClaimGranted(holder, self.ads.rank(name, ad, self.now)))
        if any(isinstance(effect, RefuseClaim) for effect in effects):
            self.ads.job_left(name)
            return effects
        return effects + self.tell(slot, JobStarted())

    def end(self, slot: int) -> tuple[SlotEffect, ...]:
        """Let a slot's job end."""
        self.ads.job_left(f"slot{slot}")
        return self.tell(slot, JobEnded())

    def look(self, *, load: float = 0.0, keyboard_idle_s: int = 86_400, **condor_loads: float) -> None:
        """Let the node be looked at; loads of jobs by slot."""
        self.ads.sample(NodeSample(self.now.boot_s, load, condor_loads, keyboard_idle_s, keyboard_idle_s))

    def poll(self, after_s: float = 0.0) -> dict[int, tuple[SlotEffect, ...]]:
        """Poll all slots in their order after some seconds; returns what comes of it, by slot."""
        self.now = Now(self.now.utc + timedelta(seconds=after_s), self.now.boot_s + after_s)
        found = {slot.key.slot_id: self.tell(slot.key.slot_id, Polled()) for slot in self.layout.slots}
        return {slot: effects for slot, effects in found.items() if effects}

    def doing(self, slot: int) -> str:
        """Return a slot's state and activity."""
        machine = self.machines[f"slot{slot}"]
        return f"{machine.state}/{machine.activity}"

    def plain(self, slot: int) -> dict[str, AdValue]:
        """Return all that is in a slot's ad."""
        return self.ads.plain(f"slot{slot}", self.now)

    def value(self, slot: int, expression_name: str) -> object:
        """Return what an expression of a slot comes to."""
        return self.ads.evaluator(f"slot{slot}", self.now).value(expression_name)
