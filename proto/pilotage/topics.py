"""What is said through an MQTT broker: topics and messages that servers and pilots agree on.

Rules
-----
The broker is a fan-out of hints: whoever misses a message loses time and never work. One retained message a pilot
tells its node with its slots, and its last will says that it is gone; wake-ups go to pools, with a probability by
which each idle slot answers; a command only means "ask the server". Messages are JSON; unknown keys are left alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pilotage.errors import InvalidInputError, Violation

WITHOUT_POOL = "none"
"""Stands for the jobs that have no Requirements section, and so no pool."""

EVERY_POOL = "any"
"""Stands for all pools: what may go where has changed, or a pool is so new that pilots may not know it."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message; empty and retained = what was retained there is erased."""

    topic: str
    payload: bytes
    retained: bool = False


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics below a prefix, which several grids on one broker have to themselves."""

    prefix: str = "pilotage/v1"

    def node(self, stamp: str) -> str:
        """Return where a pilot tells its node."""
        return f"{self.prefix}/nodes/{stamp}"

    def pool(self, pool_id: str) -> str:
        """Return where jobs of a pool are announced; "" = jobs without a pool."""
        return f"{self.prefix}/pools/{pool_id or WITHOUT_POOL}"

    def ask(self, stamp: str) -> str:
        """Return where a pilot is told to ask the server."""
        return f"{self.prefix}/pilots/{stamp}/ask"

    @property
    def all_nodes(self) -> str:
        """Match every node's topic."""
        return self.node("+")

    def stamp_of(self, topic: str) -> str | None:
        """Return whose node a topic is about; None = it is no node's."""
        head = self.node("")
        return topic.removeprefix(head) if topic.startswith(head) and topic != head else None


@dataclass(frozen=True, slots=True)
class NodeNews:
    """What a pilot tells of its node: where it is, whether it is there, how many slots wait for jobs, the slots."""

    stamp: str
    node: str
    queue: str
    online: bool = True
    idle_slots: int = 0
    slots: tuple[Mapping[str, Any], ...] = ()

    def message(self, topics: Topics) -> Message:
        """Return the retained message that says so."""
        said = {
            "stamp": self.stamp,
            "node": self.node,
            "queue": self.queue,
            "state": "online" if self.online else "lost",
            "idle_slots": self.idle_slots,
            "slots": [dict(slot) for slot in self.slots],
        }
        return Message(topics.node(self.stamp), _text(said), retained=True)


def erased(topics: Topics, stamp: str) -> Message:
    """Return the message that takes a pilot's node off the broker."""
    return Message(topics.node(stamp), b"", retained=True)


def read_node(message: Message) -> NodeNews | None:
    """Return what a message tells of a node, None = it was erased; raises InvalidInputError."""
    if not message.payload:
        return None
    said = _read(message)
    try:
        return NodeNews(
            stamp=str(said["stamp"]),
            node=str(said["node"]),
            queue=str(said["queue"]),
            online=said["state"] == "online",
            idle_slots=int(said.get("idle_slots", 0)),
            slots=tuple(dict(slot) for slot in said.get("slots", ())),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(Violation(message.topic, f"is not what a pilot says of its node: {error}")) from error


def wake_up(topics: Topics, pool_id: str, jobs: int, probability: float) -> Message:
    """Return the message that so many jobs have come to a pool; each idle slot answers by the probability."""
    return Message(topics.pool(pool_id), _text({"jobs": jobs, "probability": round(probability, 6)}))


def read_probability(message: Message, idle_slots: int = 1) -> float:
    """Return by which probability any of so many idle slots answers a wake-up; raises InvalidInputError.

    Whoever has none may answer as one does: a slot in use may prefer the job, or one that wants few jobs this one.
    """
    probability = _read(message).get("probability", 1.0)
    if isinstance(probability, bool) or not isinstance(probability, int | float) or not 0 <= probability <= 1:
        raise InvalidInputError(Violation(message.topic, f"{probability!r} is not a probability"))
    return 1.0 - (1.0 - probability) ** max(1, idle_slots)


def _text(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said, separators=(",", ":"), default=str).encode()


def _read(message: Message) -> dict[str, Any]:
    try:
        said = json.loads(message.payload)
    except ValueError as error:
        raise InvalidInputError(Violation(message.topic, f"is not JSON: {error}")) from error
    if not isinstance(said, dict):
        raise InvalidInputError(Violation(message.topic, "is not a JSON object"))
    return said
