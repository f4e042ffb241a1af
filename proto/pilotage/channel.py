"""Channels to the server, for every process that calls it: token, deadlines, retries, errors that are ours.

Stubs are used as generated; a failed call raises a PilotageError. Calls are repeated when no server answered,
so every mutating request needs its request id.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self

import grpc
import grpc.aio

from pilotage.errors import InvalidInputError, ServerUnreachableError, Violation
from pilotage.status import error_of
from pilotage.telemetry import CAUSE_HEADER, current_cause

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""No message on the wire is larger, in either direction."""

MAX_METADATA_BYTES = 1024 * 1024
"""Room for a status that lists hundreds of faults."""

UNARY_TIMEOUT_S = 30.0
"""The deadline of a call that gives none."""

STREAM_TIMEOUT_S = 3600.0
"""The deadline of a stream that gives none; who follows a feed resumes from its position."""

SHARED_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", 2 * MAX_METADATA_BYTES),
    ("grpc.keepalive_time_ms", 60_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)
"""Channel arguments that both ends agree on."""

_CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # so long an attempt to connect may take, where gRPC would wait 20 s
    ("grpc.enable_http_proxy", 0),  # worker nodes set http_proxy to a web cache that cannot carry gRPC
)
_RETRIES = {
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 4,  # some 1.3 s in all: who types commands is told soon, who serves asks again anyway
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 3,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        },
        # Streams to us are not repeated here: gRPC's retry of one that breaks before its first message may never
        # come (seen with 1.85). Who reads a stream asks again.
        {
            "name": [
                {"service": "pilotage.v1.JobService", "method": "WatchEvents"},
                {"service": "pilotage.v1.JobService", "method": "DownloadFile"},
            ]
        },
    ]
}
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[^\s:/\[\],]+):(?P<port>\d{1,5})")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the servers are and how to be let in.

    `addresses` ("host:port", never empty) are tried in order. `token` may be a function where it is renewed
    while the process lives. `tls` None = for all addresses but loopback; `root_ca` (PEM) None = the system's.
    """

    addresses: tuple[str, ...]
    token: str | Callable[[], str] = field(default="", repr=False)
    root_ca: bytes | None = field(default=None, repr=False)
    tls: bool | None = None

    def __post_init__(self) -> None:
        if not self.addresses:
            raise InvalidInputError(Violation("server", "no address is given"))
        remote = [address for address in self.addresses if not is_loopback(split_address(address)[0])]
        if self.tls is False and remote:
            raise InvalidInputError(Violation("tls", f"cannot be off: {remote[0]} is not this machine"))

    @classmethod
    def parse(cls, text: str, token: str | Callable[[], str] = "", root_ca: bytes | None = None) -> Self:
        """Return the endpoint of "host:port" or "host:port,host:port"."""
        addresses = tuple(address.strip() for address in text.split(",") if address.strip())
        return cls(addresses, token, root_ca)

    @property
    def is_encrypted(self) -> bool:
        """Whether the channel uses TLS."""
        if self.tls is not None:
            return self.tls
        return not all(is_loopback(split_address(address)[0]) for address in self.addresses)


def split_address(address: str) -> tuple[str, int]:
    """Return host (IPv6 without brackets) and port; raises InvalidInputError for what is no address."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found["port"]) > 65535:
        raise InvalidInputError(Violation("server", f'"{address}" is not an address such as host:4711'))
    return found["host"].strip("[]"), int(found["port"])


