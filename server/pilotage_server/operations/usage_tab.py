"""The use that one transaction charges to accounts: written as its last act, once an account.

Many transactions charge the same account. Written last, and behind the lock of the feed, the accounts' rows are
held for a moment only, and never while a transaction still waits for a job's row.
"""

from __future__ import annotations

from pilotage_server.core.accounting import Account
from pilotage_server.operations.world import World
from pilotage_server.storage import usage
from pilotage_server.storage.engine import Unit
from pilotage_server.storage.events import lock_feed

_KEY = "use charged by this transaction"


def charge(unit: Unit, world: World, account: Account, core_s: float) -> None:
    """Charge core seconds, weighted, and already decayed up to now."""
    tab: dict[Account, float] | None = unit.notes.get(_KEY)
    if tab is None:
        tab = unit.notes[_KEY] = {}
        unit.before_commit(lambda: _write(unit, world))
    tab[account] = tab.get(account, 0.0) + core_s


def _write(unit: Unit, world: World) -> None:
    tab: dict[Account, float] = unit.notes.pop(_KEY)
    lock_feed(unit.session)
    usage.charge(unit.session, tab, unit.now, world.rules.sharing.half_life)
