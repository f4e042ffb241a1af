"""A job description as JSON shows it: the keys that people's scripts hold on to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pilotage.job_description import JobDescription, Value


def as_json(description: JobDescription) -> dict[str, Any]:
    """Return the description under its public keys; what its owner did not say is None.

    Sizes are in MiB, times in seconds. `site` and `platform` are lists, also of one. `attributes` and `warnings`
    are there even when they are empty.
    """
    cpu_time = description.cpu_time
    return {
        "executable": description.executable,
        "arguments": description.arguments or None,
        "requirements": None if description.requirements is None else _values(description.requirements.items()),
        "requirements_expression": description.requirements_expression,
        "site": _list(description.sites),
        "banned_sites": _list(description.banned_sites),
        "platform": _list(description.platforms),
        "cpu_time_s": None if cpu_time is None else _whole(cpu_time.total_seconds()),
        "request_cpus": description.request_cpus,
        "request_memory_mb": description.request_memory_mib,
        "request_disk_mb": description.request_disk_mib,
        "request_gpus": description.request_gpus,
        "input_files": _list(file.source or file.name for file in description.input_files),
        "output_files": _list(description.output_files),
        "stdout": description.stdout,
        "stderr": description.stderr,
        "environment": dict(description.environment) or None,
        "attributes": _values(description.attributes.items()),
        "count": description.count,
        "warnings": list(description.warnings),
    }


def _list(names: Iterable[str]) -> list[str] | None:
    return list(names) or None


def _values(items: Iterable[tuple[str, Value]]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in items}


def _whole(number: float) -> int | float:
    return int(number) if number.is_integer() else number
