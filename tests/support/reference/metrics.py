"""The page of metrics, made from their table."""

from __future__ import annotations

from collections.abc import Iterable

from pilotage.metrics.table import AGENT_METRICS, COMMON_METRICS, SERVER_METRICS, MetricDefinition
from support.reference.markdown import table

_HEAD = """# Metrics

On this page you find every metric. `make reference` writes it from the table of metrics.
[Monitoring](../how-to/monitoring.md) says how to scrape them, and what to watch.

Counters begin at 0 with each start of a process. Times are in seconds and sizes in bytes. No label names an owner, a
job or a pilot. Metrics "in the whole database" are the same on all servers of one database, so take their maximum and
not their sum over servers.
"""


def page() -> str:
    """Return the text of the page."""
    return "\n".join(
        [
            _HEAD,
            *_section("Servers", SERVER_METRICS),
            *_section("Agents", AGENT_METRICS),
            *_section("Servers and agents", COMMON_METRICS),
        ]
    )


def _section(title: str, metrics: Iterable[MetricDefinition]) -> list[str]:
    return [f"## {title}", "", *table(("metric", "kind", "unit", "labels", "meaning"), map(_cells, metrics))]


def _cells(metric: MetricDefinition) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"`{metric.name}`", metric.kind, metric.unit or "-", labels or "-", metric.help
