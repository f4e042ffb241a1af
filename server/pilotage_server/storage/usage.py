"""What accounts have used, in the database: the use of attempts that have ended, decayed up to a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from sqlalchemy import delete, select
from sqlmodel import Session

from pilotage_server.core.accounting import Account
from pilotage_server.core.fair_share import Use
from pilotage_server.storage import bulk, many_rows
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


_OF_OWNERS = """
    SELECT vo, "group", owner, core_s, updated FROM usage WHERE owner = ANY(?)
    ORDER BY vo, "group", owner FOR UPDATE
"""


def charge(session: Session, charges: Mapping[Account, float], now: datetime, half_life: timedelta) -> None:
    """Add core seconds, already decayed up to `now`, to what the accounts have used.

    `events.lock_feed` comes first: an account that is not there is nobody else's to insert.
    """
    rows = bulk.rows(session, _OF_OWNERS, sorted({account.owner for account in charges}))
    uses = {Account(*key): Use(core_s, bulk.time_of(updated)) for *key, core_s, updated in rows}
    known = [account for account in charges if account in uses]
    after = [uses[account].up_to(now, half_life) for account in known]
    core_s = [use.core_s + charges[account] for account, use in zip(known, after, strict=True)]
    many_rows.change(session, USAGE, _key(known), {"core_s": core_s, "updated": [use.at for use in after]})
    new = [account for account in charges if account not in uses]
    amounts: many_rows.Columns = {"core_s": [charges[account] for account in new], "updated": [now] * len(new)}
    many_rows.add(session, USAGE, {**_key(new), **amounts})


def _key(accounts: Sequence[Account]) -> many_rows.Columns:
    return {
        "vo": [account.vo for account in accounts],
        "group": [account.group for account in accounts],
        "owner": [account.owner for account in accounts],
    }
