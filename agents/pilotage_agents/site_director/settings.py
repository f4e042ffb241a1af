"""The settings of the site director."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Field, model_validator

from pilotage.settings import AnchoredPath, Section
from pilotage_agents.batch_systems.settings import BatchSystemSettings, SlurmBatchSystemSettings
from pilotage_agents.runtime.settings import Interval, Seconds


class WhenStopped(StrEnum):
    """What happens to the director's pilots when it stops."""

    LEAVE = "leave"
    CANCEL = "cancel"


class QueueSettings(Section):
    """Settings for the queues that match one of `queues`, patterns such as "CERN/*/*".

    `min_idle_pilots` are kept ready without any demand. `max_pilots` limits pilots in addition to the tree. `vos`: the
    VOs that pilots serve; empty = all that the queue admits. `pilot`: settings of the pilot. `pilot_bundle` and
    `python`: as for the director, where nodes have another Python or architecture.
    """

    queues: tuple[str, ...] = Field(min_length=1)
    min_idle_pilots: int | None = Field(default=None, ge=0, le=10_000)
    max_pilots: int | None = Field(default=None, ge=0)
    vos: tuple[str, ...] | None = None
    pilot_bundle: AnchoredPath | None = None
    python: Annotated[str, Field(min_length=1)] | None = None
    pilot: dict[str, Any] = Field(default_factory=dict)


class SiteDirectorSettings(Section):
    """The site director.

    `folder` keeps the input and output of pilots. `queues`: patterns of "SITE/CE/QUEUE" that it serves. Its cycles
    start every `interval_s`, and every `urgent_interval_s` while one of its queues has no idle core. `ramp_start`
    pilots may be at a queue without work, or `ramp_factor` for each that is at work; fewer where pilots return without
    having run a job. A pilot without a job for `max_idle_s` ends. `pilot_command` runs a pilot when "run --config FILE"
    is appended. `pilot_bundle`: one file that is sent with each pilot; `python` runs it on the node instead of the
    command. `pilot`: settings of every pilot. `credential_s`: how long a pilot's token outlives the queue's wall time;
    a pilot that has waited half of that time in the batch queue gets a new one. `default_wall_time_s` is the wall time
    where the tree has none. The folders of the last `keep_ended` pilots that ended are kept. A pilot whose submission
    was not answered, and that its batch system does not list for `lost_after_s`, was never submitted; until then it
    counts as waiting.
    """

    folder: AnchoredPath
    queues: tuple[str, ...] = ("*/*/*",)
    interval_s: Interval = 60
    urgent_interval_s: Interval = 10
    ramp_start: int = Field(default=10, ge=1, le=1000)
    ramp_factor: int = Field(default=1, ge=1, le=10)
    min_idle_pilots: int = Field(default=0, ge=0, le=10_000)
    max_idle_s: Seconds = 1200
    pilot_command: tuple[str, ...] = Field(default=("pilotage-pilot",), min_length=1)
    pilot_bundle: AnchoredPath | None = None
    python: str = Field(default="python3", min_length=1)
    pilot: dict[str, Any] = Field(default_factory=dict)
    credential_s: Seconds = 7 * 86400
    default_wall_time_s: Seconds = 7 * 86400
    when_stopped: WhenStopped = WhenStopped.LEAVE
    keep_ended: int = Field(default=100, ge=0)
    lost_after_s: Seconds = 600
    batch_systems: dict[str, BatchSystemSettings] = Field(min_length=1)
    overrides: tuple[QueueSettings, ...] = ()

    @model_validator(mode="after")
    def _check_bundle_path(self) -> SiteDirectorSettings:
        if self.pilot_bundle or any(each.pilot_bundle for each in self.overrides):
            for name, system in self.batch_systems.items():
                if isinstance(system, SlurmBatchSystemSettings) and system.node_folder and not system.node_bundle:
                    raise ValueError(f"batch_systems.{name} needs a node_bundle: no bundle is sent to its nodes")
        return self
