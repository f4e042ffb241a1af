"""The topics and messages that servers and pilots exchange through an MQTT broker.

The broker distributes hints: a lost message costs time and never work. Each pilot has one retained message with its
node and slots; its last will marks it as lost. Wake-ups go to pools, with a probability with which each idle slot
answers. A command only means "ask the server". Messages are JSON; unknown keys are ignored.

Anyone at the broker may send anything, so a message is read into bounded values, or refused with InvalidInputError.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilotage.errors import InvalidInputError, Violation

WITHOUT_POOL = "none"
"""Stands for jobs without a Requirements section, and so without a pool."""

EVERY_POOL = "any"
"""Stands for all pools: eligibility has changed, or pilots may not know a new pool yet."""

MAX_PAYLOAD_BYTES = 64 << 10
MAX_NAME = 256
"""Characters of a stamp, of a node's name, and of each part of a queue's name."""

MAX_SLOTS_SHOWN = 256
"""Slots in a node status; of more slots the first are shown."""

MAX_IDLE_SLOTS = 10_000
_LONGEST_FAULT = 200


@dataclass(frozen=True, slots=True)
class Message:
    """One message; empty and retained = erase the retained message of the topic."""

    topic: str
    payload: bytes
    retained: bool = False


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics below a prefix; each grid on a broker has its own prefix."""

    prefix: str = "pilotage/v1"

    def node(self, stamp: str) -> str:
        """Return the topic of a pilot's node status."""
        return f"{self.prefix}/nodes/{stamp}"

    def pool(self, pool_id: str) -> str:
        """Return the topic on which jobs of a pool are announced; "" = jobs without a pool."""
        return f"{self.prefix}/pools/{pool_id or WITHOUT_POOL}"

    def poll(self, stamp: str) -> str:
        """Return the topic on which a pilot is asked to poll the server."""
        return f"{self.prefix}/pilots/{stamp}/ask"

    def pilot_client_id(self, stamp: str) -> str:
        """Return the client id of a pilot at the broker."""
        return f"pilotage-pilot-{stamp}"

    @property
    def all_nodes(self) -> str:
        """The pattern of every node's topic."""
        return self.node("+")

    def stamp_of(self, topic: str) -> str | None:
        """Return the stamp in a node's topic; None = it is no node's topic."""
        head = self.node("")
        stamp = topic.removeprefix(head)
        is_stamp = topic.startswith(head) and 0 < len(stamp) <= MAX_NAME and "/" not in stamp
        return stamp if is_stamp else None


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A pilot's status of its node: identity, whether it is online, its idle slots, and all slots."""

    stamp: str
    node: str
    queue: str
    online: bool = True
    idle_slots: int = 0
    slots: tuple[Mapping[str, Any], ...] = ()

    def message(self, topics: Topics) -> Message:
        """Return the retained message of the status."""
        content = {
            "stamp": self.stamp,
            "node": self.node,
            "queue": self.queue,
            "state": "online" if self.online else "lost",
            "idle_slots": min(self.idle_slots, MAX_IDLE_SLOTS),
            "slots": [dict(slot) for slot in self.slots[:MAX_SLOTS_SHOWN]],
        }
        return Message(topics.node(self.stamp), _text(content), retained=True)


def erase_message(topics: Topics, stamp: str) -> Message:
    """Return the message that erases a pilot's node status."""
    return Message(topics.node(stamp), b"", retained=True)


def read_node_status(message: Message) -> NodeStatus | None:
    """Return the node status of a message, None = it was erased; raises InvalidInputError."""
    if not message.payload:
        return None
    content = _read(message)
    status = NodeStatus(
        stamp=_name(message, content, "stamp", MAX_NAME),
        node=_name(message, content, "node", MAX_NAME),
        queue=_name(message, content, "queue", 3 * MAX_NAME),
        online=_name(message, content, "state", MAX_NAME) == "online",
        idle_slots=_idle_slots(message, content),
        slots=_slots(message, content),
    )
    if message.topic.rpartition("/")[2] != status.stamp:
        raise InvalidInputError(Violation(message.topic, "is the topic of another stamp than the message's"))
    return status


def _name(message: Message, content: Mapping[str, Any], key: str, longest: int) -> str:
    name = content.get(key)
    if not isinstance(name, str) or not 0 < len(name) <= longest:
        raise InvalidInputError(Violation(message.topic, f"{key} is not a text of 1 to {longest} characters"))
    return name


def _idle_slots(message: Message, content: Mapping[str, Any]) -> int:
    count = content.get("idle_slots")
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_IDLE_SLOTS:
        raise InvalidInputError(Violation(message.topic, f"idle_slots is not a number from 0 to {MAX_IDLE_SLOTS}"))
    return count


def _slots(message: Message, content: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    slots = content.get("slots")
    if isinstance(slots, list) and len(slots) <= MAX_SLOTS_SHOWN and all(isinstance(slot, dict) for slot in slots):
        return tuple(slots)
    raise InvalidInputError(Violation(message.topic, f"slots is not a list of at most {MAX_SLOTS_SHOWN} objects"))


def wake_up_message(topics: Topics, pool_id: str, jobs: int, probability: float) -> Message:
    """Return the announcement of `jobs` new jobs of a pool; each idle slot answers with the probability."""
    return Message(topics.pool(pool_id), _text({"jobs": jobs, "probability": round(probability, 6)}))


def read_probability(message: Message, idle_slots: int = 1) -> float:
    """Return the probability with which any of `idle_slots` answers a wake-up; raises InvalidInputError.

    Without idle slots it is that of one: an occupied slot may prefer the job, or a choosy one may want it.
    """
    probability = _read(message).get("probability", 1.0)
    if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 <= probability <= 1:
        raise InvalidInputError(Violation(message.topic, f"{probability!r:.{_LONGEST_FAULT}} is not a probability"))
    return 1.0 - (1.0 - probability) ** max(1, idle_slots)


def _text(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":"), default=str).encode()


def _read(message: Message) -> dict[str, Any]:
    if len(message.payload) > MAX_PAYLOAD_BYTES:
        raise InvalidInputError(Violation(message.topic, f"has more than {MAX_PAYLOAD_BYTES} bytes"))
    try:
        content = json.loads(message.payload)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(Violation(message.topic, f"is not JSON: {error!s:.{_LONGEST_FAULT}}")) from error
    if not isinstance(content, dict):
        raise InvalidInputError(Violation(message.topic, "is not a JSON object"))
    return content
