"""What the settings of several agents have in common."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from pilotage.settings import AnchoredPath, Section

Seconds = Annotated[float, Field(ge=0, le=10 * 365 * 86400)]
"""A duration in seconds."""

Interval = Annotated[float, Field(ge=0.05, le=86400)]
"""The time from the end of a cycle to the start of the next, in seconds."""


class AgentSection(Section):
    """The section of an agent."""

    token_file: AnchoredPath | None = Field(
        None,
        description="A file with the token of this agent, which is read again for every call; None = that above.",
    )
