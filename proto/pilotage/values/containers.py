"""Container runtimes of pilots, and how a node shows that it has one."""

from __future__ import annotations

from enum import StrEnum

HAS_CONTAINERS = "HasContainers"
"""The attribute of a node that tells whether its pilot runs jobs in container images."""


class RuntimeKind(StrEnum):
    """The container runtimes that a pilot can use."""

    APPTAINER = "apptainer"
    SINGULARITY = "singularity"
    PODMAN = "podman"
