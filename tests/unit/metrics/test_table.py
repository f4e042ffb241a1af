"""The table of metrics follows the conventions of Prometheus."""

from __future__ import annotations

import pytest

from pilotage.metrics.table import METRICS, MetricDefinition, MetricKind

NEVER = {"owner", "job", "job_id", "stamp", "pilot", "group", "node", "slot"}
"""Labels with so many values that they would overload a Prometheus."""


def test_each_name_is_declared_once() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_metric_follows_the_conventions(metric: MetricDefinition) -> None:
    assert metric.name.startswith(("pilotage_", "process_"))
    assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
    assert metric.name.removesuffix("_total").endswith(f"_{metric.unit}" if metric.unit else "")
    assert metric.unit in ("", "seconds", "bytes")
    assert metric.help.endswith(".")
    assert not NEVER & set(metric.labels)
    assert bool(metric.bounds) == (metric.kind is MetricKind.HISTOGRAM)
    assert list(metric.bounds) == sorted(set(metric.bounds))
