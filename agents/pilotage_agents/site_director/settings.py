"""The settings of the site director and of the task-queue director."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import Field, field_validator, model_validator

from pilotage.resources.queue_patterns import pattern_fault
from pilotage.settings import AnchoredPath, Section
from pilotage_agents.batch_systems.settings import BatchSystemSettings, SlurmBatchSystemSettings
from pilotage_agents.runtime.settings import AgentSection, Interval, Seconds


class WhenStopped(StrEnum):
    """What happens to the director's pilots when it stops."""

    LEAVE = "leave"
    CANCEL = "cancel"


class QueueSettings(Section):
    """Settings for the queues that match one of `queues`; they override those of the director."""

    queues: tuple[str, ...] = Field(min_length=1, description='Patterns of "SITE/CE/QUEUE", such as "CERN/*/*".')
    min_idle_pilots: int | None = Field(
        None, ge=0, le=10_000, description="Pilots that are kept ready without any demand."
    )
    max_pilots: int | None = Field(
        None, ge=0, le=10**6, description="The largest number of pilots; None = only the limits of the tree apply."
    )
    vos: tuple[str, ...] | None = Field(
        None, description="The VOs that pilots serve; None or empty = all that the queue admits."
    )
    pilot_bundle: AnchoredPath | None = Field(
        None, description="A pilot bundle for nodes with another Python or architecture."
    )
    python: Annotated[str, Field(min_length=1)] | None = Field(
        None, description="The Python that runs the bundle on such nodes."
    )
    pilot: dict[str, Any] = Field(
        default_factory=dict, description="Settings of the pilots, over those of the director."
    )


class DirectorSettings(AgentSection):
    """What all directors have: they send pilots to batch systems and follow their glideins."""

    folder: AnchoredPath = Field(description="The folder that keeps the input and output of pilots.")
    interval_s: Interval = Field(60, description="The time between two cycles.")
    urgent_interval_s: Interval = Field(
        10, description="The time between two cycles while one of its queues has no idle core."
    )
    ramp_start: int = Field(
        10,
        ge=1,
        le=1000,
        description="Pilots that may be at a queue without work; fewer where pilots return without having run a job.",
    )
    ramp_factor: int = Field(1, ge=1, le=10, description="Pilots without work for each that is at work.")
    max_idle_s: Seconds = Field(1200, description="A pilot without a job for this time ends.")
    pilot_command: tuple[str, ...] = Field(
        ("pilotage-pilot",),
        min_length=1,
        description='The command that runs a pilot when "run --config FILE" is appended.',
    )
    pilot_bundle: AnchoredPath | None = Field(
        None,
        description="A file that is sent with each pilot and run by `python`; None = `pilot_command` is on the nodes.",
    )
    python: str = Field("python3", min_length=1, description="The Python that runs the bundle on the node.")
    pilot: dict[str, Any] = Field(default_factory=dict, description="Settings of every pilot.")
    credential_s: Seconds = Field(
        7 * 86400,
        description="How long a pilot may wait with its enrolment secret; at half of it the pilot gets another.",
    )
    default_wall_time_s: Seconds = Field(7 * 86400, description="The wall time of queues for which the tree has none.")
    when_stopped: WhenStopped = Field(
        WhenStopped.LEAVE, description="What happens to the pilots when the director stops."
    )
    keep_ended: int = Field(100, ge=0, le=10**6, description="The number of ended pilots whose folders are kept.")
    lost_after_s: Seconds = Field(
        600,
        description="A pilot whose submission got no answer was never submitted if it is not listed for this time.",
    )
    batch_systems: dict[str, BatchSystemSettings] = Field(min_length=1, description="The batch systems, by name.")

    @model_validator(mode="after")
    def _check_bundle_path(self) -> Self:
        if self.has_bundle:
            for name, system in self.batch_systems.items():
                if isinstance(system, SlurmBatchSystemSettings) and system.node_folder and not system.node_bundle:
                    raise ValueError(f"batch_systems.{name} needs a node_bundle: no bundle is sent to its nodes")
        return self

    @property
    def has_bundle(self) -> bool:
        """Whether a bundle is sent with some pilots."""
        return self.pilot_bundle is not None


class SiteDirectorSettings(DirectorSettings):
    """The site director."""

    queues: tuple[str, ...] = Field(("*/*/*",), description='Patterns of "SITE/CE/QUEUE" that it serves.')
    min_idle_pilots: int = Field(
        0, ge=0, le=10_000, description="Pilots that are kept ready at each queue without any demand."
    )
    overrides: tuple[QueueSettings, ...] = Field((), description="Settings of some queues.")

    @property
    def has_bundle(self) -> bool:
        """Whether a bundle is sent with some pilots."""
        return any((self.pilot_bundle, *(each.pilot_bundle for each in self.overrides)))


class TaskQueueDirectorSettings(DirectorSettings):
    """The task-queue director: its batch system chooses the queue of each pilot."""

    queues: tuple[str, ...] = Field(
        min_length=1, description='Patterns of "SITE/CE/QUEUE": the set of queues that its pilots may land on.'
    )
    vos: tuple[str, ...] = Field((), description="The VOs that its pilots serve; empty = all that the queues admit.")
    max_pilots: int | None = Field(
        None,
        ge=0,
        le=10**6,
        description="The largest number of pilots at its queues and on their way; None = no limit.",
    )
    cpus: int = Field(1, ge=1, le=100_000, description="The cores of each pilot.")
    memory_mib: int | None = Field(
        None, ge=1, le=2**40, description="The memory of each pilot in MiB; None = not requested."
    )
    disk_mib: int | None = Field(
        None, ge=1, le=2**40, description="The disk space of each pilot in MiB; None = not requested."
    )
    gpus: int | None = Field(None, ge=0, le=1000, description="The GPUs of each pilot; None = not requested.")
    wall_time_s: int | None = Field(
        None,
        ge=1,
        le=10 * 365 * 86400,
        description="The wall time of each pilot; None = not requested, and `default_wall_time_s` assumed.",
    )
    batch_queue: str = Field("", description="The batch system's own name of the place that takes the pilots.")
    batch_systems: dict[str, BatchSystemSettings] = Field(
        min_length=1, max_length=1, description="The batch system, by its name."
    )

    @field_validator("queues")
    @classmethod
    def _check_patterns(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            if fault := pattern_fault(pattern):
                raise ValueError(fault)
        return tuple(sorted(set(patterns)))
