"""Dependencies between jobs ↔ wire."""

from __future__ import annotations

from collections.abc import Collection

from pilotage.errors import Faults, InvalidInputError, Violation
from pilotage.rpc.wire import enum_from_wire, enum_to_wire
from pilotage.v1 import job_service_pb2
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.wire.fields import Fields, all_from_wire
from pilotage.values.wire.selections import selection_from_wire, selection_to_wire


def dependency_to_wire(dependency: Dependency) -> job_service_pb2.Dependency:
    """Return the message of a dependency."""
    return job_service_pb2.Dependency(
        description=dependency.description,
        kind=kind_to_wire(dependency.kind),
        parents=map(selection_to_wire, dependency.parents),
        descriptions=dependency.descriptions,
        description_ranges=(
            job_service_pb2.DescriptionRange(first=first, last=last) for first, last in dependency.ranges
        ),
    )


def kind_to_wire(kind: DependencyKind) -> job_service_pb2.DependencyKind.ValueType:
    """Return the number of a kind."""
    number: job_service_pb2.DependencyKind.ValueType = enum_to_wire(job_service_pb2.DependencyKind, kind.name)
    return number


def dependencies_from_wire(
    messages: Collection[job_service_pb2.Dependency], descriptions: int
) -> tuple[Dependency, ...]:
    """Return the dependencies of a submission with so many descriptions.

    Raises
    ------
    InvalidInputError
        With the faults of all of them.
    """
    faults = Faults()
    with faults.within("dependencies"):
        taken = all_from_wire(messages, lambda message: _dependency(message, descriptions))
    faults.raise_any()
    return taken


def _dependency(message: job_service_pb2.Dependency, descriptions: int) -> Dependency:
    def index(number: int) -> int:
        if not 0 <= number < descriptions:
            why = f"{number} is not the index of a description (0 to {descriptions - 1})"
            raise InvalidInputError(Violation("", why))
        return number

    def index_range(each: job_service_pb2.DescriptionRange) -> tuple[int, int]:
        bounds = Fields(each)
        first, last = bounds("first", index), bounds("last", index)
        bounds.done()
        if first > last:
            raise InvalidInputError(Violation("", f"{first} to {last} is not a range"))
        return first, last

    fields = Fields(message)
    dependency = Dependency(
        fields("description", index),
        fields("kind", kind_from_wire),
        fields("parents", lambda parents: all_from_wire(parents, selection_from_wire)),
        fields("descriptions", lambda numbers: all_from_wire(numbers, index)),
        fields("description_ranges", lambda ranges: all_from_wire(ranges, index_range)),
    )
    fields.done()
    return dependency


def kind_from_wire(number: int) -> DependencyKind:
    """Return the kind with this number."""
    name = enum_from_wire(job_service_pb2.DependencyKind, number)
    if not name:
        raise InvalidInputError(Violation("", "is missing"))
    return DependencyKind[name]
