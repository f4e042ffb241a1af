"""The use that one transaction charges to accounts: written as its last act, once an account.

Many transactions charge the same account. Written last, and behind the lock of the feed, the accounts' rows are
held for a moment only, and never while a transaction still waits for a job's row.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import ClassVar

from pilotage_server.core.accounting import Account
from pilotage_server.operations.world import World
from pilotage_server.storage import usage
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.events import lock_feed


@dataclass(slots=True)
class _Use:
    """Core seconds, weighted and decayed up to the transaction's time, by account."""

    rank: ClassVar[int] = 2

    half_life: timedelta
    core_s: dict[Account, float] = field(default_factory=dict)

    def add(self, account: Account, core_s: float) -> None:
        """Charge an account."""
        self.core_s[account] = self.core_s.get(account, 0.0) + core_s

    def take_over(self, part: _Use) -> None:
        """Charge what a part of the transaction charges."""
        for account, core_s in part.core_s.items():
            self.add(account, core_s)

    def write(self, unit: Unit) -> None:
        """Write it to the accounts."""
        lock_feed(unit.session)
        usage.charge(unit.session, self.core_s, unit.now, self.half_life)


def charge(unit: Unit, world: World, account: Account, core_s: float) -> None:
    """Charge core seconds, weighted, and already decayed up to now."""
    unit.tab(_Use, lambda: _Use(world.rules.sharing.half_life)).add(account, core_s)
