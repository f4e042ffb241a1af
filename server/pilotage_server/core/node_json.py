"""Nodes and slots as text, for storing: canonical JSON, so that what has not changed compares equal.

Rules
-----
Amounts as they are, times in ISO form, attributes as they came. Unknown keys are left alone by the reader, so
that rows of a later release can still be read.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from typing import Any

from pilotage.job_description import Value
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.reports import NodeState, SlotState


def node_to_json(node: NodeState) -> str:
    """Return the canonical text of a node without its slots."""
    facts = asdict(node)
    del facts["slots"]
    return _canonical(facts)


def slot_to_json(slot: SlotState) -> str:
    """Return the canonical text of a slot; its ad is kept beside it."""
    facts = asdict(slot)
    del facts["ad"]
    return _canonical(facts)


def slot_from_json(text: str, ad: str) -> SlotState:
    """Return the slot that `slot_to_json` wrote, with the ad that was kept beside it."""
    facts: dict[str, Any] = json.loads(text)
    return SlotState(
        name=facts["name"],
        state=facts["state"],
        activity=facts["activity"],
        amounts=Amounts(**facts["amounts"]),
        free=Amounts(**facts["free"]),
        job_id=facts["job_id"],
        attempt=facts.get("attempt", 0),
        since=_time_of(facts["since"]),
        since_state=_time_of(facts.get("since_state")),
        load=facts["load"],
        partitionable=facts["partitionable"],
        attributes=_attributes(facts),
        ad=ad,
    )


def settable_attributes(text: str) -> tuple[str, ...]:
    """Return the attributes that the node's text says may be set from afar."""
    return tuple(json.loads(text).get("settable_attributes", ())) if text else ()


def node_facts(text: str) -> tuple[float, dict[str, Value], tuple[str, ...]]:
    """Return what the node's text tells.

    The power of one core (0 = not known), the other facts by name, and the attributes that may be set from afar.
    """
    facts: dict[str, Any] = json.loads(text) if text else {"cpu_power": 0, "attributes": {}}
    return float(facts["cpu_power"]), _attributes(facts), tuple(facts.get("settable_attributes", ()))


def _attributes(facts: dict[str, Any]) -> dict[str, Value]:
    told: dict[str, Any] = facts["attributes"]
    return {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}


def _time_of(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _canonical(facts: dict[str, Any]) -> str:
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), default=_time)


def _time(value: object) -> str:
    assert isinstance(value, datetime), "of what a node tells, only times need a form of their own"
    return value.isoformat()
