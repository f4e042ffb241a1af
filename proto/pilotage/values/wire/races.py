"""Race copies ↔ wire."""

from __future__ import annotations

from pilotage.v1 import race_service_pb2
from pilotage.values.races import NewRaceCopy, StartedRaceCopy
from pilotage.values.wire.fields import Fields, job_id_from_wire, reason_from_wire


def new_race_copy_to_wire(copy: NewRaceCopy) -> race_service_pb2.NewRaceCopy:
    """Return the message of a race copy to start."""
    return race_service_pb2.NewRaceCopy(job_id=copy.job_id, reason=copy.reason)


def new_race_copy_from_wire(message: race_service_pb2.NewRaceCopy) -> NewRaceCopy:
    """Return a race copy to start."""
    fields = Fields(message)
    copy = NewRaceCopy(fields("job_id", job_id_from_wire), fields("reason", reason_from_wire))
    fields.done()
    return copy


def started_to_wire(started: StartedRaceCopy) -> race_service_pb2.StartedCopy:
    """Return the message of a race copy's result."""
    return race_service_pb2.StartedCopy(job_id=started.job_id, copy_id=started.copy_id, refusal=started.refusal)


def started_from_wire(message: race_service_pb2.StartedCopy) -> StartedRaceCopy:
    """Return the result of a race copy."""
    return StartedRaceCopy(message.job_id, message.copy_id, message.refusal)
