"""The ads of a node without a policy: the same facts, and not a word to the ClassAd library."""

from __future__ import annotations

import subprocess
import sys

from pilotage.classads.evaluation import Ad, NoValue
from pilotage_pilot.core.ads.attributes import NodeFacts, SlotFacts
from pilotage_pilot.core.ads.node_ads import BuiltInAds
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.core.slots.layout import lay_out
from support.live_slots import NODE, LiveSlots, job_ad, policy_of

_WITHOUT_LIBRARY = """
import sys
sys.modules["htcondor2"] = None
from support.live_slots import NODE, BEGIN, BOOT_S
from pilotage.classads.library import is_available
from pilotage_pilot.core.ads.node_ads import BuiltInAds
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.core.ads.attributes import NodeFacts, NodeSample, SlotFacts
from pilotage_pilot.core.slots.layout import lay_out
now = Now(BEGIN, BOOT_S)
layout = lay_out(Policy({}), NODE)
ads = BuiltInAds(NodeFacts.of("node1", NODE, layout))
ads.add(SlotFacts.of(layout.slots[0]))
ads.sample(NodeSample(5.0, load=1.0))
ads.job_entered("slot1", "no ad at all", "1.0", now)
offer = ads.offer("slot1", now)
print(is_available(), ads.starts("slot1", "no ad", now), len(offer.part_keys), "LoadAvg = 1.0" in offer.changes)
"""


def _ads() -> BuiltInAds:
    layout = lay_out(Policy({}), NODE)
    ads = BuiltInAds(NodeFacts.of("node1", NODE, layout, {"Arch": "X86_64"}))
    ads.add(SlotFacts.of(layout.slots[0]))
    return ads


def test_a_pilot_without_the_library_offers_ads_and_takes_every_job() -> None:
    command = [sys.executable, "-c", _WITHOUT_LIBRARY]
    path = {"PYTHONPATH": ":".join(sys.path)}
    said = subprocess.run(command, capture_output=True, text=True, env=path, check=True).stdout
    assert said.split() == ["False", "True", "2", "True"]


def test_such_an_ad_says_all_the_facts_and_nothing_of_a_policy() -> None:
    node, ads = LiveSlots(policy_of()), _ads()
    with_policy, without = node.plain(1), ads.plain("slot1", node.now)
    assert without["Arch"] == "X86_64"
    assert with_policy.keys() - without.keys() >= {"Start", "Rank", "SUSPEND"}
    assert without.keys() - with_policy.keys() == {"Arch"}
    offered = Ad.read(ads.part(ads.offer("slot1", node.now).part_keys[0]) or "")
    assert (offered.value("Start"), offered.value("DetectedCpus")) == (NoValue.UNDEFINED, 8)


def test_every_job_is_as_good_as_any_other() -> None:
    node, ads = LiveSlots(policy_of()), _ads()
    assert (ads.rank("slot1", job_ad(), node.now), ads.renice("slot1", job_ad(), node.now)) == (0.0, 0)
    assert (ads.preempts, ads.settable, ads.evaluator("slot1", node.now).polls) == (False, (), False)
    assert list(ads.set_attributes({"Open": "True"})) == ["Open"]
