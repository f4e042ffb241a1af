"""Workflows from DAGMan files: `read_dag` gives jobs and dependencies for `Client.submit`; rescue files.

The package reads files and knows no server, except for the nodes of a workflow that are done.
"""

from __future__ import annotations

from pilotage_client.workflows.workflow import DagWorkflow, done_nodes, read_dag, rescue_text

__all__ = ["DagWorkflow", "done_nodes", "read_dag", "rescue_text"]
