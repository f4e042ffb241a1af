"""What a running server exports: the values after a job's life, and whether it is ready."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pilotage.errors import NotFoundError
from pilotage.v1 import job_service_pb2, matcher_service_pb2, values_pb2
from support.metrics import Scrape, get, metrics_address, promtool
from support.processes import until
from support.server import RunningServer, running_server
from support.wire_grid import WireGrid, a_job

pytestmark = pytest.mark.process

PLACE = {"site": "SITE", "ce": "ce1", "queue": "long"}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    with running_server(tmp_path / "data", metrics_listen="127.0.0.1:0") as server:
        yield server


@pytest.fixture
def grid(server: RunningServer) -> Iterator[WireGrid]:
    with closing(WireGrid(server)) as grid:
        grid.put_tree()
        yield grid


def scrape(server: RunningServer) -> Scrape:
    return Scrape(metrics_address(server))


async def test_counters_follow_the_life_of_jobs(grid: WireGrid) -> None:
    server = grid.server
    done, removed, waiting = grid.submit(a_job(), a_job(), a_job())
    pilot = grid.start_pilot()
    (match,) = pilot.request_jobs().matches
    pilot.finish(match.job_id)
    assert match.job_id == done
    grid.change(job_service_pb2.JOB_CHANGE_REMOVE, removed)
    assert grid.state_of(waiting) == "WAITING"
    with pytest.raises(NotFoundError):
        grid.state_of(10**9)
    # A call is counted when its end is known on the wire, which may be after the caller has the answer.
    missed = {"method": "JobService/GetJobs", "code": "NOT_FOUND"}
    await until(lambda: scrape(server).value("pilotage_calls_total", **missed) == 1)
    before = scrape(server)

    assert before.value("pilotage_matches_total") == 1
    results = {result: before.value("pilotage_jobs_ended_total", result=result) for result in ("done", "removed")}
    assert results == {"done": 1, "removed": 1}
    requests = {"method": "MatcherService/RequestJobs"}
    assert before.value("pilotage_calls_total", code="OK", **requests) == 1
    assert before.value("pilotage_call_duration_seconds_count", **requests) == 1
    with grid.channel("no token") as channel, pytest.raises(Exception, match="token"):
        type(grid.jobs)(channel).GetJobs(job_service_pb2.GetJobsRequest(job_ids=[done]))
    assert scrape(server).value("pilotage_calls_total", method="JobService/GetJobs", code="UNAUTHENTICATED") == 1
    writes = before.value("pilotage_database_writes_total", result="committed")
    assert writes == before.value("pilotage_database_write_duration_seconds_count")
    assert writes is not None
    assert writes >= 6
    operations = before.value("pilotage_database_commit_operations_sum")
    assert operations is not None
    assert operations >= 6
    assert before.value("pilotage_tree_version") == 1


async def test_gauges_count_what_is_in_the_database(grid: WireGrid) -> None:
    server = grid.server
    grid.submit(a_job(), a_job(), a_job())
    pilot = grid.start_pilot()
    assert pilot.request_jobs().matches
    slots = [matcher_service_pb2.SlotState(name=f"slot{number}") for number in (1, 2)]
    amounts = values_pb2.Amounts(cpus=2)
    pilot.heartbeat(node=matcher_service_pb2.NodeState(name="node1", amounts=amounts, slots=slots))

    await until(lambda: scrape(server).value("pilotage_slots", **PLACE) == 2)

    found = scrape(server)
    assert found.value("pilotage_jobs_waiting", vo=grid.vo) == 2
    assert found.value("pilotage_jobs_running", vo=grid.vo) == 1
    assert found.value("pilotage_pilots", state="running", **PLACE) == 1
    assert found.value("pilotage_feed_position") == 4
    (disk,) = found.labels_of("pilotage_disk_free_bytes")
    assert disk == {"folder": str(server.data)}


async def test_scrape_is_as_declared_and_as_prometheus_wants_it(grid: WireGrid) -> None:
    assert grid.start_pilot().request_jobs().matches == []
    await until(lambda: bool(scrape(grid.server).labels_of("pilotage_pilots")))

    found = scrape(grid.server)

    assert found.faults() == []
    promtool("check", "metrics", text=found.text)
    assert set(found.labels_of("pilotage_task_failures_total")[0]) == {"task"}
    assert found.value("pilotage_task_failures_total", task="lease expiry") == 0


async def test_server_that_waits_for_its_database_lives_and_is_not_ready(tmp_path: Path) -> None:
    database = "postgresql+psycopg://somebody@127.0.0.1:1/jobs"
    server = RunningServer(tmp_path / "data", database=database, metrics_listen="127.0.0.1:0")
    server.launch()
    try:
        await until(lambda: server.data.joinpath("server.log").exists() and "metrics are served" in server.log())
        (line,) = [line for line in server.log().splitlines() if "metrics are served" in line]
        address = line.partition("http://")[2].partition("/")[0]
        assert get(address, "/healthz") == (200, "ok\n")
        assert get(address, "/readyz") == (503, "the server starts\n")
        assert Scrape(address).value("pilotage_ready") == 0
    finally:
        server.kill()


def test_second_server_on_a_host_serves_metrics_elsewhere_or_not_at_all(server: RunningServer, tmp_path: Path) -> None:
    with running_server(tmp_path / "silent") as silent:
        assert "metrics" not in (silent.data / "ready.json").read_text()
    with running_server(tmp_path / "other", metrics_listen="127.0.0.1:0") as other:
        assert metrics_address(other) != metrics_address(server)
    clash = RunningServer(tmp_path / "clash", metrics_listen=metrics_address(server))
    line = clash.start_fails()
    assert line.startswith(f"pilotage-server: cannot listen at {metrics_address(server)} (metrics_listen): Address")
