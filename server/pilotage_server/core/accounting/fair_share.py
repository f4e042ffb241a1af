"""Fair share: decayed use, share settings, and the priorities of groups and owners at one time.

Rules
-----
- Use is core seconds; each core counts with the weight of its slot. It halves every half-life, and what runs adds to it
  as it accrues. A constant rate under exponential decay has a closed form, so an account is a few numbers.
- A core that has just been given counts with some foresight, so that many slots given at once are shared fairly.
- Priorities are computed at whole ticks. Within a tick only charges move them. So charges are cheap, and every matcher
  that gives jobs in the same order finds the same shares to the last bit.
- Groups below the cores of their quota go first, those at or above go last; between them go the groups with weights.
  Among
  equals the smaller use in relation to the entitlement goes first.
- An operator's order of groups comes before these rules, but a group at its quota still goes last.
- An operator's value overrides the rules' value, until it is removed. A quota in cores or as a part of the pool
  entitles a group to cores; a weight only ranks a group among other groups with weights.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum
from functools import partial
from typing import NamedTuple

from pilotage.accounts import Quota, QuotaUnit
from pilotage.values.accounts import Account, GroupId
from pilotage_server.core.accounting.group_order import GroupOrder, GroupUse, SortValue
from pilotage_server.core.rules import Sharing


@dataclass(frozen=True, slots=True)
class ShareOverrides:
    """What operators have set, by account and by group."""

    factors: Mapping[Account, float] = field(default_factory=dict)
    quotas: Mapping[GroupId, Quota] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShareSettings:
    """The active settings; `pool_size` = the cores that quotas are parts of, 0 = not known yet."""

    rules: Sharing
    operators: ShareOverrides = field(default_factory=ShareOverrides)
    pool_size: float = 0.0

    def factor(self, account: Account) -> float:
        """Return the account's priority factor."""
        of_rules = self.rules.priority_factors.get(account, self.rules.priority_factor)
        return self.operators.factors.get(account, of_rules)

    def quota(self, group: GroupId) -> Quota:
        """Return the group's quota."""
        return self.operators.quotas.get(group, self.rules.group_quotas.get(group, Quota(1.0)))

    def entitled_cores(self, group: GroupId) -> float | None:
        """Return the cores of the group's quota; None = it has a weight, or the pool size is not known."""
        quota = self.quota(group)
        match quota.unit:
            case QuotaUnit.CORES:
                return quota.amount
            case QuotaUnit.PART:
                return quota.amount * self.pool_size or None
            case QuotaUnit.WEIGHT:
                return None

    def hard_limit(self, group: GroupId) -> float | None:
        """Return the cores above which the group may take no job; None = it may use surplus."""
        return None if self.rules.group_accept_surplus else self.entitled_cores(group)

    def weight(self, group: GroupId) -> float:
        """Return the group's weight against other groups; 1 where its quota is not a weight."""
        quota = self.quota(group)
        return quota.amount if quota.unit is QuotaUnit.WEIGHT else 1.0

    def needs_pool_size(self) -> bool:
        """Whether any quota is a part of the pool."""
        quotas = (*self.operators.quotas.values(), *self.rules.group_quotas.values())
        return any(quota.unit is QuotaUnit.PART for quota in quotas)

    def entitlements(self, groups: Iterable[GroupId]) -> dict[GroupId, float]:
        """Return how many cores of the pool each of the groups is entitled to.

        What the quotas in cores and parts leave is divided by weight.
        """
        bounds = {group: self.entitled_cores(group) for group in groups}
        left = max(0.0, self.pool_size - sum(bound for bound in bounds.values() if bound is not None))
        weights = {group: self.weight(group) for group, bound in bounds.items() if bound is None}
        whole = sum(weights.values())
        shared = {group: left * weight / whole for group, weight in weights.items()}
        return {group: shared[group] if bound is None else bound for group, bound in bounds.items()}


TICK = timedelta(seconds=1)
"""Priorities are computed again after so long."""


class QuotaState(IntEnum):
    """A group's use in relation to its quota; the smaller goes first. Shares contain the plain number."""

    BELOW_QUOTA = 0
    WEIGHTED = 1
    AT_QUOTA = 2


class Share(NamedTuple):
    """How much of its fair share an account has used; the smaller goes first.

    `order` and `quota_state` are the group's: `order` is its value in the operators' order of groups, infinite at its
    quota. `group` and `owner` are use in relation to entitlement. Among owners without use, the smaller `factor` goes
    first.
    """

    order: float
    quota_state: int
    group: float
    owner: float
    factor: float


