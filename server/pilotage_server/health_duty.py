"""Looks again and again which places are black holes, and which throttled ones have proved well."""

from __future__ import annotations

from functools import partial

import structlog

from pilotage_server.core.throttles import Change
from pilotage_server.operations.health import HealthWatch, store_changes
from pilotage_server.rpc.transactions import Transactions

log = structlog.get_logger()


class HealthDuty:
    """Throttles places whose jobs fail fast, and opens those that prove well, unless another server was quicker."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions
        self._watch = HealthWatch()

    async def run_once(self) -> None:
        """Look at what has ended since the last time."""
        changes = await self._transactions.read(self._watch.look)
        if changes:
            for change in await self._transactions.write(partial(store_changes, changes=changes)):
                _log(change)


def _log(change: Change) -> None:
    new = change.new
    if new is None:
        return
    if change.old is None:
        log.warning("place throttled", place=new.place.key, why=new.reason)
    elif new.is_closed:
        log.info("place tried", place=new.place.key, proofs=new.proofs, why=new.reason)
    else:
        log.info("place opened", place=new.place.key, why=new.reason)
