"""The HTTP endpoint of metrics and health checks."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics_families

from pilotage.errors import WorldError
from pilotage.metrics.endpoint import MAX_CONNECTIONS, Exposition, serving
from pilotage.metrics.table import CALL_SECONDS, CALLS, JOBS_WAITING
from pilotage.metrics.values import Observations, Sample
from support.metrics import Scrape, get

LOOPBACK = ("127.0.0.1", 0)


class Process:
    """A process with an endpoint, whose fault a test can set."""

    def __init__(self) -> None:
        self.fault = ""
        self.exposition = Exposition("plain Python", lambda: self.fault)


@pytest.fixture
def process() -> Process:
    return Process()


@pytest.fixture
def address(process: Process) -> Iterator[str]:
    with serving(LOOPBACK, process.exposition) as address:
        yield address


def test_health_checks_answer_whether_the_process_lives_and_is_ready(process: Process, address: str) -> None:
    assert get(address, "/healthz") == (200, "ok\n")
    assert get(address, "/readyz") == (200, "ok\n")
    assert Scrape(address).value("pilotage_ready") == 1

    process.fault = "the disk\nis full"

    assert get(address, "/healthz") == (200, "ok\n")
    assert get(address, "/readyz") == (503, "the disk is full\n")
    assert Scrape(address).value("pilotage_ready") == 0


def test_samples_are_exported_as_declared(process: Process, address: str) -> None:
    times = Observations(CALL_SECONDS.bounds)
    for took_s in (0.001, 0.0011, 3.0, 100.0):
        times.observe(took_s)
    samples = [
        Sample(CALLS, ("A/B", "OK"), 3),
        Sample(CALLS, ("A/B", "CANCELLED"), 1),
        Sample(CALL_SECONDS, ("A/B",), times),
        Sample(JOBS_WAITING, ('a "vo"\\',), 2),
    ]
    process.exposition.sources += [lambda: samples[:2], lambda: samples[2:]]

    scrape = Scrape(address)

    assert scrape.faults() == []
    assert scrape.value("pilotage_calls_total", method="A/B", code="OK") == 3
    assert scrape.value("pilotage_calls_total", method="A/B", code="CANCELLED") == 1
    assert scrape.value("pilotage_jobs_waiting", vo='a "vo"\\') == 2
    buckets = {
        le: scrape.value("pilotage_call_duration_seconds_bucket", method="A/B", le=le)
        for le in ("0.001", "0.0025", "2.5", "10.0", "60.0", "+Inf")
    }
    assert buckets == {"0.001": 1, "0.0025": 2, "2.5": 2, "10.0": 3, "60.0": 3, "+Inf": 4}
    assert scrape.value("pilotage_call_duration_seconds_count", method="A/B") == 4
    assert scrape.value("pilotage_call_duration_seconds_sum", method="A/B") == pytest.approx(103.0021)


def test_prometheus_gets_open_metrics_if_it_accepts_them(process: Process, address: str) -> None:
    process.exposition.sources.append(lambda: [Sample(CALLS, ("A/B", "OK"), 3)])

    answer = urlopen(
        Request(f"http://{address}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    )

    assert answer.headers["Content-Type"].startswith("application/openmetrics-text")
    parsed = open_metrics_families(answer.read().decode())  # type: ignore[no-untyped-call]
    families = {family.name: family for family in parsed}
    (sample,) = families["pilotage_calls"].samples
    assert (sample.name, sample.labels, sample.value) == ("pilotage_calls_total", {"method": "A/B", "code": "OK"}, 3)


def test_unknown_path_is_not_found(address: str) -> None:
    status, text = get(address, "/")
    assert (status, text) == (404, "there are /metrics, /healthz and /readyz\n")


def test_connections_beyond_the_limit_are_closed(address: str) -> None:
    host, port = address.split(":")
    idle = [socket.create_connection((host, int(port))) for _ in range(MAX_CONNECTIONS)]
    with socket.create_connection((host, int(port))) as one_more:
        assert one_more.recv(1) == b""
    for connection in idle:
        connection.close()


def test_address_in_use_is_one_clear_error(process: Process, address: str) -> None:
    host, port = address.split(":")
    with pytest.raises(WorldError, match=rf"cannot listen at {address} \(metrics_listen\): Address already in use"):
        serving((host, int(port)), process.exposition).__enter__()


def test_loopback_of_ipv6_has_brackets(process: Process) -> None:
    with serving(("::1", 0), process.exposition) as address:
        assert address.startswith("[::1]:")
        assert get(address, "/healthz") == (200, "ok\n")


def test_without_an_address_nothing_is_served(process: Process) -> None:
    with serving(None, process.exposition) as address:
        assert address == ""
