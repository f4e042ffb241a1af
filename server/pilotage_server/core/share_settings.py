"""What shares go by: the rules' defaults, what operators have set at run time, and how many cores there are.

Rules
-----
What an operator has set wins; what he takes back is as the rules say again. A quota in cores or as a part of the
pie entitles a group to so many cores; a weight only says how a group stands against other groups with weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from pilotage.quotas import Quota, QuotaUnit
from pilotage_server.core.accounting import Account, GroupId
from pilotage_server.core.rules import Sharing


@dataclass(frozen=True, slots=True)
class SetShares:
    """What operators have set, by account and by group."""

    factors: Mapping[Account, float] = field(default_factory=dict)
    quotas: Mapping[GroupId, Quota] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """What is in force; `pie` = the cores that quotas are parts of, 0 = none are known yet."""

    rules: Sharing
    operators: SetShares = field(default_factory=SetShares)
    pie: float = 0.0

    def factor(self, account: Account) -> float:
        """Return the account's priority factor."""
        of_rules = self.rules.priority_factors.get(account, self.rules.priority_factor)
        return self.operators.factors.get(account, of_rules)

    def quota(self, group: GroupId) -> Quota:
        """Return the group's quota."""
        return self.operators.quotas.get(group, self.rules.group_quotas.get(group, Quota(1.0)))

    def bound(self, group: GroupId) -> float | None:
        """Return how many cores the group's quota entitles it to; None = it has a weight, or nobody knows yet."""
        quota = self.quota(group)
        match quota.unit:
            case QuotaUnit.CORES:
                return quota.amount
            case QuotaUnit.PART:
                return quota.amount * self.pie or None
            case QuotaUnit.WEIGHT:
                return None

    def barring(self, group: GroupId) -> float | None:
        """Return the cores above which the group may take no job; None = it may use what others leave."""
        return None if self.rules.group_accept_surplus else self.bound(group)

    def weight(self, group: GroupId) -> float:
        """Return how the group stands against others as long as no number of cores is its own."""
        quota = self.quota(group)
        return quota.amount if quota.unit is QuotaUnit.WEIGHT else 1.0

    def needs_pie(self) -> bool:
        """Whether any quota is a part of the pie."""
        quotas = (*self.operators.quotas.values(), *self.rules.group_quotas.values())
        return any(quota.unit is QuotaUnit.PART for quota in quotas)

    def entitlements(self, groups: Iterable[GroupId]) -> dict[GroupId, float]:
        """Return how many cores of the pie each of the groups is entitled to.

        What the quotas in cores and parts leave of the pie is divided among the weights.
        """
        bounds = {group: self.bound(group) for group in groups}
        left = max(0.0, self.pie - sum(bound for bound in bounds.values() if bound is not None))
        weights = {group: self.weight(group) for group, bound in bounds.items() if bound is None}
        whole = sum(weights.values())
        shared = {group: left * weight / whole for group, weight in weights.items()}
        return {group: shared[group] if bound is None else bound for group, bound in bounds.items()}
