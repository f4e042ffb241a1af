"""The settings of the drain controller."""

from __future__ import annotations

from pydantic import Field

from pilotage.resources.queue_patterns import EVERY_QUEUE
from pilotage_agents.runtime.settings import AgentSection, Interval, Seconds


class DrainControllerSettings(AgentSection):
    """The drain controller: multicore jobs should have `setpoint` cores."""

    setpoint: int = Field(250, ge=0, le=100_000_000, description="The number of cores that multicore jobs should have.")
    negotiation_delay_s: Seconds = Field(
        61,
        description="A node with room for a multicore job is reopened after this time, in which a job must arrive.",
    )
    width: int = Field(
        8,
        ge=2,
        le=100_000,
        description="The cores of a multicore job, which the nodes' policies admit while OnlyMulticore is set.",
    )
    queues: tuple[str, ...] = Field(EVERY_QUEUE, description='Patterns of "SITE/CE/QUEUE" whose nodes are controlled.')
    interval_s: Interval = Field(300, description="The time between two cycles.")
