"""The values of the Python API by nouns, and their JSON keys; those of jobs can be imported from here."""

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
