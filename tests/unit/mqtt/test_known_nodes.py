"""What the server keeps of the nodes' messages: within bounds, of living pilots only; and when last wills are due."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest

from pilotage.errors import InvalidInputError
from pilotage.mqtt.topics import MAX_PAYLOAD_BYTES, MAX_SLOTS_SHOWN, Message, NodeStatus, Topics, read_node_status
from pilotage.resources.tree import QueueId
from pilotage_server.events.nodes import BATCH, MAX_STRANGERS, MAX_UNREAD, MAX_UNREAD_BYTES, KnownNodes

TOPICS = Topics()
QUEUE = QueueId("SITE", "ce1", "long")
STATUS = NodeStatus("p1", "node1", "SITE/ce9/claimed by the message", idle_slots=7)
GOOD = STATUS.message(TOPICS)
TEXT = GOOD.payload.decode()

POISON = {
    "infinite": TEXT.replace("7", "Infinity"),
    "not a number": TEXT.replace("7", "NaN"),
    "huge float": TEXT.replace("7", "1e999"),
    "huge integer": TEXT.replace("7", "9" * 5000),
    "large integer": TEXT.replace("7", "9" * 4000),
    "negative": TEXT.replace("7", "-7"),
    "flag": TEXT.replace("7", "true"),
    "text": TEXT.replace("7", '"7"'),
    "nested": TEXT.replace("7", "[" * 30_000),
    "nested objects": '{"a":' * 10_000,
    "no object": "[1, 2]",
    "nothing": "{}",
    "other stamp": TEXT.replace("p1", "p2"),
    "list as stamp": TEXT.replace('"p1"', '["p1"]'),
    "long node": TEXT.replace("node1", "n" * 300),
    "slots of numbers": TEXT.replace("[]", "[1, 2]"),
    "many slots": TEXT.replace("[]", "[" + ",".join(["{}"] * (MAX_SLOTS_SHOWN + 1)) + "]"),
    "large": TEXT.replace("}", " " * MAX_PAYLOAD_BYTES + "}"),
}
PAYLOADS = {**{name: text.encode() for name, text in POISON.items()}, "no text": b"\xff\xfe\x00{", "latin": b'{"\xe4"}'}


@dataclass
class Nodes:
    """The known nodes with a clock, and the pilots that the database knows."""

    now_s: float = 1000.0
    living: dict[str, QueueId] = field(default_factory=lambda: {"p1": QUEUE})

    def __post_init__(self) -> None:
        self.nodes = KnownNodes(TOPICS, lambda: self.now_s, check_after_s=40.0)

    def receive(self, *messages: Message) -> None:
        for message in messages:
            self.nodes.receive(message)
        self.read()

    def read(self) -> None:
        while reports := self.nodes.read_batch():
            unknown = self.nodes.unknown_stamps(reports)
            self.nodes.apply(reports, {stamp: self.living[stamp] for stamp in unknown if stamp in self.living})

    def idle(self) -> dict[str, int]:
        return dict(self.nodes.idle_slots())


@pytest.mark.parametrize("payload", PAYLOADS.values(), ids=PAYLOADS.keys())
def test_malformed_status_is_refused(payload: bytes) -> None:
    with pytest.raises(InvalidInputError):
        read_node_status(Message(GOOD.topic, payload))
    nodes = Nodes()
    nodes.receive(Message(GOOD.topic, payload))
    nodes.receive(GOOD)
    assert nodes.idle() == {str(QUEUE): 7}


def test_idle_slots_count_for_the_queue_that_the_database_knows() -> None:
    nodes = Nodes()
    nodes.receive(GOOD, replace(STATUS, stamp="stranger").message(TOPICS))
    assert nodes.idle() == {str(QUEUE): 7}


def test_strangers_are_bounded_and_only_remembered_to_be_erased() -> None:
    nodes = Nodes()
    for number in range(MAX_STRANGERS + 100):
        nodes.receive(replace(STATUS, stamp=f"stranger{number}").message(TOPICS))
    stamps = nodes.nodes.stamps()
    assert len(stamps) == MAX_STRANGERS
    first, *others = stamps
    nodes.nodes.remove(others)
    assert nodes.nodes.stamps() == {first}, "a stamp that came meanwhile has not been erased yet"
    nodes.nodes.remove([first])
    assert not nodes.nodes.stamps()


def test_unread_messages_are_bounded_in_number_and_size() -> None:
    nodes = Nodes().nodes
    for number in range(MAX_UNREAD + 100):
        nodes.receive(Message(TOPICS.node(f"p{number}"), b"{}"))
    nodes.receive(GOOD)
    assert len(nodes._unread) == MAX_UNREAD
    nodes = Nodes().nodes
    for number in range(MAX_UNREAD_BYTES // MAX_PAYLOAD_BYTES + 100):
        nodes.receive(Message(TOPICS.node(f"p{number}"), bytes(MAX_PAYLOAD_BYTES)))
    assert nodes._unread_bytes == MAX_UNREAD_BYTES


def test_only_the_latest_message_of_a_stamp_is_read() -> None:
    nodes = Nodes()
    for idle in (*range(2 * BATCH), 3):
        nodes.nodes.receive(replace(STATUS, idle_slots=idle).message(TOPICS))
    assert [report.status for report in nodes.nodes.read_batch()] == [replace(STATUS, idle_slots=3)]


def test_message_is_read_again_until_it_is_applied() -> None:
    nodes = Nodes()
    nodes.nodes.receive(GOOD)
    assert nodes.nodes.read_batch() == nodes.nodes.read_batch() != (), "the database was away"
    nodes.read()
    assert nodes.nodes.read_batch() == ()


def test_will_is_due_after_a_while_and_again_later() -> None:
    nodes = Nodes()
    nodes.receive(GOOD, replace(STATUS, online=False).message(TOPICS))
    assert (nodes.idle(), nodes.nodes.due_wills()) == ({}, frozenset())
    for _ in range(2):
        nodes.now_s += 40
        assert nodes.nodes.due_wills() == {"p1"}
        nodes.nodes.postpone_wills({"p1"})
        assert nodes.nodes.due_wills() == frozenset()


def test_pilot_that_returns_to_the_broker_revokes_its_will() -> None:
    nodes = Nodes()
    nodes.receive(GOOD)
    nodes.receive(replace(STATUS, online=False).message(TOPICS))
    nodes.receive(GOOD)
    nodes.now_s += 100
    assert nodes.nodes.due_wills() == frozenset()
    assert nodes.idle() == {str(QUEUE): 7}
