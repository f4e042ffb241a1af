"""The settings of the drain controller."""

from __future__ import annotations

from pydantic import Field

from pilotage.settings import Section
from pilotage_agents.runtime.queue_patterns import EVERY_QUEUE
from pilotage_agents.runtime.settings import Interval, Seconds


class DrainControllerSettings(Section):
    """The drain controller: multicore jobs should have `setpoint` cores.

    `width` is the number of cores of a multicore job, which the nodes' policies admit while OnlyMulticore is set. A
    node with room for one is reopened after `negotiation_delay_s`, which must be long enough for a job to arrive.
    `queues`: patterns of "SITE/CE/QUEUE" whose nodes it controls.
    """

    setpoint: int = Field(default=250, ge=0, le=100_000_000)
    negotiation_delay_s: Seconds = 61
    width: int = Field(default=8, ge=2, le=100_000)
    queues: tuple[str, ...] = EVERY_QUEUE
    interval_s: Interval = 300