class CountedUse(NamedTuple):
    """Use as it counts in the order: core seconds with foresight, and weighted cores in use."""

    core_s: float
    cores: float

    def plus(self, cores: float, foresight_s: float) -> CountedUse:
        """Return the use with so many weighted cores more; less than 0 = fewer."""
        return CountedUse(self.core_s + cores * foresight_s, self.cores + cores)


def tick_of(now: datetime) -> datetime:
    """Return the beginning of the tick that `now` is in."""
    return now.replace(microsecond=0)


class GroupPriority:
    """The use of a group, and its entitlement: cores (`bound`, None = by weight) or a weight.

    `order`, `quota_state` and `use` are its part of the shares of its accounts. `sort_value` holds for the tick.
    """

    __slots__ = ("bound", "core_s", "cores", "order", "quota_state", "sort_value", "use", "weight")

    def __init__(self, settings: ShareSettings, group: GroupId, counted_use: CountedUse, order: GroupOrder) -> None:
        self.core_s, self.cores = counted_use
        self.bound = settings.entitled_cores(group)
        self.weight = settings.weight(group)
        self.sort_value: SortValue = order.value(group, GroupUse(self.bound, self.weight, self.cores))
        self.order, self.quota_state, self.use = self.share_part(*counted_use)

    def charge(self, core_s: float, cores: float) -> None:
        """Add use in core seconds, and weighted cores."""
        self.core_s += core_s
        self.cores += cores
        if self.bound is None:
            self.use = self.core_s / self.weight
        else:
            self.order, self.quota_state, self.use = self.share_part(self.core_s, self.cores)

    @property
    def rank(self) -> tuple[float, int, float]:
        """The group's present part of its accounts' shares."""
        return self.order, self.quota_state, self.use

    @property
    def goes_last(self) -> str:
        """Why the group goes after those with a value in the operators' order; "" = it does not."""
        return "it uses its quota" if self.quota_state == QuotaState.AT_QUOTA else self.sort_value.fault

    def share_part(self, core_s: float, cores: float) -> tuple[float, int, float]:
        """Return the group's part of its accounts' shares for this use."""
        bound = self.bound
        if bound is None:
            return self.sort_value.number, QuotaState.WEIGHTED, core_s / self.weight
        if cores < bound:
            return self.sort_value.number, QuotaState.BELOW_QUOTA, core_s / bound
        return math.inf, QuotaState.AT_QUOTA, core_s / bound


class OwnerPriority:
    """The use of an account, with its group and its priority factor; `use` is what counts in its group."""

    __slots__ = ("core_s", "cores", "factor", "group", "use")

    def __init__(
        self, settings: ShareSettings, account: Account, counted_use: CountedUse, group: GroupPriority
    ) -> None:
        self.core_s, self.cores = counted_use
        self.group = group
        self.factor = settings.factor(account)
        self.use = self.core_s * self.factor

    def charge(self, cores: float, foresight_s: float) -> None:
        """Add weighted cores that the account uses from now on; less than 0 = fewer."""
        core_s = cores * foresight_s
        self.core_s += core_s
        self.cores += cores
        self.use = self.core_s * self.factor
        self.group.charge(core_s, cores)

    def share(self) -> Share:
        """Return how much of its fair share the account has used."""
        group = self.group
        return Share(group.order, group.quota_state, group.use, self.use, self.factor)


class Priorities:
    """The priorities of one tick.

    `counted_use` returns the use of an account at the beginning of the tick, `members` the accounts of a group with any
    use.
    """

    def __init__(
        self,
        settings: ShareSettings,
        tick: datetime,
        counted_use: Callable[[Account], CountedUse],
        members: Callable[[GroupId], Iterable[Account]],
        order: GroupOrder,
    ) -> None:
        self.settings = settings
        self._tick = tick
        self._end = tick + TICK
        self.changed: set[Account] = set()
        """The accounts whose charge has changed; the keeper of an account order empties it."""

        self.foresight_s = settings.rules.foresight.total_seconds()
        self._use_before = counted_use
        self._members = members
        self._order = order
        self._counted_uses: dict[Account, CountedUse] = {}
        self._owners: dict[Account, OwnerPriority] = {}
        self._groups: dict[GroupId, GroupPriority] = {}

    def covers(self, now: datetime) -> bool:
        """Whether `now` is in this tick."""
        return self._tick <= now < self._end

    def share(self, account: Account) -> Share:
        """Return how much of its fair share the account has used."""
        return self.owner(account).share()

    def charge(self, account: Account, cores: float) -> None:
        """Add weighted cores that the account uses from now on; less than 0 = fewer."""
        self.owner(account).charge(cores, self.foresight_s)
        self.changed.add(account)

    def owner(self, account: Account) -> OwnerPriority:
        """Return the present priority of an account."""
        owner = self._owners.get(account)
        if owner is None:
            group = self.group(account.group_id)
            owner = self._owners[account] = OwnerPriority(self.settings, account, self._counted_use(account), group)
        return owner

    def group(self, group: GroupId) -> GroupPriority:
        """Return the present priority of a group."""
        found = self._groups.get(group)
        if found is None:
            counted_use = _total(map(self._counted_use, self._members(group)))
            found = self._groups[group] = GroupPriority(self.settings, group, counted_use, self._order)
        return found

    def _counted_use(self, account: Account) -> CountedUse:
        counted_use = self._counted_uses.get(account)
        if counted_use is None:
            counted_use = self._counted_uses[account] = self._use_before(account)
        return counted_use


