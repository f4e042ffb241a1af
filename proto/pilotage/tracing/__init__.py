"""Spans of traces, recorded by every program and exported over OTLP; only `otlp` imports OpenTelemetry."""
