"""Spans of traces: what this process has done for a trace that is sampled, exported over OTLP.

Rules
-----
A process exports spans if the standard environment of OpenTelemetry names a receiver and the extra `pilotage[otel]` is
installed. Else nothing here costs more than a test of a variable.
The sampler is asked where a submission enters, in the client and in the server. From there on the sampled flag decides,
also hours later: it is stored with the submission and travels with each match and report.
A span is recorded when it has ended. The span of a match has an id that follows from the submission and the attempt, so
server and pilot agree on it without a field in any row or message.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Protocol

from pilotage import clock
from pilotage.telemetry import TraceContext, current_trace, is_sampled, new_span_id, new_trace, read_trace, trace_bound
from pilotage.tracing.spans import Attributes, Span, SpanKind


class SpanExporter(Protocol):
    """Exports spans; `otlp.OtlpExporter` fulfils it."""

    def is_sampled(self, name: str, parent: TraceContext) -> bool:
        """Return whether a span with this parent is sampled."""

    def export(self, span: Span) -> None:
        """Export a span of a sampled trace, soon and in another thread."""


_exporter: SpanExporter | None = None


def set_up_tracing(program: str, environment: Mapping[str, str] = os.environ) -> None:
    """Export spans from now on as those of the service `program`, if the environment names a receiver."""
    global _exporter
    if _exporter is not None or not _names_receiver(environment):
        return
    try:
        from importlib.metadata import version

        from pilotage.tracing.otlp import OtlpExporter

        _exporter = OtlpExporter(program, version("pilotage"))
    except ModuleNotFoundError as error:
        name = error.name or ""
        wanted = "opentelemetry-exporter-otlp-proto-http" if name.endswith(".http") else "'pilotage[otel]'"
        _warn(f"traces are not exported, {name} is not installed: pip install {wanted}")
    except Exception as error:  # the environment has invalid values: no reason to do no work
        _warn(f"traces are not exported: {error}")


def _warn(text: str) -> None:
    """Warn as the library does: in the log of a service, else on standard error."""
    logging.getLogger("opentelemetry").warning(text)


def _names_receiver(environment: Mapping[str, str]) -> bool:
    is_off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if is_off or environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp":
        return False
    return bool(environment.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or environment.get("OTEL_EXPORTER_OTLP_ENDPOINT"))


def is_tracing() -> bool:
    """Return whether this process exports spans."""
    return _exporter is not None


@contextmanager
def span(name: str, kind: SpanKind, attributes: Mapping[str, str]) -> Iterator[Attributes]:
    """Record the block as a span, if it is sampled; calls and log lines of the block belong to its trace.

    More attributes may be added to the value of the block.
    """
    parent = current_trace() or new_trace()
    collected: Attributes = dict(attributes)
    exporter = _exporter
    if exporter is None:
        with trace_bound(parent):
            yield collected
        return
    own = TraceContext(parent.trace_id, new_span_id(), exporter.is_sampled(name, parent))
    if not own.sampled:
        with trace_bound(own):
            yield collected
        return
    began, error = clock.now(), ""
    try:
        with trace_bound(own):
            yield collected
    except BaseException as failure:
        error = type(failure).__name__
        raise
    finally:
        exporter.export(Span(name, parent, own.span_id, began, clock.now(), collected, kind, error))


def record_span(ended: Span) -> None:
    """Record a span of a trace that is sampled."""
    if _exporter is not None:
        _exporter.export(ended)


def sampled_trace(traceparent: str) -> TraceContext | None:
    """Return the context in this text if its spans are to be recorded; None = they are not."""
    return read_trace(traceparent) if _exporter is not None and is_sampled(traceparent) else None


def match_context(submission: TraceContext, job_id: int, attempt: int) -> TraceContext:
    """Return the context of the match that began an attempt, from that of the submission of its job."""
    text = f"{submission} {job_id}.{attempt}"
    span_id = hashlib.blake2b(text.encode(), digest_size=8).hexdigest()
    return submission._replace(span_id=span_id)
