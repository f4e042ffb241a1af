"""What a site says of container images: which runtimes to use, and what images show and take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path


class RuntimeKind(StrEnum):
    """The container runtimes that a pilot can use."""

    APPTAINER = "apptainer"
    SINGULARITY = "singularity"
    PODMAN = "podman"


@dataclass(frozen=True, slots=True)
class ContainerRules:
    """What the site says: the runtimes to try in order, further options of each, and paths that images show.

    `options` of apptainer and singularity follow `exec`, those of podman precede its commands. The cache of images is
    in `cache` and has at most `cache_mib`; a pull ends after `timeout_s`, and is repeated for a use after `max_age_s`.
    """

    cache: Path
    runtimes: tuple[RuntimeKind, ...] = tuple(RuntimeKind)
    options: Mapping[RuntimeKind, tuple[str, ...]] = field(default_factory=dict)
    binds: tuple[Path, ...] = (Path("/cvmfs"),)
    cache_mib: int = 20 << 10
    timeout_s: float = 900.0
    max_age_s: float = 86_400.0
