"""The reference page of metrics, made from their table; `make metric-reference` writes it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from pilotage.metrics.table import AGENT_METRICS, COMMON_METRICS, SERVER_METRICS, MetricDefinition

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"

_HEAD = """# Metrics

`make metric-reference` writes this page from the table of metrics. [Monitoring](../how-to/monitoring.md) says how to
scrape them, and what to watch.

Counters begin at 0 with each start of a process. Times are in seconds and sizes in bytes. No label names an owner, a
job or a pilot. Metrics "in the whole database" are the same on all servers of one database, so take their maximum and
not their sum over servers.
"""


def metric_reference() -> str:
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
    rows = [f"| {' | '.join(_cells(each))} |" for each in metrics]
    return [f"## {title}", "", "| metric | kind | unit | labels | meaning |", "|---|---|---|---|---|", *rows, ""]


def _cells(metric: MetricDefinition) -> tuple[str, ...]:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"`{metric.name}`", metric.kind, metric.unit or "-", labels or "-", metric.help


if __name__ == "__main__":
    PAGE.write_text(metric_reference())
