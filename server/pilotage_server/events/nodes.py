"""The nodes of which the broker has messages: how many idle slots their queues have, and which last wills came.

Anyone with a login at the broker may publish, so nothing here grows with the messages. Of each stamp the latest message
is stored as it came, within bounds. Messages are read some at a time. Only pilots that the database knows, and that are
not over, are kept.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

from pilotage.clock import BootClock
from pilotage.errors import InvalidInputError
from pilotage.mqtt.topics import MAX_PAYLOAD_BYTES, Message, NodeStatus, Topics, read_node_status
from pilotage.resources.tree import QueueId
from pilotage.telemetry import LimitedWarning

BATCH = 50
"""Messages that are read at once: the worst of them take the event loop some tens of milliseconds."""

MAX_UNREAD = 20_000
MAX_UNREAD_BYTES = 64 << 20

MAX_STRANGERS = 10_000
"""Stamps of messages that no living pilot has; they are remembered to erase their messages."""


@dataclass(frozen=True, slots=True)
class NodeReport:
    """A message of a stamp; `status` None = it was erased, or it is malformed."""

    message: Message
    stamp: str
    status: NodeStatus | None


@dataclass(slots=True)
class _Node:
    """The queue and the idle slots of a living pilot."""

    queue: QueueId
    idle_slots: int


class KnownNodes:
    """The living pilots of which the broker has messages; `check_after_s` = when a last will is checked."""

    def __init__(self, topics: Topics, boot_clock: BootClock, check_after_s: float) -> None:
        self._topics = topics
        self._boot_clock = boot_clock
        self._check_after_s = check_after_s
        self._unread: dict[str, Message] = {}
        self._unread_bytes = 0
        self._nodes: dict[str, _Node] = {}
        self._will_checks: dict[str, float] = {}
        self._strangers: set[str] = set()
        self._warn_malformed = LimitedWarning("node message malformed", boot_clock)
        self._warn_dropped = LimitedWarning("node message dropped", boot_clock)

    def receive(self, message: Message) -> None:
        """Store a message until it is read; a later one of its stamp replaces it."""
        stamp = self._topics.stamp_of(message.topic)
        if stamp is None:
            return
        size = len(message.payload)
        if size > MAX_PAYLOAD_BYTES:
            self._warn_dropped(topic=message.topic, why=f"has {size} bytes, more than {MAX_PAYLOAD_BYTES}")
            return
        self._forget_unread(stamp)
        if len(self._unread) >= MAX_UNREAD or self._unread_bytes + size > MAX_UNREAD_BYTES:
            self._warn_dropped(topic=message.topic, why="too many messages have not been read yet")
            return
        self._unread[stamp] = message
        self._unread_bytes += size

    def _forget_unread(self, stamp: str) -> None:
        former = self._unread.pop(stamp, None)
        self._unread_bytes -= 0 if former is None else len(former.payload)

    def read_batch(self) -> tuple[NodeReport, ...]:
        """Read the oldest messages; they stay until they are applied."""
        return tuple(self._read(stamp, message) for stamp, message in islice(self._unread.items(), BATCH))

    def _read(self, stamp: str, message: Message) -> NodeReport:
        try:
            return NodeReport(message, stamp, read_node_status(message))
        except InvalidInputError as error:
            self._warn_malformed(topic=message.topic, why=str(error))
            return NodeReport(message, stamp, None)

    def unknown_stamps(self, reports: Iterable[NodeReport]) -> frozenset[str]:
        """Return the stamps of contents that are not known as those of living pilots."""
        return frozenset(
            report.stamp for report in reports if report.message.payload and report.stamp not in self._nodes
        )

    def apply(self, reports: Iterable[NodeReport], living: Mapping[str, QueueId]) -> None:
        """Apply reports; `living` has the queues of the living pilots among the unknown stamps."""
        for report in reports:
            if self._unread.get(report.stamp) is report.message:
                self._forget_unread(report.stamp)
            queue = living.get(report.stamp)
            if queue is not None:
                self._nodes[report.stamp] = _Node(queue, 0)
            if report.stamp in self._nodes:
                self._apply_known(report.stamp, report.status)
            elif report.message.payload and len(self._strangers) < MAX_STRANGERS:
                self._strangers.add(report.stamp)

    def _apply_known(self, stamp: str, status: NodeStatus | None) -> None:
        if status is None or status.online:
            self._will_checks.pop(stamp, None)
            self._nodes[stamp].idle_slots = 0 if status is None else status.idle_slots
        else:
            self._will_checks.setdefault(stamp, self._boot_clock() + self._check_after_s)

    def due_wills(self) -> frozenset[str]:
        """Return the stamps whose last wills came long enough ago; they are due again later."""
        now_s = self._boot_clock()
        return frozenset(stamp for stamp, due_s in self._will_checks.items() if due_s <= now_s)

    def postpone_wills(self, stamps: Iterable[str]) -> None:
        """Check these last wills again later: their pilots live, though not at the broker."""
        due_s = self._boot_clock() + self._check_after_s
        self._will_checks.update({stamp: due_s for stamp in stamps if stamp in self._will_checks})

    def stamps(self) -> frozenset[str]:
        """Return the stamps of all messages of the broker, as far as they are known."""
        return frozenset(self._strangers | self._nodes.keys())

    def remove(self, stamps: Iterable[str]) -> None:
        """Remove pilots that are over, and stamps of no pilot."""
        for stamp in stamps:
            self._strangers.discard(stamp)
            self._nodes.pop(stamp, None)
            self._will_checks.pop(stamp, None)

    def idle_slots(self) -> Counter[str]:
        """Return the number of idle slots by queue."""
        idle: Counter[str] = Counter()
        for stamp, node in self._nodes.items():
            if stamp not in self._will_checks:
                idle[str(node.queue)] += node.idle_slots
        return idle
