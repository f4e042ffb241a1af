"""Slot ads after operators set attributes and after a policy reload."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.classads.evaluation import Ad
from pilotage.classads.library import AdValue, Expression
from pilotage.errors import InvalidInputError
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.policy.loading import load_policy
from support.live_slots import NODE, SHIPPED, LiveSlots, job_ad, policy_of

SETTABLE = {"SETTABLE_ATTRS_ADMINISTRATOR": "Open, Level", "ENABLE_PERSISTENT_CONFIG": "True"}


def _node(**texts: str) -> LiveSlots:
    return LiveSlots(policy_of(**{**SETTABLE, **texts}))


@pytest.fixture(params=["shipped", "published"])
def draining(request: pytest.FixtureRequest, shared_data: Path) -> LiveSlots:
    published = shared_data / "policies" / "fallow.conf"
    return LiveSlots.loaded(SHIPPED / "multicore-drain.conf" if request.param == "shipped" else published)


@pytest.mark.parametrize(
    ("value", "cpus", "starts"),
    [
        ("True", 8, True),
        ("True", 8.0, False),
        ("True", 16, False),
        ("True", 1, False),
        ('"True"', 1, True),
        ("False", 1, True),
    ],
)
def test_only_multicore_attribute_restricts_start(draining: LiveSlots, value: str, cpus: AdValue, starts: bool) -> None:
    assert "OnlyMulticore" in draining.ads.settable
    assert draining.ads.set_attributes({"OnlyMulticore": value}) == {}
    assert draining.ads.starts("slot1", job_ad(RequestCpus=cpus), draining.now) is starts


def test_set_attribute_overrides_policy_until_unset() -> None:
    node = _node(STARTD_ATTRS="Open", Open="True", START="Open", SLOT1_Open="True")
    before = node.ads.version("slot1")
    assert node.ads.set_attributes({"open": "1 > 2"}) == {}
    assert node.ads.version("slot1") > before
    assert node.ads.starts("slot1", job_ad(), node.now) is False
    offer = node.ads.offer("slot1", node.now)
    assert "open = 1 > 2" in "".join(node.ads.part(key) or "" for key in offer.part_keys)
    assert node.ads.set_attributes({}) == {}
    assert node.ads.starts("slot1", job_ad(), node.now) is True


def test_setting_equal_value_keeps_version() -> None:
    node = _node()
    node.ads.set_attributes({"Level": "3"})
    before = node.ads.version("slot1")
    node.ads.set_attributes({"Level": "3"})
    assert node.ads.version("slot1") == before


def test_only_listed_attributes_accept_valid_expressions() -> None:
    node = _node(STARTD_ATTRS="Level", Level="1")
    refused = node.ads.set_attributes({"State": '"Owner"', "Level": "1 +", "Open": "True"})
    assert sorted(refused) == ["Level", "State"]
    assert "does not list it" in refused["State"]
    assert "not a ClassAd expression" in refused["Level"]
    assert (node.ad_values(1)["Level"], node.ad_values(1)["Open"], node.ad_values(1)["State"]) == (1, True, "Unclaimed")


@pytest.mark.parametrize(
    ("texts", "settable"),
    [
        ({}, ("Open", "Level")),
        ({"ENABLE_PERSISTENT_CONFIG": "False"}, ()),
        ({"ENABLE_PERSISTENT_CONFIG": "no", "ENABLE_RUNTIME_CONFIG": "True"}, ("Open", "Level")),
        ({"STARTD.SETTABLE_ATTRS_ADMINISTRATOR": "Level"}, ("Level",)),
    ],
)
def test_settable_attributes_need_enabled_configuration(texts: dict[str, str], settable: tuple[str, ...]) -> None:
    assert _node(**texts).ads.settable == settable


def test_settable_policy_expression_is_evaluated() -> None:
    node = _node(SETTABLE_ATTRS_ADMINISTRATOR="START")
    node.ads.set_attributes({"Start": "TARGET.Good"})
    assert node.ads.starts("slot1", job_ad(Good=True), node.now) is True
    assert node.ads.starts("slot1", job_ad(Good=False), node.now) is False


@pytest.mark.parametrize("name", ["PREEMPTION_REQUIREMENTS", "preemption_requirements"])
def test_set_expression_is_published_under_its_ad_name(name: str) -> None:
    node = _node(SETTABLE_ATTRS_ADMINISTRATOR="PREEMPTION_REQUIREMENTS")
    assert node.ads.set_attributes({name: "RemoteUserPrio > 2"}) == {}
    offer = node.ads.offer("slot1", node.now)
    ad = Ad.read(node.ads.part(offer.part_keys[0]) or "")
    assert ad.plain()["PreemptionRequirements"] == Expression("RemoteUserPrio > 2")
    node.ads.set_attributes({})
    assert node.ad_values(1)["PreemptionRequirements"] == Expression("False")


def test_changed_policy_applies_to_running_jobs() -> None:
    node = _node(NUM_SLOTS="2", PREEMPT="False", STARTD_SLOT_ATTRS="State", KILL="slot2_State is undefined")
    node.start(1, job_ad(App="x"))
    before = node.ads.version("slot1")
    texts = {"num_slots": "2", "preempt": 'App == "x"', "startd_job_attrs": "App", "startd_slot_attrs": "Activity"}
    node.ads.change_policy(Policy({**texts, "kill": 'slot1_Activity == "Busy" && slot1_State is undefined'}))
    assert node.ads.version("slot1") > before
    assert (node.value(1, "PREEMPT"), node.value(2, "KILL")) == (True, True)
    assert (node.ad_values(1)["State"], node.ad_values(1)["App"], node.state_and_activity(1)) == (
        "Claimed",
        "x",
        "Claimed/Busy",
    )


def test_set_attributes_are_rechecked_after_policy_change() -> None:
    node = _node()
    node.ads.set_attributes({"Open": "1", "Later": "2"})
    node.ads.change_policy(policy_of(SETTABLE_ATTRS_ADMINISTRATOR="Later", ENABLE_RUNTIME_CONFIG="True"))
    assert "Open" not in node.ad_values(1)
    assert node.ad_values(1)["Later"] == 2


@pytest.mark.parametrize("texts", [{"SLOT1_SUSPEND": "1 +"}, {"STARTD_ATTRS": "Bad", "Bad": "“quoted”"}])
def test_invalid_policy_changes_nothing(texts: dict[str, str]) -> None:
    node = _node(START="TARGET.Good")
    before = (node.ad_values(1), node.ads.version("slot1"))
    with pytest.raises(InvalidInputError):
        node.ads.change_policy(policy_of(START="False", **texts))
    assert (node.ad_values(1), node.ads.version("slot1")) == before
    assert node.ads.starts("slot1", job_ad(Good=True), node.now) is True


def test_reads_settable_attributes_from_file(tmp_path: Path) -> None:
    path = tmp_path / "policy"
    path.write_text("STARTD.SETTABLE_ATTRS_ADMINISTRATOR = A B\nSLOTS_CONNECTED_TO_CONSOLE = 1\n")
    policy = load_policy(path, NODE).policy
    assert policy.listed(("SETTABLE_ATTRS_ADMINISTRATOR",)) == ("A", "B")
    assert policy.settable == ()
    assert (policy.text("SLOTS_CONNECTED_TO_CONSOLE"), policy.text("SLOTS_CONNECTED_TO_KEYBOARD")) == ("1", "4096")
