"""Commands that wait, while the server they wait for is restarted."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest

from pilotage.job_description import JobDescription
from pilotage_client.api import Client
from support.commands import Command, environment_of
from support.server import RunningServer


@pytest.mark.parametrize("end", [RunningServer.stop, RunningServer.kill])
def test_wait_and_logs_ride_over_a_restart_of_the_server(
    server: RunningServer, tmp_path: Path, end: Callable[[RunningServer], object]
) -> None:
    with Client(server.address, server.token()) as client:
        (job_id,) = client.submit([JobDescription("/bin/true")]).job_ids
    pilotage = Command(environment_of(tmp_path, PILOTAGE_SERVER=server.address, PILOTAGE_TOKEN=server.token()))
    with ExitStack() as stack:
        logs = stack.enter_context(pilotage.start("logs", job_id, "--follow", "--json"))
        wait = stack.enter_context(pilotage.start("wait", job_id, "--timeout", 100, "--json"))
        for command in (logs, wait):
            stack.callback(command.kill)
        assert logs.stdout
        assert wait.stderr
        assert logs.stderr
        lines = [logs.stdout.readline()]

        end(server)
        for stream in (wait.stderr, logs.stderr):
            assert "trying again for up to" in stream.readline()
        server.start()

        with Client(server.address, server.token()) as client:
            client.hold([job_id])
            client.release([job_id])
            client.remove([job_id])
        printed, more = wait.communicate(timeout=60)
        assert (wait.returncode, json.loads(printed)["state"], more) == (1, "REMOVED", "")
        rest, more = logs.communicate(timeout=60)
        assert (logs.returncode, more) == (0, "")
        lines += rest.splitlines()
    with Client(server.address, server.token()) as client:
        assert [json.loads(line)["position"] for line in lines] == [event.position for event in client.events(job_id)]
    assert json.loads(lines[-1])["to"] == "REMOVED"


def test_the_time_that_wait_has_bounds_its_patience(server: RunningServer, tmp_path: Path) -> None:
    pilotage = Command(environment_of(tmp_path, PILOTAGE_SERVER=server.address, PILOTAGE_TOKEN=server.token()))
    server.stop()
    done = pilotage.run("wait", 1, "--timeout", 10)
    assert (done.returncode, done.stdout) == (3, "")
    assert len(done.stderr.splitlines()) == 2


def test_logs_follow_a_job_that_failed_and_was_rescheduled_to_its_next_end(
    server: RunningServer, tmp_path: Path
) -> None:
    with Client(server.address, server.token()) as client:
        (job_id,) = client.submit([JobDescription("/bin/true")]).job_ids
        client.remove([job_id])
        client.reschedule([job_id])
        pilotage = Command(environment_of(tmp_path, PILOTAGE_SERVER=server.address, PILOTAGE_TOKEN=server.token()))
        with pilotage.start("logs", job_id, "-f", "--json") as logs:
            assert logs.stdout
            for line in logs.stdout:
                if json.loads(line)["cause"] == "rescheduled":
                    client.remove([job_id], "enough")
            assert json.loads(line)["reason"].endswith("enough")
            assert logs.wait(60) == 0
