"""Random changes of a node: the offered ad of a slot has the values that its own expressions see."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.evaluation import Ad, NoValue
from pilotage.classads.library import AdValue, Expression
from pilotage.classads.text import ad_text, value_text
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.ads.attributes import SlotFacts, SlotKind
from pilotage_pilot.core.policy import Policy
from support.live_slots import LiveSlots, job_ad, policy_of

SLOTS = (1, 2, 3)
POLICY: Mapping[str, str] = {
    "SLOT_TYPE_1": "25%",
    "NUM_SLOTS_TYPE_1": "2",
    "SLOT_TYPE_2": "50%",
    "NUM_SLOTS_TYPE_2": "1",
    "SLOT_TYPE_2_PARTITIONABLE": "True",
    "START": "eval(TARGET.Ask)",
    "IS_OWNER": "KeyboardIdle < 10",
    "STARTD_ATTRS": "Mine, Open",
    "Mine": "SlotID * 2",
    "SLOT2_Mine": '"own"',
    "Open": "LoadAvg < 1",
    "STARTD_SLOT_ATTRS": "State, Mine, LoadAvg, JobId",
    "STARTD_JOB_ATTRS": "App",
    "SETTABLE_ATTRS_ADMINISTRATOR": "Open, Mine",
    "ENABLE_RUNTIME_CONFIG": "True",
}
OTHER_POLICY = {**POLICY, "STARTD_SLOT_ATTRS": "Activity", "STARTD_ATTRS": "Open", "STARTD_JOB_ATTRS": "App, Cpus"}


class Node:
    """A node with random changes."""

    def __init__(self) -> None:
        self.slots = LiveSlots(policy_of(**POLICY))
        self.names = [slot.name for slot in self.slots.layout.slots]

    def start(self, slot: int) -> None:
        if self.slots.state_and_activity(slot) in ("Unclaimed/Idle", "Owner/Idle"):
            self.slots.start(slot, job_ad(App=f"app{slot}", Cpus=99))

    def end(self, slot: int) -> None:
        if self.slots.machines[f"slot{slot}"].job is not None:
            self.slots.end(slot)

    def look(self, load: float, idle_s: int) -> None:
        self.slots.sample(load=load, keyboard_idle_s=idle_s, slot1=0.3)
        self.slots.poll(5.0)

    def set(self, expression: str) -> None:
        self.slots.ads.set_attributes({"Open": expression, "Mine": "7"} if expression else {})

    def carve(self, number: int) -> None:
        name = f"slot3_{number}"
        if name in self.names:
            self.slots.ads.remove(name)
            self.names.remove(name)
        else:
            key = self.slots.layout.slots[2].key
            self.slots.ads.add(SlotFacts(name, key, Amounts(1, 10), SlotKind.DYNAMIC, number))
            self.names.append(name)
        self.slots.ads.resize("slot3", Amounts(number, 100))

    def change_policy(self, *, back: bool) -> None:
        texts = POLICY if back else OTHER_POLICY
        self.slots.ads.change_policy(Policy({name.lower(): text for name, text in texts.items()}))

    def validate(self) -> None:
        for name in self.names:
            offered = self._offered(name)
            claims = [f"({attribute} =?= {value_text(value)})" for attribute, value in offered.items()]
            job = ad_text({"Ask": " && ".join(claims)})
            assert self.slots.ads.starts(name, job, self.slots.now) is True, (name, offered)

    def _offered(self, name: str) -> dict[str, AdValue]:
        """Return the values that the server finds in the offered ad of a slot."""
        offer = self.slots.ads.offer(name, self.slots.now)
        ad = Ad({"MyCurrentTime": int(self.slots.now.utc.timestamp())})
        for text in (*(self.slots.ads.part(key) for key in offer.part_keys), offer.changes):
            assert text is not None
            ad.update(text)
        values = {attribute: ad.value(attribute) for attribute in ad.plain() if attribute != "Start"}
        return {
            attribute: Expression(value.value) if isinstance(value, NoValue) else value
            for attribute, value in values.items()
        }


STEPS = st.one_of(
    st.tuples(st.just("start"), st.sampled_from(SLOTS)),
    st.tuples(st.just("end"), st.sampled_from(SLOTS)),
    st.tuples(st.just("look"), st.sampled_from((0.0, 0.5, 2.5)), st.sampled_from((5, 500))),
    st.tuples(st.just("set"), st.sampled_from(("", "True", "State", '"text"'))),
    st.tuples(st.just("carve"), st.sampled_from((1, 2))),
    st.tuples(st.just("change_policy"), st.booleans()),
)


@given(st.lists(STEPS, max_size=12))
def test_slot_expressions_see_the_offered_values(steps: list[tuple[str, ...]]) -> None:
    node = Node()
    for step in steps:
        apply_step(node, step)
    node.validate()


def apply_step(node: Node, step: tuple[object, ...]) -> None:
    match step:
        case ("start", int(slot)):
            node.start(slot)
        case ("end", int(slot)):
            node.end(slot)
        case ("look", float(load), int(idle_s)):
            node.look(load, idle_s)
        case ("set", str(expression)):
            node.set(expression)
        case ("carve", int(number)):
            node.carve(number)
        case ("change_policy", bool(back)):
            node.change_policy(back=back)
        case _:
            raise AssertionError(step)
