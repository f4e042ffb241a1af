"""Pilot processes with a real server: the level of isolation that they report decides which jobs they get."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pilotage.v1 import jobs_pb2
from pilotage_server.core.identity import Role
from support.commands import Command, environment_of
from support.process_grid import QUEUE, TREE, ProcessGrid, a_process_grid, read_text
from support.processes import until

pytestmark = pytest.mark.process

WEAKEST: dict[str, Any] = {"isolation": "none"}
"""The settings of a pilot that does not isolate payloads."""


@pytest.fixture
def grid(tmp_path: Path) -> Iterator[ProcessGrid]:
    with a_process_grid(tmp_path) as grid:
        yield grid


@pytest.fixture
def pilotage(grid: ProcessGrid, tmp_path: Path) -> Command:
    token = grid.server.token(Role.USER, Role.OPERATOR)
    return Command(environment_of(tmp_path, PILOTAGE_SERVER=grid.server.address, PILOTAGE_TOKEN=token))


async def test_pilot_that_is_too_weak_gets_no_job_until_the_tree_permits_it(
    grid: ProcessGrid, pilotage: Command
) -> None:
    grid.put_tree({**TREE, "defaults": {"Isolation": "owner"}})
    job = grid.submit(executable="/bin/true")
    why = f"isolation: the pilot offers none, {QUEUE} requires owner (stated by defaults)"
    async with grid.pilot(**WEAKEST) as pilot:
        await until(lambda: why in read_text(pilot.log))

        def shown() -> list[tuple[str, str]]:
            return [(slot["isolation"], slot["policy_fault"]) for slot in pilotage.json_objects("slots", "--json")]

        await until(lambda: shown() == [("none", why)])
        assert [each["isolation"] for each in pilotage.json_objects("pilots", "--json")] == ["none"]
        assert why in pilotage("why", job)
        assert grid.job(job).state == jobs_pb2.JOB_STATE_WAITING
        grid.put_tree({**TREE, "defaults": {"Isolation": "none"}})
        assert (await grid.done(job)).state == jobs_pb2.JOB_STATE_DONE


async def test_requirements_and_expressions_compare_the_level_of_the_pilot(grid: ProcessGrid) -> None:
    grid.put_tree({**TREE, "defaults": {"Isolation": "none"}})
    strong = grid.submit(executable="/bin/true", requirements_expression='TARGET.Isolation == "namespace"')
    weak = grid.submit(executable="/bin/true", requirements_expression='TARGET.Isolation == "none"')
    async with grid.pilot(**WEAKEST):
        assert (await grid.done(weak)).state == jobs_pb2.JOB_STATE_DONE
        assert grid.job(strong).state == jobs_pb2.JOB_STATE_WAITING


@pytest.mark.skipif(os.geteuid() != 0, reason="only a pilot of root runs payloads as accounts")
async def test_job_waits_for_a_pilot_that_has_an_account_for_its_owner(grid: ProcessGrid, pilotage: Command) -> None:
    grid.put_tree({**TREE, "defaults": {"Isolation": "uid"}})
    job = grid.submit(script="id -un; echo $USER")
    refuses = "echo alice is banned >&2; exit 3"
    async with grid.pilot(account_command=["/bin/sh", "-c", refuses]):
        declined = "account_command: exit code 3: alice is banned"
        await until(lambda: declined in pilotage("events", job))
        assert grid.job(job).state == jobs_pb2.JOB_STATE_WAITING
    async with grid.pilot(payload_accounts=["games"]):
        assert (await grid.done(job)).state == jobs_pb2.JOB_STATE_DONE
        assert [each["isolation"] for each in pilotage.json_objects("pilots", "--json")] != ["none"]
    assert pilotage("logs", job) == "games\ngames\n"
