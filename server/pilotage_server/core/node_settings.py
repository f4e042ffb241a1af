"""What operators set on nodes from afar: attributes that win over the policy's own and outlive the pilots.

Rules
-----
A node is a host name at a site. Only attributes that the node's policy lets be set are taken
(STARTD.SETTABLE_ATTRS_ADMINISTRATOR); names are case-insensitive. The version of a node's settings grows with
every change, so that a pilot can say which it has. Source: HTCondor manual, persistent configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from pilotage.folding import fold, folded_set


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
    """One attribute: its name as it was spelled, its ClassAd expression, who set it and when.

    `agent` = the agent in whose turn it was set; "" = in none, as people do.
    """

    name: str
    expression: str
    set_by: str
    set: datetime
    agent: str = ""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """All that is set on one node, by name; `version` 0 = nothing was ever set."""

    node: NodeId
    version: int = 0
    settings: tuple[Setting, ...] = ()

    @property
    def expressions(self) -> dict[str, str]:
        """The expressions by attribute."""
        return {setting.name: setting.expression for setting in self.settings}

    def of(self, attribute: str) -> Setting | None:
        """Return what is set of the attribute; None = nothing."""
        return next((setting for setting in self.settings if fold(setting.name) == fold(attribute)), None)

    def changed(
        self, new: Mapping[str, str], unset: Iterable[str], by: str, now: datetime, agent: str = ""
    ) -> NodeSettings:
        """Return the settings with these set and those unset; a name in both is set."""
        gone = folded_set(new) | folded_set(unset)
        kept = [setting for setting in self.settings if fold(setting.name) not in gone]
        kept += (Setting(name, expression, by, now, agent) for name, expression in new.items())
        ordered = tuple(sorted(kept, key=lambda setting: fold(setting.name)))
        return replace(self, version=self.version + 1, settings=ordered)


def not_settable(names: Iterable[str], settable: Iterable[str]) -> tuple[str, ...]:
    """Return those names that a policy which lets `settable` be set does not."""
    allowed = folded_set(settable)
    return tuple(name for name in names if fold(name) not in allowed)
