"""Job descriptions ↔ wire.

Only the content of fields is checked here; submission decides whether the job can run. A description from the wire
converts back unchanged, except for the order of maps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields
from datetime import timedelta
from pathlib import PurePosixPath
from typing import Any, TypeVar

from pilotage.errors import Faults, InvalidInputError, InvalidJobError, Violation
from pilotage.job_description import NO_POLICY, InputFile, JobDescription, JobPolicy
from pilotage.jobs.file_names import MAX_PARTS, is_checksum, is_too_deep
from pilotage.rpc.wire import length_from_wire, section_from_wire, section_to_wire, text_from_wire
from pilotage.text import text_fault
from pilotage.v1 import jobs_pb2

_TEXTS = ("executable", "arguments", "name")
_OPTIONAL_TEXTS = ("stdin", "stdout", "stderr", "requirements_expression", "rank", "retry_until", "image")
_LISTS = ("output_files", "sites", "banned_sites", "platforms", "warnings", "ignored")
_LENGTHS = {"cpu_time_s": "cpu_time", "wall_time_s": "wall_time", "lease_s": "lease", "retry_delay_s": "retry_delay"}
_MINIMA = {
    "request_cpus": 1,
    "request_memory_mib": 0,
    "request_disk_mib": 0,
    "request_gpus": 0,
    "count": 1,
    "max_starts": 1,
    "retries": 0,
}
_NUMBERS = ("success_exit_code", "retry_memory")
_POLICIES = tuple(field.name for field in fields(JobPolicy))
_PARENTS = ("after", "after_ok", "after_any", "after_settled")
_PLAIN = ("priority", "hold", "new_files_come_back", "continues_cluster")

_KINDS = {
    **dict.fromkeys((*_TEXTS, *_OPTIONAL_TEXTS), "a text"),
    **dict.fromkeys(_LISTS, "a list of texts"),
    **dict.fromkeys(_LENGTHS, "a timedelta"),
    **dict.fromkeys((*_MINIMA, "priority", "success_exit_code"), "a whole number that the field can hold"),
    **dict.fromkeys(("hold", "new_files_come_back", "continues_cluster"), "true or false"),
    "retry_memory": "a number",
    "retry_exit_codes": "a list of whole numbers",
    "environment": "a mapping of names to texts",
}
"""What the values of fields are, for error messages."""
_NO_VALUE = object()
"""A value of no type that a message takes."""

Result = TypeVar("Result")


def description_to_wire(description: JobDescription) -> jobs_pb2.JobDescription:
    """Return the message of a description; raises InvalidJobError, also for an input file not stored yet.

    A list may be a list, a tuple or a set, which is sorted. Parents are refused: they are no part of a message, and a
    submission has them beside it.
    """
    plain: dict[str, Any] = {name: getattr(description, name) for name in (*_PLAIN, *_TEXTS, *_OPTIONAL_TEXTS)}
    plain |= {name: getattr(description, name) for name in (*_MINIMA, *_NUMBERS)}
    plain |= {name: _listed(getattr(description, name)) for name in (*_LISTS, "retry_exit_codes")}
    plain |= {field: _seconds(getattr(description, name)) for field, name in _LENGTHS.items()}
    plain |= {"environment": description.environment, "has_requirements": description.requirements is not None}
    try:
        message = jobs_pb2.JobDescription(**plain)
    except (TypeError, ValueError):
        raise InvalidJobError(*_wrong_types(description, plain)) from None
    faults = Faults()
    with faults.within("policy"):
        if description.policy != NO_POLICY:
            message.policy.CopyFrom(_policy_to_wire(description.policy))
    for name in _PARENTS:
        faults.unless(not getattr(description, name), name, "only a new job can be made to wait for others")
    with faults.within("input_files"):
        message.input_files.extend(_input_files_to_wire(description.input_files))
    with faults.within("requirements"):
        section_to_wire(description.requirements or {}, message.requirements)
    with faults.within("attributes"):
        section_to_wire(description.attributes, message.attributes)
    faults.raise_any(InvalidJobError)
    return message


def _listed(values: Any) -> Any:
    """Return a list in an order of its own; a text is no list, although a message takes one letter by letter."""
    if isinstance(values, AbstractSet):
        return sorted(values, key=str)
    return values if isinstance(values, tuple | list) else _NO_VALUE


def _seconds(length: Any) -> Any:
    return length.total_seconds() if isinstance(length, timedelta) else None if length is None else _NO_VALUE


def _wrong_types(description: JobDescription, plain: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield the fields whose values the message does not take."""
    for field, value in plain.items():
        try:
            jobs_pb2.JobDescription(**{field: value})
        except (TypeError, ValueError):
            name = _LENGTHS.get(field, field)
            yield Violation(name, f"{getattr(description, name)!r:.60} is not {_KINDS[field]}")


def _policy_to_wire(policy: object) -> jobs_pb2.JobPolicy:
    if not isinstance(policy, JobPolicy):
        raise InvalidJobError(Violation("", f"{policy!r:.60} is not a JobPolicy"))
    given = {name: value for name in _POLICIES if (value := getattr(policy, name)) is not None}
    try:
        return jobs_pb2.JobPolicy(**given)
    except (TypeError, ValueError):
        wrong = ((name, value) for name, value in given.items() if not isinstance(value, str) or text_fault(value))
        raise InvalidJobError(*(Violation(name, f"{value!r:.60} is not a text") for name, value in wrong)) from None


