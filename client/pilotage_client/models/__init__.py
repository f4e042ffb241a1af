"""The values of the Python API by nouns, and their JSON keys; those of jobs can be imported from here.

The other modules are loaded when they are first used, as most programs use few of them, and the definition of a class
takes a millisecond. The modules of the API import this package, and name a value as `models.grid.PilotStatus`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from pilotage_client.models.jobs import FINAL_STATES as FINAL_STATES
from pilotage_client.models.jobs import LIVE_STATES as LIVE_STATES
from pilotage_client.models.jobs import STATES as STATES
from pilotage_client.models.jobs import ClusterStatus as ClusterStatus
from pilotage_client.models.jobs import FoundJobs as FoundJobs
from pilotage_client.models.jobs import JobAttempt as JobAttempt
from pilotage_client.models.jobs import JobCount as JobCount
from pilotage_client.models.jobs import JobEvent as JobEvent
from pilotage_client.models.jobs import JobFile as JobFile
from pilotage_client.models.jobs import JobOutput as JobOutput
from pilotage_client.models.jobs import JobStatus as JobStatus
from pilotage_client.models.jobs import JobUsage as JobUsage
from pilotage_client.models.jobs import OutputPart as OutputPart
from pilotage_client.models.jobs import cluster_status as cluster_status
from pilotage_client.models.jobs import iso as iso
from pilotage_client.models.jobs import job_attempt as job_attempt
from pilotage_client.models.jobs import job_event as job_event
from pilotage_client.models.jobs import job_file as job_file
from pilotage_client.models.jobs import job_status as job_status
from pilotage_client.models.jobs import output_part as output_part
from pilotage_client.models.jobs import state_name as state_name
from pilotage_client.models.jobs import time_of as time_of

if TYPE_CHECKING:
    from pilotage_client.models import accounts as accounts
    from pilotage_client.models import explanations as explanations
    from pilotage_client.models import grid as grid
    from pilotage_client.models import operations as operations
    from pilotage_client.models import routes as routes
else:

    def __getattr__(name: str) -> object:
        """Load a module of this package."""
        if name not in {"accounts", "explanations", "grid", "operations", "routes"}:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")
