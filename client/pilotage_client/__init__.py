"""The user's side: Python API, command line, readers of job languages.

What users import is here, and loaded when it is first used: the command line starts without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pilotage.job_description import JobDescription as JobDescription
    from pilotage_client.api import Client as Client
    from pilotage_client.async_client import AsyncClient as AsyncClient
    from pilotage_client.execution.executor import PilotageExecutor as PilotageExecutor
    from pilotage_client.execution.tasks import task as task
    from pilotage_client.job_sets import Job as Job
    from pilotage_client.job_sets import JobResult as JobResult
    from pilotage_client.job_sets import JobSet as JobSet
    from pilotage_client.readers import read_jobs_with_files as read_jobs_with_files
    from pilotage_client.readers.values import job as job

_MODULES = {
    "AsyncClient": "pilotage_client.async_client",
    "Client": "pilotage_client.api",
    "Job": "pilotage_client.job_sets",
    "JobDescription": "pilotage.job_description",
    "JobResult": "pilotage_client.job_sets",
    "JobSet": "pilotage_client.job_sets",
    "PilotageExecutor": "pilotage_client.execution.executor",
    "job": "pilotage_client.readers.values",
    "read_jobs_with_files": "pilotage_client.readers",
    "task": "pilotage_client.execution.tasks",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    """Load what is imported from here; a package that is missing is named with the command that installs it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
