"""A receiver of OpenTelemetry's protocol over gRPC, to which real processes export their spans."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass(frozen=True)
class ReceivedSpan:
    """A span, the service that exported it, and its attributes as plain values."""

    service: str
    span: Span
    attributes: Mapping[str, Any]

    @property
    def id(self) -> str:
        return self.span.span_id.hex()

    @property
    def parent(self) -> str:
        return self.span.parent_span_id.hex()

    @property
    def trace_id(self) -> str:
        return self.span.trace_id.hex()


def _plain(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, each.value.WhichOneof("value")) for each in attributes}


@dataclass
class OtlpReceiver(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it receives at `address`."""

    address: str = ""
    spans: list[ReceivedSpan] = field(default_factory=list)

    def Export(self, request: Any, context: Any) -> Any:  # noqa: N802 - the protocol names the call
        for of_resource in request.resource_spans:
            service = _plain(of_resource.resource.attributes)["service.name"]
            for scope in of_resource.scope_spans:
                self.spans += [ReceivedSpan(service, each, _plain(each.attributes)) for each in scope.spans]
        return trace_service_pb2.ExportTraceServiceResponse()

    @property
    def environment(self) -> dict[str, str]:
        """The variables that make a process export its spans to this receiver."""
        return {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://{self.address}"}

    def trace(self, trace_id: str) -> dict[str, ReceivedSpan]:
        """Return the spans of a trace by their names; fails if two have the same name."""
        found = [each for each in self.spans if each.trace_id == trace_id]
        by_name = {each.span.name: each for each in found}
        assert len(by_name) == len(found), [each.span.name for each in found]
        return by_name


@contextmanager
def an_otlp_receiver() -> Iterator[OtlpReceiver]:
    """Receive spans until the end of the block."""
    receiver = OtlpReceiver()
    server = grpc.server(ThreadPoolExecutor(2))
    trace_service_pb2_grpc.add_TraceServiceServicer_to_server(receiver, server)  # type: ignore[no-untyped-call]
    receiver.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield receiver
    finally:
        server.stop(None).wait()
