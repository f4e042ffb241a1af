"""Queries of the sums of what ended attempts have used."""

from __future__ import annotations

from dataclasses import replace

from pilotage_server.core.accounting.usage_sums import UsageQuery, UsageSum
from pilotage_server.core.identity import Identity
from pilotage_server.operations.resources.pools import visible_vo
from pilotage_server.storage.accounting import sum_daily_usage
from pilotage_server.storage.database.transaction import Transaction


def list_usage(
    transaction: Transaction, identity: Identity, query: UsageQuery
) -> list[tuple[tuple[str, ...], UsageSum]]:
    """Return the sums that the caller may see, by the keys of the query and in their order.

    Raises
    ------
    PermissionDeniedError
        When a user asks for the use of another VO.
    """
    return sum_daily_usage(transaction.session, replace(query, vo=visible_vo(identity, query.vo or "")))
