"""An upgrade with running jobs: agents and pilots of the previous release work with the new server."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.metadata import version
from pathlib import Path

from pilotage.job_description import JobDescription
from pilotage_client.api import Client
from pilotage_server.core.identity import Role
from support.commands import PROGRAMS
from support.payload_paths import payload_lines
from support.processes import until
from support.server import RunningServer

TREE = {"sites": {"Here": {"CEType": "local", "ces": {"ce": {"queues": {"q": {"CPUs": 1, "Memory": 500}}}}}}}


def agents_config(folder: Path, server: RunningServer) -> Path:
    (folder / "agent.token").write_text(server.token(Role.DIRECTOR, owner="agent:test"))
    config = folder / "agents.toml"
    config.write_text(f"""
server = "{server.address}"
token_file = "agent.token"
turn_s = 5
[site_director]
folder = "director"
interval_s = 0.3
urgent_interval_s = 0.3
pilot_command = {json.dumps([sys.executable, "-m", "pilotage_pilot.main"])}
[site_director.pilot]
{payload_lines(folder)}
cgroups = false
heartbeat_s = 1
max_idle_s = 1
grace_s = 1
[site_director.batch_systems.local]
type = "local"
""")
    return config


@contextmanager
def a_director(config: Path, **environment: str) -> Iterator[None]:
    """Run a site director until the end of the block; its pilots are of its release."""
    command = [str(PROGRAMS / "pilotage-agents"), "site-director", "--config", str(config)]
    with (config.parent / "director.log").open("ab") as log:
        director = subprocess.Popen(command, env=os.environ | environment, stderr=log)
    try:
        yield
    finally:
        director.terminate()
        assert director.wait(60) == 0


def releases_of_pilots(server: RunningServer) -> set[str]:
    with closing(sqlite3.connect(server.data / "pilotage.db")) as database:
        return {release for (release,) in database.execute("SELECT release FROM pilots")}


async def test_old_agents_and_pilots_work_through_the_upgrade(tmp_path: Path, previous_release: Path) -> None:
    old_program = {"PYTHONPATH": str(previous_release)}
    gate = tmp_path / "gate"
    waiting = JobDescription("/bin/sh", f"-c 'while ! [ -e {gate} ]; do sleep 0.1; done; echo through'", count=2)
    short = JobDescription("/bin/true")
    server = RunningServer(tmp_path / "server", heartbeat_s=1)
    old_server = RunningServer(server.data, heartbeat_s=1, environment=old_program)
    try:
        server.address = old_server.start().address
        user = Client(server.address, server.token(Role.USER, Role.OPERATOR))
        user.put_tree(json.dumps(TREE), "json")
        config = agents_config(tmp_path, server)
        with a_director(config, **old_program):
            running = user.submit([waiting]).job_ids
            await until(lambda: {job.state for job in user.jobs(running)} == {"RUNNING"})
            check = server.command("migrate", "--check")
            assert check.returncode == 3, check.stderr
            assert "the database has schema 0001" in check.stdout
            assert "pending: 0002" in check.stdout
            assert old_server.stop() == 0

            server.start()
            os.close(os.open(gate, os.O_CREAT))
            await until(lambda: all(job.is_final for job in user.jobs(running)))
            assert {(job.state, job.attempt) for job in user.jobs(running)} == {("DONE", 1)}
            for job_id in running:
                (file,) = [each for each in user.output_files(job_id) if each.name == "stdout"]
                assert user.read_output(job_id, file) == b"through\n"
            old_pilots = {pilot.stamp for pilot in user.pilots(ended=True)}
            await until(lambda: not user.pilots())
            (new_job,) = user.submit([short]).job_ids  # takes another pilot of the old release
            await until(lambda: user.jobs([new_job])[0].state == "DONE")
            assert {pilot.stamp for pilot in user.pilots(ended=True)} > old_pilots
        with a_director(config):
            await until(lambda: not user.pilots())
            (last,) = user.submit([short]).job_ids
            await until(lambda: user.jobs([last])[0].state == "DONE")
            await until(lambda: not user.pilots())
        user.close()
        assert releases_of_pilots(server) == {"", version("pilotage")}  # the previous release does not say its own
    finally:
        old_server.kill()
        server.kill()
