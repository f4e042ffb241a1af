"""Types that the settings of several agents use."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Seconds = Annotated[float, Field(ge=0, le=10 * 365 * 86400)]
"""A duration in seconds."""

Interval = Annotated[float, Field(ge=0.05, le=86400)]
"""The time from the end of a cycle to the start of the next, in seconds."""
