"""What all sections of the agents' settings have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Seconds = Annotated[float, Field(ge=0, le=10 * 365 * 86400)]
"""A length of time in seconds."""

Interval = Annotated[float, Field(ge=0.05, le=86400)]
"""The time from the end of a round to the start of the next, in seconds."""


class Section(BaseModel):
    """A section of the file; unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
