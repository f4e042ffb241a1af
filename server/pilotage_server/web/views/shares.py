"""The shares of groups and accounts, and what jobs have used over time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from pilotage.v1 import share_service_pb2
from pilotage_server.web.charts import ChartSeries, line_chart
from pilotage_server.web.pages import PageView, Shown, Visit

PERIODS = {"7d": 7, "30d": 30, "90d": 90, "365d": 365}
"""Days of the chart by their names in the address."""

MOST_GROUPS = MOST_ACCOUNTS = MOST_USERS = 100
_DAY, _HOUR_S = timedelta(days=1), 3600.0


async def collect_shares(visit: Visit) -> Shown:
    """Return the shares now, and the use of the period in the address by days and by owners."""
    shares = await visit.calls("ShareService/ListShares", share_service_pb2.ListSharesRequest())
    period = visit.choice("period", PERIODS) or "30d"
    today = visit.clock().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    days = [today - _DAY * age for age in range(PERIODS[period] - 1, -1, -1)]
    since = f"{days[0]:%Y-%m-%d}"
    by_day = share_service_pb2.ListUsageRequest(since=since, by=[share_service_pb2.USAGE_KEY_DAY])
    keys = ("USAGE_KEY_VO", "USAGE_KEY_GROUP", "USAGE_KEY_OWNER")
    by_owner = share_service_pb2.ListUsageRequest(since=since, by=map(share_service_pb2.UsageKey.Value, keys))
    sums = (await visit.calls("ShareService/ListUsage", by_day)).sums
    users = sorted((await visit.calls("ShareService/ListUsage", by_owner)).sums, key=lambda each: -_core_s(each))
    return {
        "shares": shares,
        "groups": shares.groups[:MOST_GROUPS],
        "accounts": shares.accounts[:MOST_ACCOUNTS],
        "users": users[:MOST_USERS],
        "user_count": len(users),
        "periods": PERIODS,
        "period": period,
        "chart": _chart(days, {each.keys[0]: each for each in sums}),
        "is_used": bool(sums),
    }


def _chart(days: list[datetime], sums: dict[str, Any]) -> Any:
    found = [sums.get(f"{day:%Y-%m-%d}") for day in days]
    lines = {"good": "done_core_s", "bad": "failed_core_s", "wait": "interrupted_core_s"}
    series = [
        ChartSeries(style, [getattr(each, name) / _HOUR_S if each is not None else 0.0 for each in found])
        for style, name in lines.items()
    ]
    return line_chart("Core hours of attempts by the day of their end", days, series, _DAY)


def _core_s(used: Any) -> float:
    core_s: float = used.done_core_s + used.failed_core_s + used.interrupted_core_s
    return core_s


SHARES = PageView(
    "/shares", "Shares", ("ShareService/ListShares", "ShareService/ListUsage"), "shares.html", collect_shares
)