class ShareRound:
    """The shares during one round of matching, with its charges, which are visible only here."""

    def __init__(self, priorities: Priorities, user_priority: Callable[[Account], float]) -> None:
        self.user_priority = user_priority
        self._priorities = priorities
        self._settings = priorities.settings
        self._owners: dict[Account, CountedUse] = {}
        self._groups: dict[GroupId, CountedUse] = {}

    def share(self, account: Account) -> Share:
        """Return how much of its fair share the account has used."""
        owner = self._priorities.owner(account)
        group_part = owner.group.share_part(*self._of_group(account))
        return Share(*group_part, self._of_owner(account).core_s * owner.factor, owner.factor)

    def can_bar(self, account: Account) -> bool:
        """Whether the account's group has a quota without surplus."""
        return self._settings.hard_limit(account.group_id) is not None

    def bars(self, account: Account, cores: float) -> bool:
        """Whether so many weighted cores more would exceed the quota of a group that may use no surplus."""
        bound = self._settings.hard_limit(account.group_id)
        return bound is not None and self._of_group(account).cores + cores > bound

    def room(self, account: Account) -> float | None:
        """Return the weighted cores up to the quota in cores of a group that may use no surplus; None = no such quota.

        A quota that is a part of all cores has no room of its own: it grows with the pilots.
        """
        group = account.group_id
        if self._settings.quota(group).unit is not QuotaUnit.CORES:
            return None
        bound = self._settings.hard_limit(group)
        return None if bound is None else max(0.0, bound - self._of_group(account).cores)

    def charge(self, account: Account, cores: float) -> None:
        """Add what the round has just given, in weighted cores."""
        foresight_s = self._priorities.foresight_s
        self._groups[account.group_id] = self._of_group(account).plus(cores, foresight_s)
        self._owners[account] = self._of_owner(account).plus(cores, foresight_s)

    def _of_owner(self, account: Account) -> CountedUse:
        owner = self._priorities.owner(account)
        return self._owners.get(account) or CountedUse(owner.core_s, owner.cores)

    def _of_group(self, account: Account) -> CountedUse:
        group = self._priorities.owner(account).group
        return self._groups.get(account.group_id) or CountedUse(group.core_s, group.cores)


def _total(counted_use: Iterable[CountedUse]) -> CountedUse:
    uses = list(counted_use)
    # fsum is exact, so the order in which a set yields its members cannot change the outcome
    return CountedUse(math.fsum(each.core_s for each in uses), math.fsum(each.cores for each in uses))


LEAST_USER_PRIORITY = 0.5
"""The user priority of an account without use, before its factor (HTCondor manual, "User Priorities")."""


class Use(NamedTuple):
    """The use of an account up to `at`, in core seconds, and the weighted `cores` that its `runs` use since."""

    core_s: float
    at: datetime
    cores: float = 0.0
    runs: int = 0

    def up_to(self, now: datetime, half_life: timedelta) -> Use:
        """Return the use at `now`, decayed and with what has accrued; a time before `at` changes nothing."""
        if now <= self.at:
            return self
        elapsed = (now - self.at).total_seconds()
        core_s = self.core_s * decay(elapsed, half_life) + accrued(self.cores, elapsed, half_life)
        return Use(core_s, now, self.cores, self.runs)


def decay(elapsed_s: float, half_life: timedelta) -> float:
    """Return what is left of a use of 1 after so long."""
    return math.pow(0.5, elapsed_s / half_life.total_seconds())


def fading_time(half_life: timedelta) -> timedelta:
    """Return the time after which a use counts nothing: the rest is less than a rounding error."""
    return 64 * half_life


def accrued(cores: float, elapsed_s: float, half_life: timedelta) -> float:
    """Return the decayed core seconds of `cores` used for the last `elapsed_s`."""
    rate = math.log(2) / half_life.total_seconds()
    return cores * -math.expm1(-rate * elapsed_s) / rate


def least_priority(half_life: timedelta) -> float:
    """Return the use, in core seconds, of HTCondor's lowest user priority: half a core, for ever."""
    return LEAST_USER_PRIORITY * half_life.total_seconds() / math.log(2)


