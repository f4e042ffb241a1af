"""What a tried policy says of live slots is what their pilot says after it has loaded the policy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilotage.classads.evaluation import Ad
from pilotage.classads.text import ad_text
from pilotage.condor.config import ConfigurationContext
from pilotage_pilot.command_line import run
from pilotage_pilot.core.policy import JobAd
from pilotage_pilot.policy.live import TRUTHS, LiveSlot, try_policy
from pilotage_pilot.policy.loading import load_policy
from support.live_slots import NODE, SHIPPED, LiveSlots, job_ad

PRESENT = """
NUM_SLOTS = 4
START = TARGET.Kind =?= "a"
STARTD_ATTRS = Limit
Limit = 3
"""
TRIED = """
NUM_SLOTS = 4
START = TARGET.Kind =?= "b" && SlotID <= Limit
SLOT4_START = true
STARTD_ATTRS = Limit
Limit = 2
WANT_SUSPEND = SlotID > 1
SUSPEND = LoadAvg > 0.5
PREEMPT = TARGET.Kind =!= "b"
IS_OWNER = false
"""
KINDS = [job_ad(Kind=kind) for kind in ("a", "b", "c")]


def text_file(folder: Path, name: str, text: str) -> Path:
    (folder / name).write_text(text)
    return folder / name


def live(node: LiveSlots, jobs: dict[int, str]) -> list[LiveSlot]:
    """Return the slots of a node as the server shows them; `jobs` are those in slots."""
    return [
        LiveSlot(Ad.read(ad_text(node.ad_values(number))), JobAd.read(jobs[number]) if number in jobs else None)
        for number in range(1, len(node.layout.slots) + 1)
    ]


@pytest.mark.parametrize("tried", [TRIED, (SHIPPED / "bologna.conf").read_text()], ids=["written", "bologna"])
def test_tried_policy_says_what_the_pilot_says_after_the_reload(tmp_path: Path, tried: str) -> None:
    path = text_file(tmp_path, "tried.conf", tried)
    after = load_policy(path, NODE)
    node = LiveSlots(load_policy(text_file(tmp_path, "present.conf", PRESENT), NODE).policy, after.layout)
    jobs = {2: KINDS[0], 3: KINDS[0]}
    for slot, ad in jobs.items():
        node.start(slot, ad)
    node.sample(load=2.0, slot2=0.9)
    said = try_policy(path, live(node, jobs), [JobAd.read(ad) for ad in KINDS], ConfigurationContext())
    assert [each["starts_now"] for each in said] == [[True, False, False]] * len(after.layout.slots)

    node.ads.change_policy(after.policy)
    for number, each in enumerate(said, start=1):
        evaluator = node.ads.evaluator(f"slot{number}", node.now)
        assert each["values"] == {name: evaluator.truth(name) for name in TRUTHS}
        assert each["starts"] == [node.ads.starts(f"slot{number}", ad, node.now) for ad in KINDS]


def test_policy_for_one_slot_counts_there_only(tmp_path: Path) -> None:
    node = LiveSlots.loaded(text_file(tmp_path, "present.conf", PRESENT))
    path = text_file(tmp_path, "tried.conf", TRIED)
    said = try_policy(path, live(node, {}), [JobAd.read(ad) for ad in KINDS], ConfigurationContext())
    assert [each["starts"] for each in said] == [[False, True, False]] * 2 + [[False] * 3, [True] * 3]


def test_check_refuses_slots_that_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    policy = text_file(tmp_path, "tried.conf", TRIED)
    for text in ("{", json.dumps({"slots": [{"ad": "[ x = ", "job": None}], "jobs": []})):
        assert run(["check", str(policy), "--slots", str(text_file(tmp_path, "slots.json", text))]) == 2
        assert "--slots" in capsys.readouterr().err or "ad" in text
