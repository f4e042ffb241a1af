"""Channels to the server, for every process that calls it: addresses, TLS, tokens, deadlines, retries.

Stubs are used as generated; a failed call raises a PilotageError.

Rules
-----
- Each call carries a token and the context of its trace, and has a deadline over all its tries; without one the
  default applies.
- A call without an answer is repeated, so every mutating request needs its request id.
- A call that an overloaded server rejects unread is repeated, no sooner than the server says. Uploads are not: the
  sent part of their stream is gone, so the caller has to send it again.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import os
import random
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Self

import grpc
import grpc.aio

from pilotage.backoff import Retry, backoff
from pilotage.clock import BootClock, boot_time_s
from pilotage.errors import InvalidInputError, OverloadedError, PilotageError, ServerUnreachableError, Violation
from pilotage.rpc.proof import PROOF_HEADER
from pilotage.rpc.status import error_of
from pilotage.telemetry import trace_headers

STREAM_TIMEOUT_S = 3600.0
"""The default deadline of a stream; a reader of a feed resumes from its position."""

MAX_TRIES = 8
LONGEST_SPREAD_S = 15.0
"""The longest random part of a pause."""


class OverloadRetry:
    """The tries of one call, within `timeout_s` in all, while an overloaded server rejects it.

    The server has not read a rejected call, so any call may be repeated. `dice` returns numbers from 0 to 1.
    """

    def __init__(
        self, timeout_s: float, clock: BootClock = boot_time_s, dice: Callable[[], float] = random.random
    ) -> None:
        self._retry = Retry(timeout_s, clock, max_tries=MAX_TRIES)
        self._dice = dice

    @property
    def remaining_s(self) -> float:
        """How long the next try may take."""
        return self._retry.remaining_s

    def pause_s(self, refused: OverloadedError) -> float:
        """Return how long to wait before the next try; raises OverloadedError when no try is left."""
        least_s, dice = refused.retry_after_s, self._dice()
        pause_s = self._retry.failed(lambda failures: least_s + dice * backoff(failures, 2 * least_s, LONGEST_SPREAD_S))
        if pause_s is None:
            tries = "once" if self._retry.failures == 1 else f"{self._retry.failures} times"
            raise OverloadedError(f"{refused}; it refused this one {tries}", least_s) from refused
        return pause_s


class _Details(NamedTuple):
    """The details of a call, in the shape that gRPC requires."""

    method: Any
    timeout: float | None
    metadata: Any
    credentials: Any
    wait_for_ready: Any
    compression: Any = None


class _CallOptions:
    """Adds token, trace context and deadline to every call."""

    def __init__(self, endpoint: Endpoint, timeout_s: float) -> None:
        self._token = endpoint.token
        self._prove = endpoint.prove
        self._timeout_s = timeout_s

    def timeout_s(self, details: Any, usual_s: float) -> float:
        """Return the time limit of a call over all its tries."""
        given_s: float | None = details.timeout
        return usual_s if given_s is None else given_s

    def with_options(self, details: Any, timeout_s: float) -> Any:
        """Return the details of one try, which may take `timeout_s`."""
        metadata = [*(details.metadata or ()), *trace_headers()]
        token = self._token() if callable(self._token) else self._token
        if token:
            metadata.append(("authorization", f"Bearer {token}"))
        if self._prove is not None:
            method = details.method
            proof = self._prove(method.decode() if isinstance(method, bytes) else method)
            metadata += [(PROOF_HEADER, proof)] if proof else []
        return _Details(
            details.method,
            timeout_s,
            metadata,
            details.credentials,
            details.wait_for_ready,
            getattr(details, "compression", None),
        )


class SyncCaller(
    _CallOptions,
    grpc.UnaryUnaryClientInterceptor,
    grpc.UnaryStreamClientInterceptor,
    grpc.StreamUnaryClientInterceptor,
):
    """Makes calls in threads."""

    def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Return the answered call; raises the PilotageError that it failed with."""
        return _retry_overload(
            lambda left_s: _completed(continuation(self.with_options(details, left_s), request)),
            self.timeout_s(details, self._timeout_s),
        )

    def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        """Return the answered call; raises the PilotageError that it failed with."""
        return _completed(continuation(self.with_options(details, self.timeout_s(details, STREAM_TIMEOUT_S)), requests))

    def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        """Return the responses; reading them raises the PilotageError that the call failed with."""
        return _Stream(
            lambda left_s: continuation(self.with_options(details, left_s), request),
            self.timeout_s(details, STREAM_TIMEOUT_S),
        )


def _retry_overload(act: Callable[[float], Any], timeout_s: float) -> Any:
    """Return the result of `act`, given the seconds left, once it is not rejected for overload."""
    retry = OverloadRetry(timeout_s)
    while True:
        try:
            return act(retry.remaining_s)
        except OverloadedError as refused:
            time.sleep(retry.pause_s(refused))


