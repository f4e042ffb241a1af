"""A site director and a server with a running limit: no pilots are sent for jobs that the limit holds back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.v1 import job_service_pb2, matcher_service_pb2, values_pb2
from pilotage_agents.main import run
from pilotage_server.core.identity import AGENT_NAMES
from support.leadership import LONG_LEADERSHIP
from support.server import request_id, running_server
from support.wire_grid import QUEUE, WireGrid, a_job

QUEUES = {name: {"Memory": 4000} for name in ("long", "short")}
TREE = json.dumps({"sites": {"SITE": {"ces": {"ce1": {"CEType": "local", "CPUs": 1, "queues": QUEUES}}}}})
LIMIT = "at most 3 running jobs with owner alice at SITE"


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[WireGrid]:
    limit = {"site": "SITE", "attribute": "owner", "value": "alice", "at_most": 3}
    with running_server(tmp_path / "server-data", running_limits=[limit]) as server:
        grid = WireGrid(server)
        grid.put_tree(TREE)
        yield grid
        grid.close()


@pytest.fixture
def config(grid: WireGrid, tmp_path: Path) -> Path:
    (tmp_path / "agent.token").write_text(grid.server.token(*AGENT_NAMES, owner="agent:test"))
    path = tmp_path / "agents.toml"
    path.write_text(f"""
server = "{grid.server.address}"
token_file = "agent.token"
{LONG_LEADERSHIP}
[site_director]
folder = "director"
pilot_command = ["sh", "-c", "exec sleep 1000"]
[site_director.batch_systems.local]
type = "local"
""")
    return path


def slots(count: int) -> list[matcher_service_pb2.SlotOffer]:
    free = values_pb2.Amounts(cpus=1, memory_mib=4000, disk_mib=10_000)
    return [matcher_service_pb2.SlotOffer(name=f"slot{number}", free=free) for number in range(count)]


def test_jobs_beyond_a_running_limit_get_no_pilots(
    grid: WireGrid, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = grid.submit(*[a_job()] * 10)
    for _ in range(3):
        assert run(["site-director", "--once", "--config", str(config)]) == 0
    assert len(grid.list_pilots()) == 3

    pilot = grid.start_pilot(QUEUE)
    request = matcher_service_pb2.RequestJobsRequest(request_id=request_id(), slots=slots(5))
    assert [match.job_id for match in pilot.matcher.RequestJobs(request).matches] == ids[:3]
    assert run(["site-director", "--once", "--config", str(config)]) == 0
    assert len(grid.list_pilots()) == 3 + 1
    capsys.readouterr()
    assert run(["site-director", "--dry-run", "--config", str(config)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"SITE/ce1/{queue}: 0 pilots (no pilot for jobs beyond a limit: {LIMIT})" for queue in ("long", "short")
    ]
    why = grid.jobs.ExplainJob(job_service_pb2.ExplainJobRequest(job_id=ids[-1]))
    assert LIMIT in str(why)


def test_ended_jobs_below_a_running_limit_get_pilots(grid: WireGrid, config: Path) -> None:
    grid.submit(*[a_job()] * 3)
    pilot = grid.start_pilot(QUEUE)
    request = matcher_service_pb2.RequestJobsRequest(request_id=request_id(), slots=slots(3))
    running = [match.job_id for match in pilot.matcher.RequestJobs(request).matches]
    grid.submit(*[a_job()] * 5)
    for job_id in running[:2]:
        pilot.finish(job_id)
    assert run(["site-director", "--once", "--config", str(config)]) == 0
    assert len(grid.list_pilots()) == 1 + 2
