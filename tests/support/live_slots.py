"""The slots of a node under a policy: its expressions alone, and with live ads and slot machines in virtual time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import pytest

from pilotage.classads.evaluation import Ad, Result
from pilotage.classads.library import AdValue, Expression
from pilotage.classads.text import ad_text, new_job_ad, overlaid
from pilotage.values.accounts import Account
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.ads.attributes import NodeFacts, NodeSample, SlotFacts
from pilotage_pilot.core.ads.policy_ads import SlotAds, unattended_slot_ad
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.policy import Evaluated, Policy, evaluate_all
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
from pilotage_pilot.policy.loading import Loaded, load_policy

NOW_S = 1_700_000_000
NOW = Now(datetime.fromtimestamp(NOW_S, UTC), boot_s=100_000.0)
SHIPPED = Path(__file__).parents[2] / "deploy" / "policies"

Job: TypeAlias = Mapping[str, AdValue]

SINGLE: Job = {}
CLAIMED = "Claimed"


BEGIN = datetime(2026, 11, 20, 12, tzinfo=UTC)
BEGIN_S = int(BEGIN.timestamp())
BOOT_S = 50_000.0
ANN = Account("lhcb", "user", "ann")
NODE = Amounts(cpus=8, memory_mib=16000, disk_mib=80_000)


@lru_cache(maxsize=64)
def _load(path: Path, node: Amounts) -> Loaded:
    return load_policy(path, node)


class PolicyBench:
    """Evaluates the policy of a file on an idle node."""

    def __init__(self, path: Path, cpus: int = 8, memory_mib: int = 16054) -> None:
        self._size = Amounts(cpus, memory_mib)
        self.loaded = _load(path, self._size)

    def values(self, slot: int, job: Job | None = None, **changes: AdValue) -> dict[str, Evaluated]:
        """Return all expressions of a slot for a job; `changes` replace attributes of the slot's ad."""
        loaded = self.loaded
        static = loaded.layout.slot(slot)
        node = NodeFacts.of("node", self._size, loaded.layout)
        my = Ad(overlaid(unattended_slot_ad(loaded.policy, static, loaded.layout, node, NOW), changes))
        target = None if job is None else Ad(overlaid(new_job_ad(NOW_S), job))
        return evaluate_all(loaded.policy, static.key, my, target)

    def value(self, name: str, slot: int, job: Job | None = None, **changes: AdValue) -> Result:
        """Return the value of one expression of a slot."""
        return self.values(slot, job, **changes)[name].value


def policy_params(*names: tuple[str, str]) -> list[object]:
    """Return the parameters of a fixture for policies, each given as (author, file)."""
    return [pytest.param(name, id=f"{author}: {name}") for author, name in names]


def bench_of(request: pytest.FixtureRequest, shared_data: Path, cpus: int) -> PolicyBench:
    """Return the bench of the policy that is a fixture's parameter, shipped or as published by its authors."""
    name = request.param
    return PolicyBench((SHIPPED if "-" in name or name == "bologna.conf" else shared_data / "policies") / name, cpus)


def policy_of(**texts: str) -> Policy:
    """Return a policy of these knobs, also for one slot type, such as SLOT1_START."""
    return Policy({name.lower(): text for name, text in texts.items()})


def job_ad(**attributes: AdValue) -> str:
    """Return the ad of a newly queued job with these attributes."""
    return ad_text(overlaid(new_job_ad(BEGIN_S), attributes))


class LiveSlots:
    """The slots of a node; a test feeds them events."""

    def __init__(self, policy: Policy, layout: Layout | None = None, size: Amounts = NODE, name: str = "node1") -> None:
        self.layout = layout or lay_out(policy, size)
        self.ads = SlotAds(policy, NodeFacts.of(name, size, self.layout))
        self.now = Now(BEGIN, BOOT_S)
        self.machines: dict[str, SlotMachine] = {}
        for slot in self.layout.slots:
            self.ads.add(SlotFacts.of(slot))
            self.machines[slot.name] = SlotMachine(self.now)
            self.ads.show(slot.name, self.machines[slot.name])
        self.sample()
        self.poll()

    @classmethod
    def loaded(cls, path: Path, size: Amounts = NODE) -> LiveSlots:
        """Return a node under the policy of a file."""
        found = load_policy(path, size)
        return cls(found.policy, found.layout, size)

    def feed(self, slot: int, event: SlotEvent) -> tuple[SlotEffect, ...]:
        """Feed an event to a slot; returns its effects."""
        name = f"slot{slot}"
        effects = self.machines[name].handle(event, self.ads.evaluator(name, self.now), self.now)
        self.ads.show(name, self.machines[name])
        return effects

    def start(self, slot: int, ad: str, holder: Account = ANN) -> tuple[SlotEffect, ...]:
        """Claim a slot for a job and start the job, unless the slot refuses it."""
        name = f"slot{slot}"
        self.ads.job_entered(name, ad, "7.0", self.now)
        effects = self.feed(slot, ClaimGranted(holder, self.ads.rank(name, ad, self.now)))
        if any(isinstance(effect, RefuseClaim) for effect in effects):
            self.ads.job_left(name)
            return effects
        return effects + self.feed(slot, JobStarted())

    def end(self, slot: int) -> tuple[SlotEffect, ...]:
        """End the job of a slot."""
        self.ads.job_left(f"slot{slot}")
        return self.feed(slot, JobEnded())

    def sample(
        self, *, load: float = 0.0, keyboard_idle_s: int = 86_400, utc_offset_s: int = 0, **condor_loads: float
    ) -> None:
        """Sample the node; `condor_loads` are the loads of jobs by slot."""
        sample = NodeSample(
            self.now.boot_s, load, condor_loads, keyboard_idle_s, keyboard_idle_s, utc_offset_s=utc_offset_s
        )
        self.ads.sample(sample, self.now)

    def poll(self, after_s: float = 0.0) -> dict[int, tuple[SlotEffect, ...]]:
        """Poll all slots in their order after some seconds; returns the effects by slot."""
        self.now = Now(self.now.utc + timedelta(seconds=after_s), self.now.boot_s + after_s)
        found = {slot.key.slot_id: self.feed(slot.key.slot_id, Polled()) for slot in self.layout.slots}
        return {slot: effects for slot, effects in found.items() if effects}

    def state_and_activity(self, slot: int) -> str:
        """Return state and activity of a slot, such as "Claimed/Busy"."""
        machine = self.machines[f"slot{slot}"]
        return f"{machine.state}/{machine.activity}"

    def ad_values(self, slot: int) -> dict[str, AdValue]:
        """Return all values of a slot's ad."""
        return self.ads.plain(f"slot{slot}", self.now)

    def value(self, slot: int, expression_name: str) -> object:
        """Return the value of an expression of a slot."""
        return self.ads.evaluator(f"slot{slot}", self.now).value(expression_name)


def a_node(**texts: str) -> LiveSlots:
    """Return a node under a policy of these knobs."""
    return LiveSlots(policy_of(**texts))


def value_at_server(node: LiveSlots, slot: int, expression: str) -> object:
    """Return the value of an expression in the ad that the server reads from an offer."""
    offer = node.ads.offer(f"slot{slot}", node.now)
    ad = Ad({})
    for key in offer.part_keys:
        text = node.ads.part(key)
        assert text is not None
        ad.update(text)
    ad.update(offer.changes)
    ad.set("Asked", Expression(expression))
    return ad.value("Asked")