def is_loopback(host: str) -> bool:
    """Return whether `host` names this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def open_channel(endpoint: Endpoint, *, timeout_s: float = UNARY_TIMEOUT_S) -> grpc.Channel:
    """Return a channel for threads; `timeout_s` is the deadline of calls that give none."""
    target, options = _target(endpoint)
    if endpoint.is_encrypted:
        credentials = grpc.ssl_channel_credentials(endpoint.root_ca)
        channel = grpc.secure_channel(target, credentials, options)
    else:
        channel = grpc.insecure_channel(target, options)
    return grpc.intercept_channel(channel, _Caller(endpoint.token, timeout_s))


def open_async_channel(endpoint: Endpoint, *, timeout_s: float = UNARY_TIMEOUT_S) -> grpc.aio.Channel:
    """Return a channel for the running event loop; `timeout_s` is the deadline of calls that give none."""
    target, options = _target(endpoint)
    kinds = (_AsyncUnaryCaller, _AsyncUploadCaller, _AsyncStreamCaller)
    interceptors = [kind(endpoint.token, timeout_s) for kind in kinds]
    if not endpoint.is_encrypted:
        return grpc.aio.insecure_channel(target, options, interceptors=interceptors)
    credentials = grpc.ssl_channel_credentials(endpoint.root_ca)
    return grpc.aio.secure_channel(target, credentials, options, interceptors=interceptors)


def _target(endpoint: Endpoint) -> tuple[str, list[tuple[str, Any]]]:
    options: list[tuple[str, Any]] = [*SHARED_OPTIONS, *_CLIENT_OPTIONS]
    options.append(("grpc.service_config", json.dumps(_RETRIES)))
    if len(endpoint.addresses) == 1:
        return endpoint.addresses[0], options
    options.append(("grpc.default_authority", split_address(endpoint.addresses[0])[0]))
    return _numeric_target(endpoint.addresses), options


def _numeric_target(addresses: tuple[str, ...]) -> str:
    """Return one target for several addresses; gRPC takes a list in numbers of one family only."""
    found: dict[int, list[str]] = {socket.AF_INET: [], socket.AF_INET6: []}
    for address in addresses:
        host, port = split_address(address)
        try:
            resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            continue  # one name that is not known today must not keep the others from being tried
        for family, _, _, _, place in resolved:
            number = f"[{place[0]}]" if family == socket.AF_INET6 else str(place[0])
            found[family].append(f"{number}:{port}")
    family, scheme = (socket.AF_INET, "ipv4") if found[socket.AF_INET] else (socket.AF_INET6, "ipv6")
    if not found[family]:
        raise ServerUnreachableError(f"none of {', '.join(addresses)} is known to the name service")
    return f"{scheme}:{','.join(dict.fromkeys(found[family]))}"


class _Details(NamedTuple):
    """What a call is made with; the shape that gRPC asks for."""

    method: Any
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any = None


class _Prepared:
    """Gives every call its token, its cause and its deadline."""

    def __init__(self, token: str | Callable[[], str], timeout_s: float) -> None:
        self._token = token
        self._timeout_s = timeout_s

    def prepared(self, details: Any, timeout_s: float) -> Any:
        metadata = [*(details.metadata or ()), (CAUSE_HEADER, current_cause())]
        token = self._token() if callable(self._token) else self._token
        if token:
            metadata.append(("authorization", f"Bearer {token}"))
        return _Details(
            details.method,
            timeout_s if details.timeout is None else details.timeout,
            metadata,
            details.credentials,
            details.wait_for_ready,
            getattr(details, "compression", None),
        )


class _Caller(
    _Prepared,
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
):
    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return _finished(continuation(self.prepared(details, self._timeout_s), request))

    def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        return _finished(continuation(self.prepared(details, STREAM_TIMEOUT_S), requests))

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return _Stream(continuation(self.prepared(details, STREAM_TIMEOUT_S), request))


def _finished(call: Any) -> Any:
    try:
        call.result()
    except grpc.RpcError as error:
        raise error_of(error) from error
    return call


class _Stream(Iterator[Any]):
    """The messages of a stream; `cancel` ends it from any thread."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __next__(self) -> Any:
        try:
            return next(self._call)
        except grpc.RpcError as error:
            raise error_of(error) from error

    def cancel(self) -> None:
        self._call.cancel()


class _AsyncUnaryCaller(_Prepared, grpc.aio.UnaryUnaryClientInterceptor):
    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        return await _async_finished(await continuation(self.prepared(details, self._timeout_s), request))


class _AsyncUploadCaller(_Prepared, grpc.aio.StreamUnaryClientInterceptor):
    async def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        return await _async_finished(await continuation(self.prepared(details, STREAM_TIMEOUT_S), requests))


class _AsyncStreamCaller(_Prepared, grpc.aio.UnaryStreamClientInterceptor):
    async def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        return _messages(await continuation(self.prepared(details, STREAM_TIMEOUT_S), request))


async def _async_finished(call: Any) -> Any:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from error
    return call


async def _messages(call: Any) -> AsyncIterator[Any]:
    try:
        async for message in call:
            yield message
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from error
