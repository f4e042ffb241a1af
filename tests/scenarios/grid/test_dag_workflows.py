"""Workflows of DAG files on pilots in virtual time: limits of categories, and nodes that fail."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from pilotage_client.workflows import DagWorkflow
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.storage.database.engine import Database
from support.dag_texts import dag
from support.jobs import a_user
from support.virtual_clock import VirtualClock
from support.virtual_grid import VirtualGrid

RUN_60_S = "executable = simulate\ntransfer_executable = false\narguments = $(seconds:60) 0\nqueue\n"


@pytest.fixture
def grid(
    sqlite_database: Database, clock: VirtualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> VirtualGrid:
    monkeypatch.chdir(tmp_path)
    return VirtualGrid(sqlite_database, clock)


def submit(grid: VirtualGrid, flow: DagWorkflow) -> Mapping[str, int]:
    """Submit a workflow; returns the jobs by node."""
    submitted = grid.grid.write(
        lambda transaction, state: submit_jobs(
            transaction,
            state,
            a_user(),
            single_groups(flow.descriptions),
            dependencies=flow.dependencies,
            workflow=flow.name,
        )
    )
    grid.settle()
    return {job.name: id_ for job, id_ in zip(flow.descriptions, submitted.job_ids, strict=True)}


def test_category_never_runs_more_nodes_than_its_limit(grid: VirtualGrid) -> None:
    nodes = "".join(
        f'JOB N{number} a.sub\nCATEGORY N{number} few\nVARS N{number} seconds="{20 + 37 * number % 90}"\n'
        f"JOB X{number} a.sub\n"
        for number in range(12)
    )
    text = f"{nodes}MAXJOBS few 3\nPARENT N0 CHILD X1 N5\nPARENT X3 CHILD N1\n"
    jobs = submit(grid, dag(text, {"a.sub": RUN_60_S}))
    limited = {jobs[f"N{number}"] for number in range(12)}
    most: list[tuple[int, int]] = []

    def note() -> bool:
        running = set(node.running().values())
        most.append((len(running & limited), len(running)))
        return grid.finished(*jobs.values())

    node = grid.node(cpus=16)
    grid.until(note)
    assert max(few for few, _ in most) == 3
    assert max(all_ for _, all_ in most) > 10


def test_node_that_fails_stops_only_its_descendants(grid: VirtualGrid) -> None:
    text = (
        "JOB A a.sub\nJOB B a.sub\nJOB C a.sub\nJOB D a.sub\nFINAL F a.sub\nPARENT A CHILD B C\nPARENT B C CHILD D\n"
        "CATEGORY ALL_NODES one\nMAXJOBS one 1\n"
    )
    jobs = submit(grid, dag(text, {"a.sub": RUN_60_S}))
    node = grid.node(cpus=4)
    grid.until(lambda: jobs["B"] in node.running().values())
    grid.grid.change(JobChange.REMOVE, jobs["B"])
    grid.settle()
    grid.until(lambda: grid.finished(jobs["F"]))
    states = dict(zip(jobs, grid.states(*jobs.values()), strict=True))
    assert states == {"A": "DONE", "B": "REMOVED", "C": "DONE", "D": "BLOCKED", "F": "DONE"}
