"""Answers to submissions and changes of jobs ↔ wire."""

from __future__ import annotations

from pilotage.rpc.wire import enum_from_wire, enum_to_wire
from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage.values.jobs import ChangeResult, SubmittedJobs


def submitted_jobs_to_wire(submitted: SubmittedJobs) -> job_service_pb2.SubmitJobsResponse:
    """Return the message of new jobs."""
    return job_service_pb2.SubmitJobsResponse(
        job_ids=submitted.job_ids, warnings=submitted.warnings, workflow=submitted.workflow
    )


def submitted_jobs_from_wire(message: job_service_pb2.SubmitJobsResponse) -> SubmittedJobs:
    """Return the new jobs."""
    return SubmittedJobs(tuple(message.job_ids), tuple(message.warnings), message.workflow)


def change_result_to_wire(result: ChangeResult) -> job_service_pb2.JobChangeResult:
    """Return the message of what a change did to one job."""
    state = enum_to_wire(jobs_pb2.JobState, result.state)
    return job_service_pb2.JobChangeResult(job_id=result.job_id, state=state, refusal=result.refusal)


def change_result_from_wire(message: job_service_pb2.JobChangeResult) -> ChangeResult:
    """Return what a change did to one job."""
    return ChangeResult(message.job_id, enum_from_wire(jobs_pb2.JobState, message.state), message.refusal)
