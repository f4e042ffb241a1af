"""Scrapes of the metrics of running processes, compared with the table of all metrics."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from http.client import HTTPConnection
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from pilotage.metrics.table import METRICS, MetricDefinition, MetricKind
from support.debian import find_or_install
from support.server import RunningServer

TIMEOUT_S = 30


def get(address: str, path: str) -> tuple[int, str]:
    """Return status and body of an answer of the endpoint at HOST:PORT."""
    connection = HTTPConnection(address, timeout=TIMEOUT_S)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def metrics_address(server: RunningServer) -> str:
    """Return where a server serves its metrics, from its ready file."""
    address: str = json.loads((server.data / "ready.json").read_text())["metrics"]
    return address


class Scrape:
    """The metrics of a process at one time."""

    def __init__(self, address: str) -> None:
        status, self.text = get(address, "/metrics")
        assert status == 200, self.text
        self.families = list(text_string_to_metric_families(self.text))

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of a sample with exactly these labels; None = there is none."""
        found = [
            each.value
            for family in self.families
            for each in family.samples
            if each.name == name and each.labels == labels
        ]
        assert len(found) <= 1, f"{name} {labels} is exported twice"
        return found[0] if found else None

    def labels_of(self, name: str) -> list[Mapping[str, str]]:
        """Return the labels of all samples with this name."""
        return [each.labels for family in self.families for each in family.samples if each.name == name]

    def faults(self) -> list[str]:
        """Return what differs from the table of metrics: unknown names, other kinds, texts or labels."""
        faults = []
        for family in self.families:
            name = f"{family.name}_total" if family.type == "counter" else family.name
            known = BY_NAME.get(name)
            if known is None:
                faults.append(f"{name} is not in the table")
                continue
            if (family.type, family.documentation) != (known.kind.value, known.help):
                faults.append(f"{name} has another kind or help than in the table")
            expected = set(known.labels)
            for each in family.samples:
                own = each.labels.keys() - ({"le"} if known.kind is MetricKind.HISTOGRAM else set())
                if own != expected:
                    faults.append(f"{each.name} has the labels {sorted(own)}, not {sorted(expected)}")
        return faults


BY_NAME: Mapping[str, MetricDefinition] = {metric.name: metric for metric in METRICS}


def promtool(*arguments: str | Path, text: str = "") -> str:
    """Run Prometheus's own checks, which must pass without a remark; returns what it prints."""
    program = find_or_install(lambda: shutil.which("promtool"), "prometheus")
    done = subprocess.run([program, *arguments], input=text, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