def _completed(call: Any) -> Any:
    try:
        call.result()
    except grpc.RpcError as error:
        raise error_of(error) from error
    return call


class _Stream(Iterator[Any]):
    """The messages of a stream; `cancel` ends it from any thread."""

    def __init__(self, begin: Callable[[float], Any], timeout_s: float) -> None:
        self._begin = begin
        self._retry = OverloadRetry(timeout_s)
        self._call = begin(timeout_s)
        self._is_cancelled = False

    def __next__(self) -> Any:
        """Return the next message."""
        while True:
            try:
                return next(self._call)
            except grpc.RpcError as error:
                self._restart_after(error_of(error), error)

    def _restart_after(self, error: PilotageError, cause: grpc.RpcError) -> None:
        if not isinstance(error, OverloadedError):  # an overload error can only come before the first message
            raise error from cause
        time.sleep(self._retry.pause_s(error))
        self._call = self._begin(self._retry.remaining_s)
        if self._is_cancelled:
            self._call.cancel()

    def cancel(self) -> None:
        """End the stream."""
        self._is_cancelled = True
        self._call.cancel()


class AsyncUnaryCaller(_CallOptions, grpc.aio.UnaryUnaryClientInterceptor):
    """Makes calls in the event loop."""

    async def intercept_unary_unary(self, continuation: Any, details: Any, request: Any) -> Any:
        """Return the answered call; raises the PilotageError that it failed with."""
        retry = OverloadRetry(self.timeout_s(details, self._timeout_s))
        while True:
            try:
                return await _async_completed(
                    await continuation(self.with_options(details, retry.remaining_s), request)
                )
            except OverloadedError as refused:
                await asyncio.sleep(retry.pause_s(refused))


class AsyncUploadCaller(_CallOptions, grpc.aio.StreamUnaryClientInterceptor):
    """Sends streams of requests in the event loop."""

    async def intercept_stream_unary(self, continuation: Any, details: Any, requests: Any) -> Any:
        """Return the answered call; raises the PilotageError that it failed with."""
        timeout_s = self.timeout_s(details, STREAM_TIMEOUT_S)
        return await _async_completed(await continuation(self.with_options(details, timeout_s), requests))


class AsyncStreamCaller(_CallOptions, grpc.aio.UnaryStreamClientInterceptor):
    """Reads streams of responses in the event loop."""

    async def intercept_unary_stream(self, continuation: Any, details: Any, request: Any) -> Any:
        """Return the responses; reading them raises the PilotageError that the call failed with."""
        timeout_s = self.timeout_s(details, STREAM_TIMEOUT_S)

        async def begin(left_s: float) -> Any:
            return await continuation(self.with_options(details, left_s), request)

        return _messages(await begin(timeout_s), begin, OverloadRetry(timeout_s))


async def _async_completed(call: Any) -> Any:
    try:
        await call
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from error
    return call


async def _messages(call: Any, begin: Callable[[float], Awaitable[Any]], retry: OverloadRetry) -> AsyncIterator[Any]:
    while True:
        try:
            async for message in call:
                yield message
            return
        except grpc.aio.AioRpcError as error:
            refused = error_of(error)
            if not isinstance(refused, OverloadedError):  # an overload error can only come before the first message
                raise refused from error
            await asyncio.sleep(retry.pause_s(refused))
            call = await begin(retry.remaining_s)


MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""The largest message on the wire, in either direction."""

MAX_METADATA_BYTES = 1024 * 1024
"""Enough for a status that lists hundreds of faults."""

UNARY_TIMEOUT_S = 30.0
"""The default deadline of a call."""

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
"""Channel arguments of both client and server."""

_CLIENT_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # also the time limit of an attempt to connect; gRPC's default is 20 s
    ("grpc.enable_http_proxy", 0),  # worker nodes set http_proxy to a web cache that cannot carry gRPC
)
_SERVICE = {
    # each process tries the addresses in a random order, which spreads the clients over the servers
    "loadBalancingConfig": [{"pick_first": {"shuffleAddressList": True}}],
    "methodConfig": [
        {
            "name": [{}],
            "retryPolicy": {
                "maxAttempts": 4,  # about 1.3 s in all: command lines fail fast, and services retry anyway
                "initialBackoff": "0.1s",
                "maxBackoff": "1s",
                "backoffMultiplier": 3,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        },
        # Streams of responses are not retried by gRPC: its retry of a stream that breaks before its first message
        # may never come (seen with 1.85). The reader of a stream retries.
        {
            "name": [
                {"service": "pilotage.v1.JobService", "method": "WatchEvents"},
                {"service": "pilotage.v1.JobService", "method": "DownloadFile"},
                {"service": "pilotage.v1.JobService", "method": "FollowOutput"},
            ]
        },
    ],
}
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[^\s:/\[\],]+):(?P<port>\d{1,5})")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The addresses of the servers, and the credentials.

    `addresses` ("host:port", never empty) are tried one after the other in random order, and again when the one in use
    fails; with TLS every server's certificate has the name of the first. `token` may be a function if it is renewed
    while the process lives. `prove` returns the proof of a call of a method, for a
    token that needs one. `root_ca` = the trusted authorities (PEM), None = the system's. `tls` None = if `root_ca` is
    given or an address is not loopback.
    """

    addresses: tuple[str, ...]
    token: str | Callable[[], str] = field(default="", repr=False)
    prove: Callable[[str], str] | None = field(default=None, repr=False, kw_only=True)
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
        if self.tls is not None or self.root_ca is not None:
            return self.tls is not False
        return not all(is_loopback(split_address(address)[0]) for address in self.addresses)


