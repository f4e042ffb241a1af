"""A DAG as one submission: its jobs, what they wait for, and the rescue of its nodes that are done."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from pilotage import clock
from pilotage.job_description import JobDescription
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage_client.models import JobStatus
from pilotage_client.workflows.dag_files import read_dag_files
from pilotage_client.workflows.graph import Group, Node
from pilotage_client.workflows.node_jobs import NodeJobs

Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class DagWorkflow:
    """A workflow for `Client.submit`: descriptions, in an order in which parents come first, and dependencies.

    `nodes` = the number of nodes that are submitted, `left_out` of those that are not, as they are done or have no
    job.
    """

    name: str
    descriptions: tuple[JobDescription, ...]
    dependencies: tuple[Dependency, ...]
    nodes: int
    left_out: int
    warnings: tuple[str, ...] = ()


def read_dag(
    path: Path,
    *,
    done: Iterable[Path | frozenset[str]] = (),
    ignore_unsupported: bool = False,
    with_files: bool = True,
) -> DagWorkflow:
    """Return the workflow of a DAG file.

    Paths in DAGs and in submit files are relative to the working directory, or to the folder behind DIR, as for
    condor_submit_dag. `done` = rescue files, or names of nodes, that are done. `ignore_unsupported` is as for
    `read_jobs`. Without `with_files` input files need not exist.

    Raises
    ------
    InvalidInputError
        With all faults of all files.
    """
    nodes, warnings = read_dag_files(path, done, ignore_unsupported=ignore_unsupported)
    with_jobs = [node for node in nodes if node.has_job]
    reader = NodeJobs(path, clock.now(), ignore_unsupported=ignore_unsupported, with_files=with_files)
    jobs = reader.read_all(with_jobs)
    places: dict[Node, Range] = {}
    descriptions: list[JobDescription] = []
    for node in with_jobs:
        places[node] = (len(descriptions), len(descriptions) + len(jobs[node]) - 1)
        descriptions += jobs[node]
    dependencies = _dependencies(places)
    left_out = len(nodes) - len(with_jobs)
    return DagWorkflow(path.name, tuple(descriptions), dependencies, len(with_jobs), left_out, tuple(warnings))


def _dependencies(places: dict[Node, Range]) -> tuple[Dependency, ...]:
    """Return what the nodes at these places wait for; a range of descriptions counts as one parent."""
    ranges: dict[tuple[Group, ...], tuple[Range, ...]] = {}

    def ranges_of(*groups: Group) -> tuple[Range, ...]:
        if groups not in ranges:
            if len(groups) == 1:
                ranges[groups] = _joined(places[node] for node in groups[0].with_jobs)
            else:
                ranges[groups] = _joined(sorted({each for group in groups for each in ranges_of(group)}))
        return ranges[groups]

    dependencies: list[Dependency] = []
    for node, (first, last) in places.items():
        for kind, groups in ((DependencyKind.AFTER_OK, node.waits), (DependencyKind.AFTER_SETTLED, node.settles)):
            if groups and (parents := ranges_of(*groups)):
                dependencies += (Dependency(index, kind, ranges=parents) for index in range(first, last + 1))
    return tuple(dependencies)


def _joined(ascending: Iterable[Range]) -> tuple[Range, ...]:
    """Return ranges with neighbours and overlapping ones joined."""
    joined: list[Range] = []
    for first, last in ascending:
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(last, joined[-1][1]))
        else:
            joined.append((first, last))
    return tuple(joined)


def done_nodes(jobs: Iterable[JobStatus]) -> frozenset[str]:
    """Return the names of the nodes all of whose jobs are DONE; a node is a cluster."""
    done: dict[str, bool] = {}
    for job in jobs:
        done[job.name] = done.get(job.name, True) and job.state == "DONE"
    return frozenset(name for name, is_done in done.items() if is_done and name)


def rescue_text(done: Iterable[str], about: str) -> str:
    """Return a partial rescue file as DAGMan writes it; `about` says in its comment where it comes from."""
    return "".join([f"# Rescue file of {about}\n", *(f"DONE {name}\n" for name in sorted(done))])
