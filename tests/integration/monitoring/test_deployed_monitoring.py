"""The alerts and the dashboard that operators deploy: valid for Prometheus, and of metrics that exist."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from pilotage.metrics.table import METRICS, MetricKind
from support.metrics import promtool

FOLDER = Path(__file__).parents[3] / "deploy" / "monitoring"
ALERTS = FOLDER / "alerts.yml"
DASHBOARD = FOLDER / "grafana-dashboard.json"

_METRIC = re.compile(r"\b(?:pilotage|process)_\w+")
_VARIABLES = {"$__rate_interval": "5m", "$instance": ".*"}


def alerts() -> dict[str, str]:
    """Return the expressions of all alerts by name."""
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    return {rule["alert"]: rule["expr"] for rule in group["rules"]}


def panels() -> list[dict[str, Any]]:
    return [panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"]


def dashboard_expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def series() -> Iterator[str]:
    """Yield the names of all time series that the metrics of the table have."""
    for metric in METRICS:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind is MetricKind.HISTOGRAM else ("",)
        yield from (f"{metric.name}{suffix}" for suffix in suffixes)


@pytest.mark.parametrize("expressions", [list(alerts().values()), dashboard_expressions()], ids=["alerts", "dashboard"])
def test_expressions_name_only_metrics_of_the_table(expressions: list[str]) -> None:
    named = {name for expression in expressions for name in _METRIC.findall(expression)}
    assert named <= set(series())


def test_dashboard_shows_every_metric_of_pilotage() -> None:
    shown = DASHBOARD.read_text()
    assert [metric.name for metric in METRICS if metric.name.startswith("pilotage_") and metric.name not in shown] == []


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    cells = [
        (x, y)
        for place in (panel["gridPos"] for panel in json.loads(DASHBOARD.read_text())["panels"])
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    ]
    assert len(set(cells)) == len(cells)
    assert all(x < 24 for x, _ in cells)


@pytest.mark.process
def test_prometheus_takes_the_rules() -> None:
    assert f"{len(alerts())} rules found" in promtool("check", "rules", ALERTS)


@pytest.mark.process
def test_prometheus_takes_the_expressions_of_the_dashboard(tmp_path: Path) -> None:
    rules = []
    for number, expression in enumerate(dashboard_expressions()):
        for variable, value in _VARIABLES.items():
            expression = expression.replace(variable, value)
        assert "$" not in expression
        rules.append({"record": f"panel:{number}", "expr": expression})
    path = tmp_path / "dashboard.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "dashboard", "rules": rules}]}))

    assert f"{len(rules)} rules found" in promtool("check", "rules", path)


_WORKS = "1+1x120"
"""A counter that grows."""

_STANDS = "5x120"
"""A value that stays."""


def healthy() -> dict[str, str]:
    """Return the series of an installation in which everything works, though jobs wait."""
    place = 'site="S", ce="C", queue="Q"'
    return {
        'pilotage_ready{instance="s1"}': "1x120",
        'pilotage_leadership_end_timestamp_seconds{agent="site director"}': "90+60x120",
        'pilotage_agent_errors_total{agent="site director"}': "0x120",
        'pilotage_jobs_waiting{vo="cms", instance="s1"}': _STANDS,
        'pilotage_jobs_running{vo="cms", instance="s1"}': _STANDS,
        f"pilotage_slots{{{place}}}": "9x120",
        'pilotage_calls_total{method="MatcherService/ReportState", code="OK", instance="s1"}': "1+100x120",
        'pilotage_calls_total{method="JobService/ListJobs", code="OK", instance="s1"}': "1+100x120",
        'pilotage_calls_total{method="JobService/SubmitJobs", code="UNAVAILABLE", instance="s1"}': "0+4x120",
        f"pilotage_director_pilots_submitted_total{{{place}}}": _WORKS,
        f"pilotage_director_pilots_failed_total{{{place}}}": "0x120",
        'pilotage_database_writes_total{result="failed", instance="s1"}': "0x120",
        'pilotage_disk_free_bytes{folder="/data", instance="s1"}': "5e9x120",
        'pilotage_disk_reserve_bytes{folder="/data", instance="s1"}': "1e9x120",
        'pilotage_feed_position{instance="s1"}': _WORKS,
        'pilotage_task_failures_total{task="retention", instance="s1"}': "0x120",
    }


TROUBLES = {
    "PilotageNotReady": {"pilotage_ready": "0x120"},
    "PilotageAgentWithoutLeader": {"pilotage_leadership_end": "90x120"},
    "PilotageAgentFails": {"pilotage_agent_errors": _WORKS},
    "PilotageNoPilotCalls": {'pilotage_calls_total{method="Matcher': "100x120"},
    "PilotagePilotsNotSubmitted": {
        "pilotage_director_pilots_submitted": "0x120",
        "pilotage_director_pilots_failed": _WORKS,
    },
    "PilotageDatabaseErrors": {"pilotage_database_writes": _WORKS},
    "PilotageDiskLow": {"pilotage_disk_free": "1.5e9x120"},
    "PilotageCallErrors": {'pilotage_calls_total{method="JobService/Submit': "0+20x120"},
    "PilotageFeedStandsStill": {"pilotage_feed_position": _STANDS},
    "PilotageTaskFails": {"pilotage_task_failures": _WORKS},
}
"""The series that differ, by their begins, in an installation with the trouble that an alert names."""


def broken(trouble: dict[str, str]) -> dict[str, str]:
    found = healthy()
    for begin, values in trouble.items():
        (name,) = [name for name in found if name.startswith(begin)]
        found[name] = values
    return found


@pytest.mark.process
def test_each_alert_fires_in_its_trouble_only(tmp_path: Path) -> None:
    """Every alert fires after an hour and a half of its trouble, and no other one does."""
    assert TROUBLES.keys() == alerts().keys()
    cases = [(healthy(), None), *((broken(trouble), name) for name, trouble in TROUBLES.items())]
    tests = [
        {
            "interval": "1m",
            "input_series": [{"series": name, "values": values} for name, values in found.items()],
            "promql_expr_test": [
                {
                    "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
                    "eval_time": "90m",
                    "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1}] if name else [],
                }
            ],
        }
        for found, name in cases
    ]
    path = tmp_path / "tests.yml"
    path.write_text(yaml.safe_dump({"rule_files": [str(ALERTS)], "evaluation_interval": "1m", "tests": tests}))

    promtool("test", "rules", path)
