"""What an update hook prints, from the router's command by way of a real server to the command `pilotage ad`."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.v1.resource_service_pb2 import PutTreeRequest
from pilotage.v1.resource_service_pb2_grpc import ResourceServiceStub
from pilotage_agents.main import run
from pilotage_server.core.identity import Role
from support.commands import Command, environment_of
from support.process_grid import RealJobs
from support.server import RunningServer, request_id, server

__all__ = ["server"]

TREE = '[sites.Lyon.ces.ce1]\nCEType = "local"\nqueues = { long = { CPUs = 4 } }\n'
CONFIG = """
server = "{server}"
token_file = "agent.token"
[job_router]
folder = "router"
table = "routes.ads"
interval_s = 0.1
default_hooks = "STAGING"
[job_router.hooks.STAGING]
update = ["/bin/sh", "-c", "cat > /dev/null; echo Progress = 70; echo Owner = 1; echo Next = Progress + MY.X"]
[job_router.targets.grid_resources]
batch = {{ queue = "Lyon/ce1/long" }}
[job_router.batch_systems.here]
type = "local"
"""


@pytest.fixture
def config(server: RunningServer, tmp_path: Path) -> Path:
    with server.channel(server.token(Role.OPERATOR)) as channel:
        ResourceServiceStub(channel).PutTree(PutTreeRequest(request_id=request_id(), text=TREE, format="toml"))
    (tmp_path / "agent.token").write_text(server.token(Role.AGENT, owner="agent:router"))
    (tmp_path / "routes.ads").write_text('[ name = "Lyon"; GridResource = "batch"; Requirements = true; ]')
    path = tmp_path / "agents.toml"
    path.write_text(CONFIG.format(server=server.address))
    return path


def test_what_an_update_hook_prints_is_shown_with_the_ad_of_the_job_also_when_it_has_ended(
    server: RunningServer, config: Path, tmp_path: Path
) -> None:
    payload = tmp_path / "payload"
    payload.write_text(f"#!/bin/sh\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.05; done\n")
    payload.chmod(0o755)
    jobs = RealJobs(server)
    (job,) = jobs.submit(executable=str(payload))
    while "Progress" not in jobs.ad(job):
        assert run(["job-router", "--once", "--config", str(config)]) == 0
    pilotage = Command(environment_of(tmp_path, PILOTAGE_SERVER=server.address, PILOTAGE_TOKEN=server.token()))
    lines = pilotage("ad", job).splitlines()
    assert {"Progress = 70", 'RouteName = "Lyon"', 'Owner = "alice"'} <= set(lines)
    assert not [line for line in lines if line.startswith("Next")], "an expression is not shown"
    (tmp_path / "go").touch()
    while jobs.state(job) != "DONE":
        assert run(["job-router", "--once", "--config", str(config)]) == 0
    (ad,) = pilotage.objects("ad", job)
    assert (ad["Progress"], ad["ExitCode"], "RouteName" in ad) == (70, 0, False)
