"""Spans as values: what was done for a trace, from when until when, and under which span."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import NamedTuple

from pilotage.telemetry import TraceContext

Attributes = dict[str, str | int | float | bool]
"""Attributes by their names, from the semantic conventions of OpenTelemetry where these have one."""


class SpanKind(StrEnum):
    """The kinds of spans, named as in OpenTelemetry."""

    INTERNAL = "INTERNAL"
    CLIENT = "CLIENT"
    SERVER = "SERVER"


class Span(NamedTuple):
    """A span that has ended, under `parent`, whose `span_id` is empty for the first span of a trace.

    `error` = the type of the error that it ended with, "" = none.
    """

    name: str
    parent: TraceContext
    span_id: str
    began: datetime
    ended: datetime
    attributes: Mapping[str, str | int | float | bool]
    kind: SpanKind = SpanKind.INTERNAL
    error: str = ""