def split_address(address: str) -> tuple[str, int]:
    """Return host (IPv6 without brackets) and port; raises InvalidInputError for an invalid address."""
    found = _ADDRESS.fullmatch(address)
    if found is None or int(found["port"]) > 65535:
        raise InvalidInputError(Violation("server", f'"{address}" is not an address such as host:4711'))
    return found["host"].strip("[]"), int(found["port"])


def is_loopback(host: str) -> bool:
    """Return whether `host` names only this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


_SYSTEM_AUTHORITIES = (
    "/etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch
    "/etc/pki/tls/certs/ca-bundle.crt",  # Enterprise Linux, Fedora
    "/etc/ssl/ca-bundle.pem",  # SUSE
    "/etc/ssl/cert.pem",  # macOS, Alpine
)


def system_authorities() -> bytes | None:
    """Return the authorities that this machine trusts (PEM); None = those that gRPC brings along.

    gRPC alone would not see what an institute has added to its machines. SSL_CERT_FILE names another file.
    """
    for name in (os.environ.get("SSL_CERT_FILE"), *_SYSTEM_AUTHORITIES):
        if name:
            with suppress(OSError):
                return Path(name).read_bytes()
    return None


def _credentials(endpoint: Endpoint) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials(endpoint.root_ca or system_authorities())


def open_channel(endpoint: Endpoint, *, timeout_s: float = UNARY_TIMEOUT_S) -> grpc.Channel:
    """Return a channel for threads; `timeout_s` is the default deadline of calls."""
    target, options = _target(endpoint)
    if endpoint.is_encrypted:
        channel = grpc.secure_channel(target, _credentials(endpoint), options)
    else:
        channel = grpc.insecure_channel(target, options)
    return grpc.intercept_channel(channel, SyncCaller(endpoint, timeout_s))


def open_async_channel(endpoint: Endpoint, *, timeout_s: float = UNARY_TIMEOUT_S) -> grpc.aio.Channel:
    """Return a channel for the running event loop; `timeout_s` is the default deadline of calls."""
    target, options = _target(endpoint)
    kinds = (AsyncUnaryCaller, AsyncUploadCaller, AsyncStreamCaller)
    interceptors = [kind(endpoint, timeout_s) for kind in kinds]
    if not endpoint.is_encrypted:
        return grpc.aio.insecure_channel(target, options, interceptors=interceptors)
    return grpc.aio.secure_channel(target, _credentials(endpoint), options, interceptors=interceptors)


def _target(endpoint: Endpoint) -> tuple[str, list[tuple[str, Any]]]:
    options: list[tuple[str, Any]] = [*SHARED_OPTIONS, *_CLIENT_OPTIONS]
    options.append(("grpc.service_config", json.dumps(_SERVICE)))
    if len(endpoint.addresses) == 1:
        return endpoint.addresses[0], options
    options.append(("grpc.default_authority", split_address(endpoint.addresses[0])[0]))
    return _numeric_target(endpoint.addresses), options


def _numeric_target(addresses: tuple[str, ...]) -> str:
    """Return one target for several addresses; gRPC requires numeric addresses of one family."""
    found: dict[tuple[str, int], None] = {}
    for address in addresses:
        host, port = split_address(address)
        try:
            resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            continue  # one unknown name must not prevent the use of the others
        found |= {(str(sockaddr[0]), port): None for _, _, _, _, sockaddr in resolved}
    if not found:
        raise ServerUnreachableError(f"none of {', '.join(addresses)} is known to the name service")
    if not any(":" in number for number, _ in found):
        return f"ipv4:{','.join(f'{number}:{port}' for number, port in found)}"
    # An IPv4-mapped IPv6 address (RFC 4291, 2.5.5.2) is still reached over IPv4.
    parts = (f"[{number if ':' in number else f'::ffff:{number}'}]:{port}" for number, port in found)
    return f"ipv6:{','.join(parts)}"
