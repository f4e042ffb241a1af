"""Priority factors and group quotas that operators have set, in the database."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Table, delete, select, update
from sqlmodel import Session

from pilotage.quotas import Quota, QuotaUnit
from pilotage_server.core.accounting import Account, GroupId
from pilotage_server.core.share_settings import SetShares
from pilotage_server.storage.inserting import insert_if_absent
from pilotage_server.storage.tables import metadata

FACTORS = metadata.tables["priority_factors"]
QUOTAS = metadata.tables["group_quotas"]


def load_set_shares(session: Session) -> SetShares:
    """Return all that operators have set."""
    factors = {Account(row.vo, row.group, row.owner): row.factor for row in session.execute(select(FACTORS))}
    quotas = {
        GroupId(row.vo, row.group): Quota(row.amount, QuotaUnit(row.unit)) for row in session.execute(select(QUOTAS))
    }
    return SetShares(factors, quotas)


def store_factor(session: Session, account: Account, factor: float | None) -> None:
    """Keep an account's priority factor; None = none is set any more."""
    key = {"vo": account.vo, "group": account.group, "owner": account.owner}
    _store(session, FACTORS, key, None if factor is None else {"factor": factor})


def store_quota(session: Session, group: GroupId, quota: Quota | None) -> None:
    """Keep a group's quota; None = none is set any more."""
    key = {"vo": group.vo, "group": group.name}
    _store(session, QUOTAS, key, None if quota is None else {"amount": quota.amount, "unit": quota.unit.value})


def _store(session: Session, table: Table, key: Mapping[str, str], values: Mapping[str, Any] | None) -> None:
    this = [table.c[name] == value for name, value in key.items()]
    if values is None:
        session.execute(delete(table).where(*this))
    elif not insert_if_absent(session, table, {**key, **values}):
        session.execute(update(table).where(*this).values(**values))
