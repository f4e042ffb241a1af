"""Job descriptions from the jobs of Snakemake: resources, and files that travel."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

from pilotage.errors import InvalidInputError, Violation
from pilotage.job_description import JobDescription
from pilotage_client.readers.values import PROGRAM_KEYS, check_user_keys, job

KEY_PREFIX = "pilotage_"
"""Resources with this prefix are keys of job files: `pilotage_image`, `pilotage_sites`, ..."""

LOG = "snakemake.log"
"""The file with all that the job prints."""

_OWN_KEYS = PROGRAM_KEYS | {"folder", "input_files", "inputs", "output_files", "outputs"}

# Snakemake derives these from mem_mb and disk_mb, which are of 10^6 bytes.
_UNITS = {"mem_mib": ("memory", "MB"), "disk_mib": ("disk", "MB"), "runtime": ("wall_time", "min")}
_GPUS = ("gpu", "gpus")
_RUN = 'script="$PWD/$1"; cd "$0" && exec /bin/sh "$script"'


def keys_of_resources(threads: int, resources: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys of `job` for the resources of a job of Snakemake; those without a meaning here are left out.

    Raises
    ------
    InvalidInputError
        A resource that has a meaning is not a number, or a key is one that the executor sets itself.
    """
    given = {name.removeprefix(KEY_PREFIX): value for name, value in resources.items() if name.startswith(KEY_PREFIX)}
    check_user_keys(given.keys(), _OWN_KEYS, KEY_PREFIX)
    keys: dict[str, Any] = {"cpus": threads}
    for name, value in resources.items():
        if name in _UNITS:
            key, unit = _UNITS[name]
            keys[key] = f"{_number(name, value)} {unit}"
        elif name in _GPUS:
            keys["gpus"] = _number(name, value)
    keys |= given
    requirements = keys.pop("require", None)
    return keys if requirements is None else {**keys, "require": _requirements(requirements)}


def describe(
    name: str,
    script: Path,
    keys: Mapping[str, Any],
    *,
    folder: Path | None = None,
    inputs: Iterable[str] = (),
    outputs: Iterable[str] = (),
) -> JobDescription:
    """Return the description of the job that runs `script`.

    `folder` = the shared folder in which it runs; None = its own, to which `inputs` are sent and from which `outputs`
    come back, both relative to the present folder.

    Raises
    ------
    InvalidInputError
        With every key at fault, or with the files that cannot travel.
    """
    travelling = [{"name": script.name, "source": str(script)}]
    if folder is None:
        inputs, outputs = list(inputs), list(outputs)
        _check_travelling([*inputs, *outputs])
        travelling += [{"name": path, "source": path} for path in dict.fromkeys(map(os.path.normpath, inputs))]
    return job(
        "/bin/sh",
        *("-c", _RUN, folder or ".", script.name),
        **{
            "name": name,
            **keys,
            "input_files": travelling,
            "output_files": list(outputs) if folder is None else [],
            "stdout": LOG,
            "stderr": LOG,
        },
    )


def _number(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidInputError(Violation(name, f"must be a whole number, not {value!r}"))
    return value


def _requirements(text: str) -> dict[str, str]:
    """Return the requirements of a text such as "Memory=4000, SoftwareTag=A"."""
    pairs = [pair.partition("=") for pair in str(text).split(",")]
    if odd := [name for name, equals, value in pairs if not (name.strip() and equals and value.strip())]:
        raise InvalidInputError(Violation(f"{KEY_PREFIX}require", f"must be NAME=VALUE, not {', '.join(odd)!r}"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def _check_travelling(paths: Iterable[str]) -> None:
    outside = [path for path in paths if PurePath(path).is_absolute() or ".." in PurePath(path).parts]
    if outside:
        why = "is not below the present folder, so it cannot travel with a job; use a relative path or a shared folder"
        raise InvalidInputError(*(Violation(path, why) for path in dict.fromkeys(outside)))
