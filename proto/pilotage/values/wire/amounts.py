"""Amounts ↔ wire."""

from __future__ import annotations

from pilotage.errors import Faults
from pilotage.v1 import values_pb2
from pilotage.values.amounts import Amounts


def amounts_to_wire(amounts: Amounts) -> values_pb2.Amounts:
    """Return the message of amounts."""
    return values_pb2.Amounts(
        cpus=amounts.cpus, memory_mib=amounts.memory_mib, disk_mib=amounts.disk_mib, gpus=amounts.gpus
    )


def amounts_from_wire(message: values_pb2.Amounts) -> Amounts:
    """Return amounts; raises InvalidInputError with each that is below zero."""
    faults = Faults()
    for name in ("cpus", "memory_mib", "disk_mib", "gpus"):
        amount = getattr(message, name)
        faults.unless(amount >= 0, name, f"{amount} is less than 0")
    faults.raise_any()
    return Amounts(message.cpus, message.memory_mib, message.disk_mib, message.gpus)


def job_amounts_from_wire(message: values_pb2.Amounts) -> Amounts:
    """Return the amounts of a job: at least one core, and 0 for negative amounts."""
    return Amounts(max(1, message.cpus), max(0, message.memory_mib), max(0, message.disk_mib), max(0, message.gpus))
