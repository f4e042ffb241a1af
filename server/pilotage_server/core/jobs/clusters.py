"""Clusters and workflows: many jobs as one thing, with the numbers of jobs in each state.

Rules
-----
The jobs of a cluster have consecutive ids. The first one is the id of the cluster, and a job's process is the distance
to it. Race copies have the cluster of their original but ids of their own; they are not jobs of the cluster. A workflow
is all clusters of a submission, and its id is that of its first job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from pilotage_server.core.jobs.states import JobState
from pilotage_server.core.jobs.workflow_graphs import StepEdge


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """A cluster, or a workflow, of `jobs` submitted jobs.

    `counts` has those that exist. `name` is that of one of the jobs, with macros; of a workflow its own.
    """

    id: int
    jobs: int
    counts: Mapping[JobState, int]
    owner: str
    vo: str
    group: str
    name: str
    submitted: datetime
    is_workflow: bool = False


@dataclass(frozen=True, slots=True)
class WorkflowStep:
    """Jobs of a workflow that are one node of its graph, and the numbers of those that exist by state.

    `name` = that of the first job, "" = it no longer exists. Jobs `outside` are of another submission; they have no
    name.
    """

    ids: range
    name: str
    counts: Mapping[JobState, int]
    outside: bool = False


@dataclass(frozen=True, slots=True)
class WorkflowView:
    """A workflow with its graph; `steps` empty = the graph is not kept. Edges have the places of steps."""

    summary: ClusterSummary
    steps: tuple[WorkflowStep, ...] = ()
    edges: tuple[StepEdge, ...] = ()


@dataclass(frozen=True, slots=True)
class SelectedJobs:
    """The ids of existing jobs in order; `cluster` = the cluster or workflow that is selected as a whole, or None."""

    runs: tuple[range, ...]
    cluster: ClusterSummary | None = None
