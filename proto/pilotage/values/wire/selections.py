"""Selections of jobs ↔ wire."""

from __future__ import annotations

from pilotage.errors import InvalidInputError, Violation
from pilotage.v1 import job_service_pb2
from pilotage.values.selections import JobSelection
from pilotage.values.wire.fields import Fields, job_id_from_wire


def selection_to_wire(selection: JobSelection) -> job_service_pb2.JobSelection:
    """Return the message of a selection."""
    first, last = selection.processes or (None, None)
    return job_service_pb2.JobSelection(
        id=selection.id, first_process=first, last_process=last, workflow=selection.workflow
    )


def selection_from_wire(message: job_service_pb2.JobSelection) -> JobSelection:
    """Return the selection of a message; raises InvalidInputError."""
    fields = Fields(message)
    selected = fields("id", job_id_from_wire)
    fields.done()
    if message.workflow and (message.HasField("first_process") or message.HasField("last_process")):
        raise InvalidInputError(Violation("", "processes are set, but a workflow has none"))
    if not message.HasField("first_process"):
        return JobSelection(selected, workflow=message.workflow)
    first = message.first_process
    last = message.last_process if message.HasField("last_process") else first
    if not 0 <= first <= last:
        raise InvalidInputError(Violation("", f"{first} to {last} are not processes of a cluster"))
    return JobSelection(selected, (first, last))
