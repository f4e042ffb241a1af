"""The user's side: Python API, command line, readers of job languages.

What users import is here, and loaded when it is first used: the command line starts without it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pilotage.accounts import Quota as Quota
    from pilotage.errors import FeedPositionLostError as FeedPositionLostError
    from pilotage.errors import InvalidInputError as InvalidInputError
    from pilotage.errors import InvalidJobError as InvalidJobError
    from pilotage.errors import InvalidTreeError as InvalidTreeError
    from pilotage.errors import NotFoundError as NotFoundError
    from pilotage.errors import OverloadedError as OverloadedError
    from pilotage.errors import PermissionDeniedError as PermissionDeniedError
    from pilotage.errors import PilotageError as PilotageError
    from pilotage.errors import QuotaExceededError as QuotaExceededError
    from pilotage.errors import ServerUnreachableError as ServerUnreachableError
    from pilotage.errors import StateConflictError as StateConflictError
    from pilotage.errors import UnauthenticatedError as UnauthenticatedError
    from pilotage.errors import Violation as Violation
    from pilotage.errors import WorldError as WorldError
    from pilotage.job_description import InputFile as InputFile
    from pilotage.job_description import JobDescription as JobDescription
    from pilotage.notifications import NewSubscription as NewSubscription
    from pilotage.resources.queue_id import QueueId as QueueId
    from pilotage.values.jobs import JobCondition as JobCondition
    from pilotage_client.api import Client as Client
    from pilotage_client.async_client import AsyncClient as AsyncClient
    from pilotage_client.async_client import AsyncJob as AsyncJob
    from pilotage_client.async_client import AsyncJobSet as AsyncJobSet
    from pilotage_client.execution.executor import BatchFailedError as BatchFailedError
    from pilotage_client.execution.executor import PilotageExecutor as PilotageExecutor
    from pilotage_client.execution.records import WorkerDiedError as WorkerDiedError
    from pilotage_client.execution.tasks import task as task
    from pilotage_client.job_sets import Job as Job
    from pilotage_client.job_sets import JobResult as JobResult
    from pilotage_client.job_sets import JobSet as JobSet
    from pilotage_client.models.accounts import AgentLimits as AgentLimits
    from pilotage_client.models.jobs import JobStatus as JobStatus
    from pilotage_client.readers import read_jobs_with_files as read_jobs_with_files
    from pilotage_client.readers.values import job as job

_MODULES = {
    "AgentLimits": "pilotage_client.models.accounts",
    "AsyncClient": "pilotage_client.async_client",
    "AsyncJob": "pilotage_client.async_client",
    "AsyncJobSet": "pilotage_client.async_client",
    "BatchFailedError": "pilotage_client.execution.executor",
    "Client": "pilotage_client.api",
    "FeedPositionLostError": "pilotage.errors",
    "InputFile": "pilotage.job_description",
    "InvalidInputError": "pilotage.errors",
    "InvalidJobError": "pilotage.errors",
    "InvalidTreeError": "pilotage.errors",
    "Job": "pilotage_client.job_sets",
    "JobCondition": "pilotage.values.jobs",
    "JobDescription": "pilotage.job_description",
    "JobResult": "pilotage_client.job_sets",
    "JobSet": "pilotage_client.job_sets",
    "JobStatus": "pilotage_client.models.jobs",
    "NewSubscription": "pilotage.notifications",
    "NotFoundError": "pilotage.errors",
    "OverloadedError": "pilotage.errors",
    "PermissionDeniedError": "pilotage.errors",
    "PilotageError": "pilotage.errors",
    "PilotageExecutor": "pilotage_client.execution.executor",
    "QueueId": "pilotage.resources.queue_id",
    "Quota": "pilotage.accounts",
    "QuotaExceededError": "pilotage.errors",
    "ServerUnreachableError": "pilotage.errors",
    "StateConflictError": "pilotage.errors",
    "UnauthenticatedError": "pilotage.errors",
    "Violation": "pilotage.errors",
    "WorkerDiedError": "pilotage_client.execution.records",
    "WorldError": "pilotage.errors",
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
