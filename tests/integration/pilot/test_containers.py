"""A submit file with an image, from its submission to its output: real server, client, pilots and podman."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.v1 import jobs_pb2
from pilotage_server.core.identity import Role
from support.commands import Command, environment_of
from support.podman import OPTIONS, Images, a_registry
from support.process_grid import PILOT, ProcessGrid, a_process_grid
from support.processes import until

pytestmark = pytest.mark.process

SUBMIT_FILE = """
universe = docker
docker_image = {image}
executable = sh
arguments = "-c 'cat /etc/os-release; exit $CODE'"
environment = "CODE=4"
output = out
queue
"""


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[ProcessGrid]:
    with a_process_grid(tmp_path) as grid:
        yield grid


async def test_docker_job_waits_for_a_pilot_with_containers_and_runs_in_its_image(
    grid: ProcessGrid, tmp_path: Path, images: Images
) -> None:
    token = grid.server.token(Role.USER, Role.OPERATOR)
    pilotage = Command(environment_of(tmp_path, PILOTAGE_SERVER=grid.server.address, PILOTAGE_TOKEN=token))
    with a_registry(images) as registry:
        conf = tmp_path / "registries.conf"
        conf.write_text(f'[[registry]]\nlocation = "{registry.address}"\ninsecure = true\n')
        file = tmp_path / "job.sub"
        file.write_text(SUBMIT_FILE.format(image=f"{registry.address}/tiny:1"))
        job = int(pilotage("submit", file).split()[0])
        async with grid.pilot():
            await until(lambda: "runs no container images" in pilotage("why", job))
        environment = {
            **os.environ,
            "PILOTAGE_PILOT_CONTAINER_RUNTIMES": '["podman"]',
            "CONTAINERS_REGISTRIES_CONF": str(conf),
        }
        options: dict[str, Any] = {"container_options": {kind.value: words for kind, words in OPTIONS.items()}}
        async with grid.pilot(PILOT, environment, **options):
            done = await grid.done(job)
            assert (done.state, done.exit_code) == (jobs_pb2.JOB_STATE_FAILED, 4)
            assert grid.output(job)["out"] == b"NAME=tiny\n"
            none = grid.submit(image=f"{registry.address}/none:1")
            ended = await grid.done(none)
            assert ended.state == jobs_pb2.JOB_STATE_FAILED
            assert "cannot be pulled" in ended.reason
            elsewhere = grid.submit(image=f"{registry.address}/503/x:1")
            declined = "It waits again after attempt 1: declined: its image"
            await until(lambda: declined in pilotage("why", elsewhere))
