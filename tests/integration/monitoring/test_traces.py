"""Traces over real processes: client, server and pilot export spans of one trace, and log its id."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from pilotage.telemetry import TraceContext, trace_bound
from support.commands import Command, environment_of
from support.otlp_receiver import an_otlp_receiver
from support.process_grid import PILOT, ProcessGrid, a_process_grid, read_text

pytestmark = pytest.mark.process

SUBMISSION = "pilotage.v1.JobService/SubmitJobs"


async def submitted(grid: ProcessGrid, variables: Mapping[str, str], **description: Any) -> tuple[int, str]:
    """Submit with the command line; returns the first job and the id of the trace."""
    file = grid.folder / "job.toml"
    file.write_text("".join(f"{name} = {json.dumps(value)}\n" for name, value in description.items()))
    own = {"PILOTAGE_SERVER": grid.server.address, "PILOTAGE_TOKEN": grid.user_token()}
    command = Command(environment_of(grid.folder, **own, **variables))
    (answer,) = await asyncio.to_thread(command.json_objects, "submit", file)
    return answer["jobs"][0], answer["trace_id"]


async def test_job_is_one_trace_through_all_processes_and_a_restart(tmp_path: Path) -> None:
    with an_otlp_receiver() as receiver, a_process_grid(tmp_path, environment=receiver.environment) as grid:
        job_id, trace_id = await submitted(grid, receiver.environment, executable="/bin/sh", arguments="-c 'exit 3'")
        _, array_trace_id = await submitted(
            grid, receiver.environment, executable="/bin/true", count=1100, request_memory=64000000
        )
        grid.server.stop()
        grid.server.start()
        async with grid.pilot(PILOT, {**os.environ, **receiver.environment}, max_idle_s=0) as pilot:
            await grid.done(job_id)
            await pilot.ends()
        grid.server.stop()

    spans = receiver.trace(trace_id)
    parents = {each.id: name for name, each in spans.items()}
    assert {name: (each.service, parents.get(each.parent)) for name, each in spans.items()} == {
        "submit": ("pilotage", None),
        SUBMISSION: ("pilotage-server", "submit"),
        "match": ("pilotage-server", SUBMISSION),
        "start": ("pilotage-pilot", "match"),
        "run": ("pilotage-pilot", "match"),
        "store": ("pilotage-pilot", "match"),
        "result": ("pilotage-server", "match"),
    }
    assert {spans[name].attributes["pilotage.job.id"] for name in ("match", "start", "run", "result")} == {job_id}
    assert spans["result"].attributes["process.exit.code"] == spans["run"].attributes["process.exit.code"] == 3
    assert spans["match"].attributes["pilotage.site"] == "SITE"
    order = [spans[name].span for name in ("submit", "match", "start", "run", "store", "result")]
    assert [each.name for each in sorted(order, key=lambda each: each.start_time_unix_nano)] == [
        each.name for each in order
    ]
    array = receiver.trace(array_trace_id)
    assert array.keys() == {"submit", SUBMISSION}
    assert array[SUBMISSION].attributes["pilotage.jobs"] == 1100


SAMPLED, NOT_SAMPLED = TraceContext("a1" * 16, "b1" * 8, sampled=True), TraceContext("a2" * 16, "b2" * 8)
UNDECIDED = TraceContext("a3" * 16)


@pytest.mark.parametrize(
    ("sampler", "traced"),
    [("parentbased_always_on", {SAMPLED, UNDECIDED}), ("parentbased_always_off", {SAMPLED}), ("always_off", set())],
)
def test_sampled_flag_decides_and_else_the_servers_sampler(
    tmp_path: Path, sampler: str, traced: set[TraceContext]
) -> None:
    with an_otlp_receiver() as receiver:
        variables = {**receiver.environment, "OTEL_TRACES_SAMPLER": sampler}
        with a_process_grid(tmp_path, environment=variables) as grid:
            for context in (SAMPLED, NOT_SAMPLED, UNDECIDED):
                with trace_bound(context):
                    grid.submit()
            grid.server.stop()

    found = {(each.trace_id, each.parent) for each in receiver.spans}
    assert found == {(each.trace_id, each.span_id) for each in traced}


async def test_without_opentelemetry_log_lines_share_the_trace_id(tmp_path: Path) -> None:
    (tmp_path / "opentelemetry.py").write_text("raise ModuleNotFoundError(name='opentelemetry')\n")
    variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1", "PYTHONPATH": str(tmp_path)}
    with a_process_grid(tmp_path, environment=variables, log_level="debug") as grid:
        job_id, trace_id = await submitted(grid, variables, executable="/bin/true")
        async with grid.pilot(PILOT, {**os.environ, **variables}, max_idle_s=0) as pilot:
            await grid.done(job_id)
            await pilot.ends()
        pilot_lines = lines_of(read_text(pilot.log))
        server_lines = lines_of(grid.server.log())

    assert [line["method"] for line in server_lines if line.get("trace_id") == trace_id] == [f"/{SUBMISSION}"]
    events = [line["event"] for line in pilot_lines if line.get("trace_id") == trace_id]
    assert events == ["job granted", "payload ended"]
    for lines in (pilot_lines, server_lines):
        (why,) = [line["why"] for line in lines if line["event"] == "warning of OpenTelemetry"]
        assert "pip install 'pilotage[otel]'" in why


def lines_of(log: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.splitlines()]
