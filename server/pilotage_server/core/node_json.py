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

from pilotage_server.core.amounts import Amounts
from pilotage_server.core.reports import NodeState, SlotState


def node_to_json(node: NodeState) -> str:
    """Return the canonical text of a node without its slots."""
    facts = asdict(node)
    del facts["slots"]
    return _canonical(facts)


def slot_to_json(slot: SlotState) -> str:
    """Return the canonical text of a slot."""
    return _canonical(asdict(slot))


def slot_from_json(text: str) -> SlotState:
    """Return the slot that `slot_to_json` wrote."""
    facts: dict[str, Any] = json.loads(text)
    since = facts["since"]
    return SlotState(
        name=facts["name"],
        state=facts["state"],
        activity=facts["activity"],
        amounts=Amounts(**facts["amounts"]),
        free=Amounts(**facts["free"]),
        job_id=facts["job_id"],
        since=None if since is None else datetime.fromisoformat(since),
        load=facts["load"],
        partitionable=facts["partitionable"],
        attributes={
            name: tuple(value) if isinstance(value, list) else value for name, value in facts["attributes"].items()
        },
    )


def node_power(text: str) -> float:
    """Return the power of one core that the node's text tells; 0 = not known."""
    return float(json.loads(text)["cpu_power"]) if text else 0.0


def _canonical(facts: dict[str, Any]) -> str:
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), default=_time)


def _time(value: object) -> str:
    assert isinstance(value, datetime), "of what a node tells, only times need a form of their own"
    return value.isoformat()
