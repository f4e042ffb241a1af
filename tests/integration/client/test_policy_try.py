"""`pilotage policy try` on the slots of a running server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.job_description import JobDescription
from pilotage.v1 import matcher_service_pb2, values_pb2
from pilotage_server.core.identity import Role
from support.commands import Command, environment_of
from support.server import RunningServer, running_server
from support.wire_grid import WireGrid

pytestmark = pytest.mark.process

AMOUNTS = values_pb2.Amounts(cpus=1, memory_mib=2000)
POLICY = """
NUM_SLOTS = 2
START = TARGET.Kind =?= "b"
WANT_SUSPEND = SlotID == 2
SUSPEND = LoadAvg > 0.5
PREEMPT = TARGET.Kind =?= "a" && LoadAvg > 0.5
"""


def a_slot(number: int, **fields: object) -> matcher_service_pb2.SlotState:
    ad = f'[SlotID = {number}; DetectedCpus = 2; DetectedMemory = 4000; Start = TARGET.Kind =?= "a"]'
    return matcher_service_pb2.SlotState(name=f"slot{number}", amounts=AMOUNTS, ad=ad, **fields)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Return a server with a node of a busy and a free slot, and two waiting jobs."""
    with running_server(tmp_path_factory.mktemp("policies") / "data") as running:
        grid = WireGrid(running)
        grid.put_tree()
        (busy,) = grid.submit(JobDescription("/bin/true", attributes={"Kind": "a"}))
        pilot = grid.start_pilot()
        pilot.request_jobs()
        grid.submit(*(JobDescription("/bin/true", attributes={"Kind": kind}) for kind in "abb"))
        slots = [
            a_slot(1, state="Claimed", activity="Busy", job_id=busy, load=0.9),
            a_slot(2, state="Unclaimed", activity="Idle", free=AMOUNTS),
        ]
        pilot.heartbeat(node=matcher_service_pb2.NodeState(name="node1", amounts=AMOUNTS, slots=slots))
        yield running
        grid.close()


@pytest.fixture
def pilotage(server: RunningServer, tmp_path: Path) -> Command:
    token = server.token(Role.OPERATOR)
    return Command(environment_of(tmp_path, PILOTAGE_SERVER=server.address, PILOTAGE_TOKEN=token))


def test_policy_is_tried_with_running_and_waiting_jobs(pilotage: Command, tmp_path: Path) -> None:
    (tmp_path / "site.conf").write_text(POLICY)
    first, second = pilotage.json_objects("policy", "try", tmp_path / "site.conf")
    assert (first["slot"], first["job"], first["jobs"], first["starts"], first["starts_now"]) == ("slot1", 1, 3, 2, 1)
    assert (first["values"]["PREEMPT"], first["values"]["WANT_SUSPEND"]) == (True, False)
    assert (second["job"], second["values"]["WANT_SUSPEND"]) == (None, True)
    shown = pilotage("policy", "try", tmp_path / "site.conf", "--slot", "SITE/node1").splitlines()
    assert shown[1].split() == ["slot1@node1", "Claimed", "1", "2", "1", "false", "true", "true", "true", "false"]
    assert shown[-1].startswith("START counts the jobs that the policy would start, of 3 jobs")


def test_policy_is_tried_for_one_job(pilotage: Command, tmp_path: Path) -> None:
    (tmp_path / "site.conf").write_text(POLICY.replace("NUM_SLOTS = 2", "NUM_SLOTS = 1"))
    (tmp_path / "job.ad").write_text('Kind = "b"\n')
    shown = pilotage("policy", "try", tmp_path / "site.conf", "--job", tmp_path / "job.ad")
    assert "of 1 job;" in shown
    assert "node1 has 2 slots, and the policy lays out 1" in shown


def test_policy_that_cannot_be_read_is_an_error(pilotage: Command, tmp_path: Path) -> None:
    (tmp_path / "site.conf").write_text("START = (\n")
    done = pilotage.run("policy", "try", tmp_path / "site.conf")
    assert (done.returncode, done.stdout) == (2, "")
    assert "START" in done.stderr
    assert pilotage.run("policy", "try", tmp_path / "site.conf", "--slot", "nowhere").returncode == 2
