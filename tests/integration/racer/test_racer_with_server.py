"""The racer's command against a real server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pilotage.job_description import JobDescription
from pilotage.resources.tree import QueueId
from pilotage.v1.jobs_pb2 import JOB_STATE_RUNNING, JobReport
from pilotage.v1.matcher_service_pb2 import NodeState, ReportStateRequest, RequestJobsRequest, SlotOffer, SlotState
from pilotage.v1.values_pb2 import Amounts
from pilotage.values.leadership import Leadership
from pilotage_agents.main import run
from pilotage_agents.racer.racer import ServerRaceLink
from pilotage_client.api import Client
from pilotage_server.core.identity import Role
from support.server import RunningServer, request_id
from support.wire_grid import WireGrid

TREE = (
    '{"sites": {"SITE": {"ces": {"ce1": {"queues": {"long": {}}}}}, "OTHER": {"ces": {"ce1": {"queues": {"q": {}}}}}}}'
)
URGENT = JobDescription("/bin/true", attributes={"MayBeRepeated": True, "Urgent": True})


@pytest.fixture
def grid(server: RunningServer) -> Iterator[WireGrid]:
    grid = WireGrid(server)
    grid.put_tree(TREE)
    yield grid
    grid.close()


@pytest.fixture
def client(server: RunningServer, grid: WireGrid) -> Iterator[Client]:
    with Client(server.address, server.token(vo=grid.vo)) as client:
        yield client


@pytest.fixture
def config(server: RunningServer, tmp_path: Path) -> Path:
    (tmp_path / "agent.token").write_text(server.token(Role.RACER, owner="agent:test"))
    path = tmp_path / "agents.toml"
    path.write_text(f'server = "{server.address}"\ntoken_file = "agent.token"\n[racer]\nurgent_after_s = 0\n')
    return path


@pytest.fixture
def running_job(grid: WireGrid) -> int:
    """Return an urgent job that runs at SITE."""
    (job_id,) = grid.submit(URGENT)
    pilot = grid.start_pilot()
    assert [match.job_id for match in pilot.request_jobs().matches] == [job_id]
    pilot.report(job_id)
    return job_id


def test_dry_run_prints_race_and_cycles_start_it_once(
    client: Client, running_job: int, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["racer", "--dry-run", "--config", str(config)]) == 0
    assert capsys.readouterr().out == f"job {running_job}: a copy: it is urgent\n"
    assert list(client.races()) == []
    for _ in range(2):
        assert run(["racer", "--once", "--config", str(config)]) == 0
    (race,) = client.races()
    (copy,) = race.copies
    assert (race.original.id, race.reason, copy.reason) == (
        running_job,
        "it is urgent",
        f"copy of job {running_job}: it is urgent",
    )
    assert [job.id for job in client.list_jobs()] == [running_job]
    assert [job.id for job in client.list_jobs(copies=True)] == [running_job, copy.id]
    assert list(client.races(open_only=True)) == [race]
    assert list(client.races([copy.id])) == []


async def test_stragglers_of_a_large_set_are_read_in_turn(server: RunningServer, grid: WireGrid) -> None:
    ids = await asyncio.to_thread(run_all, grid, replace(URGENT, count=450))
    token = server.token(Role.RACER, owner="agent:test")
    async with server.async_channel(token) as channel:
        link = ServerRaceLink(channel, Leadership("racer", "me"), free_slots_wanted=False)
        (first,), _ = await link.stragglers({})
        (second,), _ = await link.stragglers({first.id: first.next_after_job})
    assert [runner.job_id for runner in first.runners] == ids[:400]
    assert [runner.job_id for runner in second.runners] == ids[:200] + ids[400:]
    assert (first.next_after_job, second.next_after_job) == (ids[399], 0)


def run_all(grid: WireGrid, description: JobDescription) -> list[int]:
    """Submit jobs and run all of them in one pilot; return their ids."""
    ids = grid.submit(description)
    pilot = grid.start_pilot()
    amounts = Amounts(cpus=1, memory_mib=4000, disk_mib=4000)
    slots = [SlotOffer(name=f"slot{number}", free=amounts) for number in range(len(ids))]
    pilot.matcher.RequestJobs(RequestJobsRequest(request_id=request_id(), slots=slots))
    reports = [JobReport(job_id=job_id, attempt=1, state=JOB_STATE_RUNNING) for job_id in ids]
    answer = pilot.matcher.ReportState(ReportStateRequest(request_id=request_id(), reports=reports))
    assert all(result.accepted for result in answer.results)
    return ids


@pytest.mark.parametrize(
    ("free", "output"),
    [(0, "no copy: it is urgent, but no slot for a copy is free on another site"), (1, "a copy: it is urgent")],
)
def test_race_copy_may_need_a_free_slot_at_another_site(
    grid: WireGrid, running_job: int, config: Path, capsys: pytest.CaptureFixture[str], free: int, output: str
) -> None:
    config.write_text(config.read_text() + "needs_free_slot = true\n")
    amounts, free_amounts = (
        Amounts(cpus=1, memory_mib=4000, disk_mib=4000),
        Amounts(cpus=free, memory_mib=4000, disk_mib=4000),
    )
    slot = SlotState(name="s1", state="Unclaimed", activity="Idle", amounts=amounts, free=free_amounts)
    other_queue = QueueId("OTHER", "ce1", "q")
    grid.start_pilot(other_queue).heartbeat(node=NodeState(name="n1", amounts=amounts, slots=[slot]))
    assert run(["racer", "--dry-run", "--config", str(config)]) == 0
    assert capsys.readouterr().out == f"job {running_job}: {output}\n"


def test_invalid_settings_are_named_with_their_keys(config: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config.write_text(config.read_text() + "part_done = 90\nfoo = 1\n")
    assert run(["racer", "--once", "--config", str(config)]) == 2
    output = capsys.readouterr().err
    assert "racer.part_done: input should be less than or equal to 1" in output
    assert "racer.foo" in output