class FairShare:
    """The use and priorities of all accounts of one server."""

    def __init__(self, sharing: Sharing) -> None:
        self.settings = ShareSettings(sharing)
        self.group_order = GroupOrder(sharing.group_sort_expression)
        self._uses: dict[Account, Use] = {}
        self._groups: dict[GroupId, set[Account]] = {}
        self._priorities: Priorities | None = None

    def load(self, uses: Iterable[tuple[Account, Use]]) -> None:
        """Replace all uses."""
        self._uses.clear()
        self._groups.clear()
        self._priorities = None
        for account, use in uses:
            self._put(account, use)

    def start_run(self, account: Account, cores: float, now: datetime, since: datetime | None = None) -> None:
        """Count weighted cores that the account uses from now, or from `since`."""
        if self._priorities is not None:
            self._priorities.charge(account, cores)
        self.charge(account, cores, 1, now, since)

    def charge(self, account: Account, cores: float, runs: int, now: datetime, since: datetime | None = None) -> None:
        """Count so many runs with so many cores together, which the priorities include already."""
        use = self._at(account, now)
        elapsed_s = 0.0 if since is None else max(0.0, (now - since).total_seconds())
        core_s = use.core_s + accrued(cores, elapsed_s, self._half_life) if elapsed_s else use.core_s
        self._put(account, Use(core_s, use.at, use.cores + cores, use.runs + runs))

    def end_runs(self, account: Account, cores: float, now: datetime, runs: int = 1) -> None:
        """Count weighted cores and runs of the account that have ended now."""
        use = self._at(account, now)
        # without runs the use is exactly 0, whatever the rounding errors of the sum
        left = max(0.0, use.cores - cores) if use.runs > runs else 0.0
        if self._priorities is not None:
            self._priorities.charge(account, left - use.cores)
        self._put(account, Use(use.core_s, use.at, left, max(0, use.runs - runs)))

    def remove(self, accounts: Iterable[Account]) -> None:
        """Remove accounts whose use has faded, unless they use cores now."""
        for account in accounts:
            if account in self._uses and not self._uses[account].runs:
                del self._uses[account]
                self._groups[account.group_id].discard(account)
                self._priorities = None

    def use(self, account: Account, now: datetime) -> Use:
        """Return the use of the account up to `now`."""
        return self._at(account, now)

    def runs_by_vo(self) -> dict[str, int]:
        """Return the numbers of present runs of each VO that has had any."""
        runs: dict[str, int] = {}
        for account, use in self._uses.items():
            runs[account.vo] = runs.get(account.vo, 0) + use.runs
        return runs

    def accounts(self) -> tuple[Account, ...]:
        """Return the accounts with a use, sorted."""
        return tuple(sorted(self._uses))

    def group_of(self, group: GroupId) -> tuple[Account, ...]:
        """Return the accounts of a group that have a use."""
        return tuple(self._groups.get(group, ()))

    def priorities(self, now: datetime) -> Priorities:
        """Return the priorities of the tick that `now` is in; they move with what starts and ends."""
        priorities = self._priorities
        if priorities is None or priorities.settings is not self.settings or not priorities.covers(now):
            tick = tick_of(now)
            counted_use = partial(self._counted_use, tick)
            priorities = Priorities(self.settings, tick, counted_use, self.group_of, self.group_order)
            self._priorities = priorities
        return priorities

    def round(self, now: datetime) -> ShareRound:
        """Return the shares at `now` for a round of matching, which charges them without a change here."""
        return ShareRound(self.priorities(now), lambda account: self.user_priority(account, now))

    def user_priority(self, account: Account, now: datetime) -> float:
        """Return HTCondor's effective user priority: a greater one is worse.

        It is the decayed mean of the cores in use, at least 0.5, times the priority factor (HTCondor manual, "User
        Priorities and Negotiation").
        """
        used = max(least_priority(self._half_life), self._at(account, now).core_s)
        return used * math.log(2) / self._half_life.total_seconds() * self.settings.factor(account)

    def _counted_use(self, tick: datetime, account: Account) -> CountedUse:
        """Return the use as it counts in the order: with foresight for the cores in use."""
        use = self._at(account, tick)
        return CountedUse(use.core_s + use.cores * self.settings.rules.foresight.total_seconds(), use.cores)

    @property
    def _half_life(self) -> timedelta:
        return self.settings.rules.half_life

    def _at(self, account: Account, now: datetime) -> Use:
        use = self._uses.get(account)
        return Use(0.0, now) if use is None else use.up_to(now, self._half_life)

    def _put(self, account: Account, use: Use) -> None:
        if account not in self._uses:
            self._groups.setdefault(account.group_id, set()).add(account)
        self._uses[account] = use
