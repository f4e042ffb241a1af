"""Exports spans with the SDK of OpenTelemetry; only this module imports it (extra `pilotage[otel]`).

The SDK reads its standard environment by itself: receiver, headers, sampler, batches, attributes of the resource.
"""

from __future__ import annotations

import os
from datetime import datetime
from importlib import import_module
from threading import local

from opentelemetry.context import Context
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter as SdkExporter
from opentelemetry.sdk.trace.id_generator import IdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

from pilotage.telemetry import TraceContext
from pilotage.tracing.spans import Span


class _GivenIds(IdGenerator):
    """Gives the next span of this thread the ids that were chosen for it."""

    def __init__(self) -> None:
        self.given = local()

    def generate_trace_id(self) -> int:
        """Return the id of the trace."""
        return int(self.given.trace_id, 16)

    def generate_span_id(self) -> int:
        """Return the id of the span."""
        return int(self.given.span_id, 16)


class OtlpExporter:
    """Exports the spans of one service in batches, from a thread of its own; the last ones at the end of the process.

    Spans beyond the bound of the queue (OTEL_BSP_MAX_QUEUE_SIZE) are dropped.
    """

    def __init__(self, service: str, release: str) -> None:
        resource = Resource({SERVICE_NAME: service, SERVICE_VERSION: release})
        self._ids = _GivenIds()
        self._provider = TracerProvider(
            resource=resource.merge(OTELResourceDetector().detect()), id_generator=self._ids
        )
        self._provider.add_span_processor(BatchSpanProcessor(_exporter()))
        self._tracer = self._provider.get_tracer("pilotage", release)

    def is_sampled(self, name: str, parent: TraceContext) -> bool:
        """Return what the sampler of the environment decides (OTEL_TRACES_SAMPLER)."""
        result = self._provider.sampler.should_sample(_context(parent), int(parent.trace_id, 16), name)
        return bool(result.decision.is_sampled())  # type: ignore[no-untyped-call]

    def export(self, span: Span) -> None:
        """Put a span in the queue."""
        self._ids.given.trace_id, self._ids.given.span_id = span.parent.trace_id, span.span_id
        made = self._tracer.start_span(
            span.name,
            _context(span.parent),
            SpanKind[span.kind],
            {**span.attributes, **({"error.type": span.error} if span.error else {})},
            start_time=_nanoseconds(span.began),
        )
        if span.error:
            made.set_status(Status(StatusCode.ERROR))
        made.end(_nanoseconds(span.ended))


def _exporter() -> SdkExporter:
    """Return the exporter for the protocol of the environment; OTLP over gRPC needs no package beside the extra's."""
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    name = "http" if protocol == "http/protobuf" else "grpc"
    exporter: SdkExporter = import_module(f"opentelemetry.exporter.otlp.proto.{name}.trace_exporter").OTLPSpanExporter()
    return exporter


def _context(parent: TraceContext) -> Context:
    if not parent.span_id:
        return Context()
    flags = TraceFlags(TraceFlags.SAMPLED if parent.sampled else TraceFlags.DEFAULT)
    known = SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(known), Context())


def _nanoseconds(time: datetime) -> int:
    return round(time.timestamp() * 1e9)