def _input_files_to_wire(files: Iterable[InputFile]) -> list[jobs_pb2.InputFile]:
    faults, messages = Faults(), []
    for index, file in enumerate(files):
        if not isinstance(file, InputFile):
            raise InvalidJobError(Violation(f"[{index}]", f"{file!r:.60} is not an InputFile"))
        faults.unless(file.checksum is not None, f"[{index}]", f"{file.name} has not been stored yet")
        message = jobs_pb2.InputFile(name=file.name, size=file.size, executable=file.executable)
        message.checksum = file.checksum or ""
        messages.append(message)
    faults.raise_any()
    return messages


def description_from_wire(message: jobs_pb2.JobDescription) -> JobDescription:
    """Return the description of a message; raises InvalidJobError with every fault of every field."""
    reader = _Reader(message)
    taken: dict[str, Any] = {name: getattr(message, name) for name in _PLAIN}
    taken |= {name: reader.read(name, text_from_wire) for name in _TEXTS}
    taken |= {name: reader.read_set(name, text_from_wire) for name in _OPTIONAL_TEXTS}
    taken |= {name: reader.read(name, _texts) for name in _LISTS}
    taken |= {name: reader.read_set(field, length_from_wire) for field, name in _LENGTHS.items()}
    taken |= {name: reader.read_set(name, _at_least(smallest)) for name, smallest in _MINIMA.items()}
    taken |= {name: reader.read_set(name, _finite) for name in _NUMBERS}
    taken["retry_exit_codes"] = tuple(message.retry_exit_codes)
    taken["input_files"] = reader.read("input_files", _input_files)
    taken["environment"] = reader.read("environment", _environment)
    taken["attributes"] = reader.read("attributes", section_from_wire)
    taken["policy"] = reader.read("policy", _policy)
    section = reader.read("requirements", section_from_wire)
    taken["requirements"] = section if message.has_requirements or section else None
    has_program = bool(message.executable.strip()) or message.HasField("image")
    reader.faults.unless(has_program, "executable", "is missing")
    reader.faults.raise_any(InvalidJobError)
    return JobDescription(**taken)


class _Reader:
    """Reads the fields of one message and collects their faults."""

    def __init__(self, message: jobs_pb2.JobDescription) -> None:
        self.faults = Faults()
        self._message = message

    def read(self, field: str, take: Callable[[Any], Result]) -> Result | None:
        """Return `take` of a field, None if it is faulty."""
        with self.faults.within(field):
            return take(getattr(self._message, field))
        return None

    def read_set(self, field: Any, take: Callable[[Any], Result]) -> Result | None:
        """Return `take` of a field, None if it is not set or faulty."""
        return self.read(field, take) if self._message.HasField(field) else None


def _texts(texts: Iterable[str]) -> tuple[str, ...]:
    faults, taken = Faults(), []
    for index, text in enumerate(texts):
        with faults.within(f"[{index}]"):
            taken.append(text_from_wire(text))
    faults.raise_any()
    return tuple(taken)


def _at_least(smallest: int) -> Callable[[int], int]:
    def take(number: int) -> int:
        if number < smallest:
            raise InvalidInputError(Violation("", f"{number} is less than {smallest}"))
        return number

    return take


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise InvalidInputError(Violation("", f"{number} is not a finite number"))
    return number


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    faults = Faults()
    for name, text in variables.items():
        faults.unless(bool(name) and "=" not in name, name, f'"{name}" cannot be the name of a variable')
        with faults.within(name):
            text_from_wire(name)
            text_from_wire(text)
    faults.raise_any()
    return dict(variables)


def _policy(message: Any) -> JobPolicy:
    faults, texts = Faults(), dict[str, str]()
    for name in _POLICIES:
        if message.HasField(name):
            with faults.within(name):
                texts[name] = text_from_wire(getattr(message, name))
    faults.raise_any()
    return JobPolicy(**texts)


def _input_files(messages: Iterable[jobs_pb2.InputFile]) -> tuple[InputFile, ...]:
    faults, names = Faults(), set[str]()
    files = []
    for index, message in enumerate(messages):
        where = f"[{index}]"
        with faults.within(where):
            check_file_name(message.name)
        faults.unless(message.name not in names, where, f"there are two files {message.name}")
        faults.unless(is_checksum(message.checksum), f"{where}.checksum", "is not 64 hex digits")
        faults.unless(message.size >= 0, f"{where}.size", f"{message.size} is less than 0")
        names.add(message.name)
        files.append(InputFile(message.name, None, message.checksum, message.size, message.executable))
    faults.raise_any()
    return tuple(files)


def check_file_name(name: str) -> None:
    """Raise InvalidInputError unless `name` is a path that stays inside the job's folder."""
    parts = PurePosixPath(name).parts
    if not parts or parts[0] == "/" or ".." in parts or "\0" in name:
        raise InvalidInputError(Violation("name", f'"{name}" is not a path inside the job\'s folder'))
    if is_too_deep(name):
        raise InvalidInputError(Violation("name", f'"{name:.300}" has more than {MAX_PARTS} parts'))
