"""Names of accounts and groups, and quotas of groups, as people write them.

- An account is VO/GROUP/OWNER, a group is VO/GROUP. A VO and an owner have no slash, a group may; an empty group means
  jobs without a group.
- A quota is a weight against other groups (`3`), a number of cores (`40 cores`) or a part of all cores (`25 %`).
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum

from pilotage.errors import InvalidInputError, Violation

LARGEST = 1e9
"""The largest weight, number of cores, or priority factor."""

_QUOTA = re.compile(r"\s*(?P<amount>\d+\.?\d*|\.\d+)\s*(?P<unit>%|cores?)?\s*", re.IGNORECASE | re.ASCII)


class QuotaUnit(StrEnum):
    """What the amount of a quota counts."""

    WEIGHT = "weight"
    CORES = "cores"
    PART = "part"


@dataclass(frozen=True, slots=True)
class Quota:
    """What a group is entitled to; the amount is greater than 0, and at most 1 for a part."""

    amount: float
    unit: QuotaUnit = QuotaUnit.WEIGHT

    def __str__(self) -> str:
        """Return the quota as people write it; `read_quota` is the inverse."""
        match self.unit:
            case QuotaUnit.WEIGHT:
                return f"{self.amount:.15g}"
            case QuotaUnit.CORES:
                return f"{self.amount:.15g} cores"
            case QuotaUnit.PART:
                return f"{self.amount * 100:.15g} %"


def read_quota(text: str | float) -> Quota:
    """Return the quota of a text or number: `3` or 3 is a weight; `40 cores` and `25 %` have their unit.

    Raises
    ------
    InvalidInputError
        When it has none of these forms, is not greater than 0, or is too large.
    """
    if not isinstance(text, str):
        return checked_quota(Quota(float(text)))
    found = _QUOTA.fullmatch(text)
    if found is None:
        why = f"{text} is no quota; write a weight (3), cores (40 cores) or a part (25 %)"
        raise InvalidInputError(Violation("", why))
    amount, unit = float(found["amount"]), (found["unit"] or "").lower()
    if unit == "%":
        return checked_quota(Quota(amount / 100, QuotaUnit.PART))
    return checked_quota(Quota(amount, QuotaUnit.CORES if unit else QuotaUnit.WEIGHT))


def checked_quota(quota: Quota) -> Quota:
    """Return the quota; raises InvalidInputError if its amount is out of range."""
    largest = 1.0 if quota.unit is QuotaUnit.PART else LARGEST
    if not (math.isfinite(quota.amount) and 0 < quota.amount <= largest):
        most = "100 %" if quota.unit is QuotaUnit.PART else f"{LARGEST:.0e}"
        raise InvalidInputError(Violation("", f"{quota} is not greater than 0 and at most {most}"))
    return quota


def split_account(name: str) -> tuple[str, str, str]:
    """Return VO, group and owner of "VO/GROUP/OWNER"; raises InvalidInputError."""
    vo, _, rest = name.partition("/")
    group, slash, owner = rest.rpartition("/")
    if not (vo and slash and owner):
        raise InvalidInputError(Violation("", f"{name!r} names no account; write VO/GROUP/OWNER"))
    return vo, group, owner


def split_group(name: str) -> tuple[str, str]:
    """Return VO and group of "VO/GROUP"; raises InvalidInputError."""
    vo, slash, group = name.partition("/")
    if not (vo and slash):
        raise InvalidInputError(Violation("", f"{name!r} names no group; write VO/GROUP"))
    return vo, group
