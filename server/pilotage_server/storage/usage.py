"""What accounts have used, in the database: the use of attempts that have ended, decayed up to a time."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from sqlalchemy import delete, select, update
from sqlmodel import Session

from pilotage_server.core.accounting import Account
from pilotage_server.core.fair_share import Use
from pilotage_server.storage.inserting import insert_if_absent
from pilotage_server.storage.tables import metadata

USAGE = metadata.tables["usage"]


def load_uses(session: Session) -> dict[Account, Use]:
    """Return what each account has used, without what runs."""
    rows = session.execute(select(USAGE))
    return {Account(row.vo, row.group, row.owner): Use(row.core_s, row.updated) for row in rows}


def delete_faded(session: Session, charged_before: datetime, limit: int) -> tuple[Account, ...]:
    """Remove the use of at most `limit` accounts that were charged no more since then; return whose."""
    faded = select(USAGE.c.vo, USAGE.c.group, USAGE.c.owner).where(USAGE.c.updated < charged_before)
    rows = session.execute(faded.order_by(USAGE.c.updated).limit(limit).with_for_update(skip_locked=True)).all()
    for vo, group, owner in rows:
        session.execute(delete(USAGE).where(USAGE.c.vo == vo, USAGE.c.group == group, USAGE.c.owner == owner))
    return tuple(Account(*row) for row in rows)


def charge(session: Session, charges: Mapping[Account, float], now: datetime, half_life: timedelta) -> None:
    """Add core seconds, already decayed up to `now`, to what the accounts have used."""
    for account in sorted(charges):  # in one order, so that two transactions never wait for each other in a circle
        key = {"vo": account.vo, "group": account.group, "owner": account.owner}
        if insert_if_absent(session, USAGE, {**key, "core_s": charges[account], "updated": now}):
            continue
        of_account = (USAGE.c.vo == account.vo, USAGE.c.group == account.group, USAGE.c.owner == account.owner)
        row = session.execute(select(USAGE).where(*of_account).with_for_update()).one()
        use = Use(row.core_s, row.updated).up_to(now, half_life)
        values = {"core_s": use.core_s + charges[account], "updated": use.at}
        session.execute(update(USAGE).where(*of_account).values(values))
