"""Nodes and slots as stored text, and the attributes that operators set on nodes.

Rules
-----
- Stored texts are canonical JSON, so that unchanged values compare equal. Readers ignore unknown keys of later
  releases.
- A node is a host name at a site. Attributes that operators set override the policy's and outlive pilots (HTCondor
  manual, persistent configuration). The node's policy must allow them (STARTD.SETTABLE_ATTRS_ADMINISTRATOR); names are
  case-insensitive.
- The version of a node's settings grows with every change; a pilot reports the version that it has.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from pilotage.job_description import Value
from pilotage.text import fold, folded_set
from pilotage.values.amounts import Amounts
from pilotage_server.core.attempts.reports import NodeState, ReportedSlot


def node_to_json(node: NodeState) -> str:
    """Return the stored text of a node without its slots."""
    facts = asdict(node)
    del facts["slots"]
    return _canonical(facts)


def slot_to_json(slot: ReportedSlot) -> str:
    """Return the stored text of a slot without its ad."""
    facts = asdict(slot)
    del facts["ad"]
    return _canonical(facts)


def slot_from_json(text: str, ad: str) -> ReportedSlot:
    """Return the slot of a stored text and its ad."""
    facts: dict[str, Any] = json.loads(text)
    return ReportedSlot(
        name=facts["name"],
        state=facts["state"],
        activity=facts["activity"],
        amounts=Amounts(**facts["amounts"]),
        free=Amounts(**facts["free"]),
        job_id=facts["job_id"],
        attempt=facts["attempt"],
        since=_time_of(facts["since"]),
        since_state=_time_of(facts["since_state"]),
        load=facts["load"],
        partitionable=facts["partitionable"],
        attributes=_attributes(facts),
        ad=ad,
    )


def settable_attributes(text: str) -> tuple[str, ...]:
    """Return the attributes that operators may set, from the node's stored text."""
    return tuple(json.loads(text)["settable_attributes"]) if text else ()


def node_facts(text: str) -> tuple[float, dict[str, Value], tuple[str, ...]]:
    """Return the power of one core (0 = unknown), other facts by name, and settable attributes of a stored node."""
    if not text:
        return 0.0, {}, ()
    facts: dict[str, Any] = json.loads(text)
    return float(facts["cpu_power"]), _attributes(facts), tuple(facts["settable_attributes"])


def _attributes(facts: dict[str, Any]) -> dict[str, Value]:
    attributes: dict[str, Any] = facts["attributes"]
    return {name: tuple(value) if isinstance(value, list) else value for name, value in attributes.items()}


def _time_of(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _canonical(facts: dict[str, Any]) -> str:
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), default=_time)


def _time(value: object) -> str:
    assert isinstance(value, datetime), "all other values of a node are JSON values"
    return value.isoformat()


@dataclass(frozen=True, slots=True, order=True)
class NodeId:
    """A host at a site."""

    site: str
    node: str

    def __str__(self) -> str:
        """Return "site/node", as commands name it."""
        return f"{self.site}/{self.node}"


@dataclass(frozen=True, slots=True)
class Setting:
    """One attribute that was set: name as spelled, ClassAd expression, by whom and when.

    `agent` = the leading agent that set it; "" = a person did.
    """

    name: str
    expression: str
    set_by: str
    set: datetime
    agent: str = ""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """All attributes set on one node, by name; `version` 0 = nothing was ever set."""

    node: NodeId
    version: int = 0
    settings: tuple[Setting, ...] = ()

    @property
    def expressions(self) -> dict[str, str]:
        """The expressions by attribute."""
        return {setting.name: setting.expression for setting in self.settings}

    def get(self, attribute: str) -> Setting | None:
        """Return the setting of the attribute; None = not set."""
        return next((setting for setting in self.settings if fold(setting.name) == fold(attribute)), None)

    def changed(
        self, new: Mapping[str, str], unset: Iterable[str], by: str, now: datetime, agent: str = ""
    ) -> NodeSettings:
        """Return the settings after a change; a name in both `new` and `unset` is set."""
        gone = folded_set(new) | folded_set(unset)
        kept = [setting for setting in self.settings if fold(setting.name) not in gone]
        kept += (Setting(name, expression, by, now, agent) for name, expression in new.items())
        ordered = tuple(sorted(kept, key=lambda setting: fold(setting.name)))
        return replace(self, version=self.version + 1, settings=ordered)


def not_settable(names: Iterable[str], settable: Iterable[str]) -> tuple[str, ...]:
    """Return the names that are not among `settable`."""
    allowed = folded_set(settable)
    return tuple(name for name in names if fold(name) not in allowed)
