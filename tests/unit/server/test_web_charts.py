"""The labels of times at charts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pilotage_server.web.charts import ChartSeries, line_chart

BEGIN = datetime(2026, 1, 1, 9, 58, tzinfo=UTC)


@pytest.mark.parametrize(
    ("count", "minutes", "labels"),
    [
        (1, 1, []),
        (4, 1, ["09:59", "10:00"]),
        (20, 1, ["10:00", "10:05", "10:10", "10:15"]),
        (60, 1, ["10:00", "10:10", "10:20", "10:30", "10:40", "10:50"]),
    ],
)
def test_about_six_times_are_labelled(count: int, minutes: int, labels: list[str]) -> None:
    times = [BEGIN + timedelta(minutes=minutes * each) for each in range(count)]
    chart = line_chart("jobs", times, [ChartSeries("wait", [1.0] * count)], timedelta(minutes=minutes))
    assert [label for _, label in chart.marks] == labels


def test_day_is_labelled_every_four_hours() -> None:
    times = [BEGIN.replace(minute=0) + timedelta(minutes=10 * each) for each in range(144)]
    chart = line_chart("jobs", times, [ChartSeries("wait", [1.0] * 144)], timedelta(minutes=10))
    assert [label for _, label in chart.marks] == ["12:00", "16:00", "20:00", "00:00", "04:00", "08:00"]
