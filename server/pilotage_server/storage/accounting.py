"""Accounting in the database: use of ended attempts, counts of running limits, shares and quotas, and jobs by minute.

Use is decayed up to a stored time. Rows are locked in the order of their keys, so that transactions never wait for
each other in a circle.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Table, delete, select, update
from sqlmodel import Session

from pilotage.accounts import Quota, QuotaUnit
from pilotage.values.accounts import Account, GroupId
from pilotage_server.core.accounting.fair_share import ShareOverrides, Use
from pilotage_server.core.accounting.job_counts import JobCounts
from pilotage_server.core.accounting.usage_sums import SumKey, UsageKey, UsageQuery, UsageSum
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.sql import insert_if_absent
from pilotage_server.storage.database.tables import ENDED_JOB, HELD_JOB, metadata

USAGE = metadata.tables["usage"]


def load_uses(session: Session) -> dict[Account, Use]:
    """Return the use of each account by ended attempts."""
    rows = session.execute(select(USAGE))
    return {Account(row.vo, row.group, row.owner): Use(row.core_s, row.updated) for row in rows}


def delete_faded(session: Session, charged_before: datetime, limit: int) -> tuple[Account, ...]:
    """Remove the use of at most `limit` accounts that were not charged since then; return these accounts.

    `events.lock_feed` comes first, as for `charge`.
    """
    faded = select(USAGE.c.vo, USAGE.c.group, USAGE.c.owner).where(USAGE.c.updated < charged_before)
    rows = session.execute(faded.order_by(USAGE.c.updated).limit(limit)).all()
    for vo, group, owner in rows:
        session.execute(delete(USAGE).where(USAGE.c.vo == vo, USAGE.c.group == group, USAGE.c.owner == owner))
    return tuple(Account(*row) for row in rows)


_OF_OWNERS = 'SELECT vo, "group", owner, core_s, updated FROM usage WHERE owner = ANY(?)'


def charge(session: Session, charges: Mapping[Account, float], now: datetime, half_life: timedelta) -> None:
    """Add core seconds, already decayed up to `now`, to the use of accounts.

    `events.lock_feed` comes first, so that no other transaction inserts or changes these rows.
    """
    rows = sql.rows(session, _OF_OWNERS, sorted({account.owner for account in charges}))
    uses = {Account(*key): Use(core_s, sql.utc_time(updated)) for *key, core_s, updated in rows}
    known = [account for account in charges if account in uses]
    after = [uses[account].up_to(now, half_life) for account in known]
    core_s = [use.core_s + charges[account] for account, use in zip(known, after, strict=True)]
    sql.update_rows(session, USAGE, _key(known), {"core_s": core_s, "updated": [use.at for use in after]})
    new = [account for account in charges if account not in uses]
    amounts: sql.Columns = {"core_s": [charges[account] for account in new], "updated": [now] * len(new)}
    sql.insert_rows(session, USAGE, {**_key(new), **amounts})


def _key(accounts: Sequence[Account]) -> sql.Columns:
    return {
        "vo": [account.vo for account in accounts],
        "group": [account.group for account in accounts],
        "owner": [account.owner for account in accounts],
    }


_SUMS = UsageSum.__slots__
_DAILY_COLUMNS = ("day", "vo", '"group"', "owner", "site", *_SUMS)
_INSERT_DAILY = f"INSERT INTO daily_usage ({', '.join(_DAILY_COLUMNS)})"
_ADDED = ", ".join(f"{name} = daily_usage.{name} + excluded.{name}" for name in _SUMS)
_ADD_DAILY = f'ON CONFLICT (day, vo, "group", owner, site) DO UPDATE SET {_ADDED}'
_ADD_EACH = f"{_INSERT_DAILY} VALUES ({', '.join('?' * len(_DAILY_COLUMNS))}) {_ADD_DAILY}"
_TYPES = [*["text[]"] * 5, *["bigint[]"] * 3, *["float8[]"] * 5]
_ADD_ALL = f"{_INSERT_DAILY} SELECT * FROM unnest({', '.join(f'?::{type_}' for type_ in _TYPES)}) {_ADD_DAILY}"  # noqa: S608


def add_daily_usage(session: Session, sums: Mapping[SumKey, UsageSum]) -> None:
    """Add to the sums of days, which are kept for ever.

    `events.lock_feed` comes first, so that no other transaction inserts or changes these rows.
    """
    rows = [(*key, *(getattr(each, name) for name in _SUMS)) for key, each in sums.items()]
    if sql.is_sqlite(session):
        sql.execute_many(session, _ADD_EACH, rows)
    elif rows:
        sql.execute(session, _ADD_ALL, *map(list, zip(*rows, strict=True)))


_KEY_COLUMNS = {
    UsageKey.DAY: "day",
    UsageKey.MONTH: "substr(day, 1, 7)",
    UsageKey.VO: "vo",
    UsageKey.GROUP: '"group"',
    UsageKey.OWNER: "owner",
    UsageKey.SITE: "site",
}


def sum_daily_usage(session: Session, query: UsageQuery) -> list[tuple[tuple[str, ...], UsageSum]]:
    """Return the sums by the keys that the query asks for, in their order."""
    names = {
        "vo": () if query.vo is None else {query.vo},
        "group": query.groups,
        "owner": query.owners,
        "site": query.sites,
    }
    lists = {_KEY_COLUMNS[UsageKey(name)]: sorted(chosen) for name, chosen in names.items() if chosen}
    conditions = [f"{column} = ANY(?)" for column in lists]
    days = {"day >= ?": query.since, "day <= ?": query.until}
    conditions += [condition for condition, day in days.items() if day]
    keys = [_KEY_COLUMNS[key] for key in query.by]
    wanted = ", ".join((*keys, *(f"sum({name})" for name in _SUMS)))
    where = f"WHERE {' AND '.join(conditions)}" if conditions else ""
    groups = f"GROUP BY {', '.join(keys)} ORDER BY {', '.join(keys)}" if keys else "HAVING count(*) > 0"
    statement = f"SELECT {wanted} FROM daily_usage {where} {groups}"  # noqa: S608 - names of columns
    rows = sql.rows(session, statement, *lists.values(), *filter(None, days.values()))
    count = len(query.by)
    return [(tuple(row[:count]), UsageSum(*map(int, row[count : count + 3]), *row[count + 3 :])) for row in rows]


_READ = "SELECT key, running FROM running_counts WHERE key = ANY(?)"
_LOCK = "SELECT running FROM running_counts WHERE key = ? FOR UPDATE"
_ADD = (
    "INSERT INTO running_counts (key, running) VALUES (?, ?)"
    " ON CONFLICT (key) DO UPDATE SET running = running_counts.running + excluded.running"
)
_TAKE = f"{_ADD} WHERE running_counts.running + excluded.running <= ?"
_SET = (
    "INSERT INTO running_counts (key, running) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET running = excluded.running"
)


def read_counts(session: Session, keys: Iterable[str]) -> dict[str, int]:
    """Return the number of jobs counted under each key; keys without a row are left out."""
    return dict(sql.rows(session, _READ, sorted(keys)))


def lock_counts(session: Session, keys: Iterable[str]) -> None:
    """Lock these counts until the transaction ends."""
    for key in sorted(keys):
        sql.rows(session, _LOCK, key)


def add(session: Session, key: str, by: int) -> int:
    """Add `by`, which may be negative, to a count and return the new count."""
    ((running,),) = sql.rows(session, f"{_ADD} RETURNING running", key, by)
    return int(running)


def take(session: Session, key: str, by: int, at_most: int) -> int | None:
    """Add `by` to a count and return the new count; None = it would exceed `at_most`, and nothing changes."""
    taken = sql.rows(session, f"{_TAKE} RETURNING running", key, by, at_most)
    return int(taken[0][0]) if taken else None


def set_counts(session: Session, counts: Mapping[str, int]) -> None:
    """Set the counts."""
    sql.execute_many(session, _SET, sorted(counts.items()))


FACTORS = metadata.tables["priority_factors"]
QUOTAS = metadata.tables["group_quotas"]


def load_set_shares(session: Session) -> ShareOverrides:
    """Return all priority factors and quotas that operators have set."""
    factors = {Account(row.vo, row.group, row.owner): row.factor for row in session.execute(select(FACTORS))}
    quotas = {
        GroupId(row.vo, row.group): Quota(row.amount, QuotaUnit(row.unit)) for row in session.execute(select(QUOTAS))
    }
    return ShareOverrides(factors, quotas)


def store_factor(session: Session, account: Account, factor: float | None) -> None:
    """Store the priority factor of an account; None removes it."""
    key = {"vo": account.vo, "group": account.group, "owner": account.owner}
    _store(session, FACTORS, key, None if factor is None else {"factor": factor})


def store_quota(session: Session, group: GroupId, quota: Quota | None) -> None:
    """Store the quota of a group; None removes it."""
    key = {"vo": group.vo, "group": group.name}
    _store(session, QUOTAS, key, None if quota is None else {"amount": quota.amount, "unit": quota.unit.value})


def _store(session: Session, table: Table, key: Mapping[str, str], values: Mapping[str, Any] | None) -> None:
    this = [table.c[name] == value for name, value in key.items()]
    if values is None:
        session.execute(delete(table).where(*this))
    elif not insert_if_absent(session, table, {**key, **values}):
        session.execute(update(table).where(*this).values(**values))


COUNTS = metadata.tables["job_counts"]

_ENDED = f"SELECT vo, state, count(*) FROM jobs WHERE {ENDED_JOB} AND ended >= ? AND ended < ? GROUP BY vo, state"  # noqa: S608
_HELD = f"SELECT count(*) FROM (SELECT 1 FROM jobs WHERE {HELD_JOB} {{}} LIMIT ?) AS counted"  # noqa: S608


def count_ended(session: Session, start: datetime, end: datetime) -> dict[tuple[str, str], int]:
    """Return the numbers of jobs that have ended from `start` on and before `end`, by VO and state."""
    times = sql.column_time(session, start), sql.column_time(session, end)
    return {(vo, state): count for vo, state, count in sql.rows(session, _ENDED, *times)}


def count_held(session: Session, vo: str | None, most: int) -> int:
    """Return the number of held jobs of a VO, counted up to `most`; None = of all VOs."""
    of_vo = () if vo is None else (vo,)
    ((count,),) = sql.rows(session, _HELD.format("AND vo = ?" if of_vo else ""), *of_vo, most)
    return int(count)


def newest_minute(session: Session) -> int:
    """Return the newest minute with counts; 0 = there is none."""
    ((minute,),) = sql.rows(session, "SELECT max(minute) FROM job_counts")
    return minute or 0


def add_counts(session: Session, minute: int, counts: Mapping[str, JobCounts]) -> None:
    """Keep the counts of a minute by VO, unless another server has done it."""
    for vo, each in counts.items():
        values = {"waiting": int(each.waiting), "running": int(each.running)}
        ended = {"done": each.done, "failed": each.failed, "removed": each.removed}
        insert_if_absent(session, COUNTS, {"minute": minute, "vo": vo, **values, **ended})


def delete_counts(session: Session, before: int) -> None:
    """Remove the counts of all minutes before this one."""
    sql.execute(session, "DELETE FROM job_counts WHERE minute < ?", before)


_COUNT_SUMS = ", ".join(f"sum({name})" for name in ("waiting", "running", "done", "failed", "removed"))
_HISTORY = f"""
    SELECT minute / ?, count(DISTINCT minute), {_COUNT_SUMS} FROM job_counts
    WHERE minute >= ? AND minute < ? {{}} GROUP BY 1 ORDER BY 1
"""  # noqa: S608 - names of columns


def load_history(session: Session, vo: str | None, first: int, end: int, step: int) -> list[tuple[int, JobCounts]]:
    """Return the counts of the minutes from `first` to before `end`, for each `step` minutes that have some.

    Each has the minute with which it begins. None = of all VOs.
    """
    of_vo = () if vo is None else (vo,)
    rows = sql.rows(session, _HISTORY.format("AND vo = ?" if of_vo else ""), step, first, end, *of_vo)
    return [
        (
            int(part) * step,
            JobCounts(
                float(waiting) / minutes, float(running) / minutes, int(done), int(failed), int(removed), minutes
            ),
        )
        for part, minutes, waiting, running, done, failed, removed in rows
    ]
