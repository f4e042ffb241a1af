"""The operators' order of groups: an expression over the use and the quota of each group.

Rules
-----
- As HTCondor's GROUP_SORT_EXPR: groups are considered in increasing order of the value. Groups of equal values, and all
  groups without an expression, are ordered by their shares.
- The value holds for a tick, as HTCondor's holds for a negotiation cycle. So no charge moves a group by it.
- A group whose value is no number goes after all groups with a number.
- A group at its quota goes last, whatever its value: the order of groups does not extend quotas.
- A group's ad has neither the time nor GroupResourcesAllocated: slots ask one by one, so no cycle allocates anything.

Source: HTCondor manual, "Group Quotas" (GROUP_SORT_EXPR).
"""

from __future__ import annotations

import math
from typing import NamedTuple

from pilotage.classads.evaluation import NoValue, Result
from pilotage.classads.library import Expression, InvalidClassAdError
from pilotage.classads.references import references
from pilotage.text import fold
from pilotage.values.accounts import GroupId
from pilotage_server.core.classads.evaluation import AdEvaluator, FoldedAd, changes_with_time

NO_GROUP = "<none>"
"""The AccountingGroup of jobs without a group, as in HTCondor."""

_NAMES = ("AccountingGroup", "VO", "GroupQuota", "GroupWeight", "GroupResourcesInUse")
_FOLDED_NAMES = frozenset(map(fold, _NAMES))
_ALLOCATED = fold("GroupResourcesAllocated")


class GroupUse(NamedTuple):
    """What the order may depend on: the cores of the quota, None = it is a weight, and the weighted cores in use."""

    bound: float | None
    weight: float
    cores: float


class SortValue(NamedTuple):
    """The value of a group, infinite with the reason in `fault` where the expression yields no number."""

    number: float = 0.0
    fault: str = ""

    @property
    def known(self) -> float | None:
        """The number; None = the expression yields none."""
        return None if self.fault else self.number


def check_group_order(text: str) -> str:
    """Return the expression; raises InvalidClassAdError if it refers to anything that groups do not have."""
    if changes_with_time(text):
        raise InvalidClassAdError("it reads the time or a computed text: the order of groups depends on neither")
    refers = references(text)
    unknown = sorted((refers.in_my - _FOLDED_NAMES) | refers.target)
    if _ALLOCATED in unknown:
        raise InvalidClassAdError("nothing is allocated to groups before a match: use GroupQuota instead of it")
    if unknown:
        raise InvalidClassAdError(f"it refers to {', '.join(unknown)}; a group has {', '.join(_NAMES)}")
    return text


class GroupOrder:
    """Evaluates the expression, "" = none, and collects the groups for which it is no number."""

    def __init__(self, expression: str = "") -> None:
        self.expression = expression
        self._evaluator = AdEvaluator()
        self._seen: set[GroupId] = set()
        self._faults: dict[GroupId, str] = {}

    def value(self, group: GroupId, use: GroupUse) -> SortValue:
        """Return the value of a group; 0 without an expression."""
        if not self.expression:
            return SortValue()
        ad = FoldedAd(
            {
                "AccountingGroup": group.name or NO_GROUP,
                "VO": group.vo,
                "GroupQuota": 0.0 if use.bound is None else use.bound,
                "GroupWeight": use.weight if use.bound is None else 0.0,
                "GroupResourcesInUse": use.cores,
            }
        )
        value = self._evaluator.value(self.expression, ad)
        if isinstance(value, int | float) and not math.isnan(value):
            return SortValue(float(value))
        fault = f"the value is {_shown(value)}, which is no number"
        if group not in self._seen:
            self._seen.add(group)
            self._faults[group] = fault
        return SortValue(math.inf, fault)

    def take_faults(self) -> dict[GroupId, str]:
        """Return the faults of groups that had none before; each group has its first fault here, once."""
        faults, self._faults = self._faults, {}
        return faults


def _shown(value: Result) -> str:
    match value:
        case NoValue():
            return value.value
        case Expression(text):
            return text
        case _:
            return f'"{value}"'
