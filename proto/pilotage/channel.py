"""Channels to the server, for every process that calls it: where it is, and how the line to it is kept.

Stubs are used as generated; a failed call raises a PilotageError. Calls are repeated when no server answered,
so every mutating request needs its request id, and when a server refused them unread because it is overloaded.
How each call is made is in `callers`.
"""

from __future__ import annotations

import ipaddress
import json
import re
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

import grpc
import grpc.aio

from pilotage.callers import AsyncStreamCaller, AsyncUnaryCaller, AsyncUploadCaller, Caller
from pilotage.errors import InvalidInputError, ServerUnreachableError, Violation

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""No message on the wire is larger, in either direction."""

MAX_METADATA_BYTES = 1024 * 1024
"""Room for a status that lists hundreds of faults."""

UNARY_TIMEOUT_S = 30.0
"""The deadline of a call that gives none."""

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
_SERVICE = {
    # each process tries several addresses in an order of its own, so that the servers share the callers
    "loadBalancingConfig": [{"pick_first": {"shuffleAddressList": True}}],
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
    ],
}
_ADDRESS = re.compile(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[^\s:/\[\],]+):(?P<port>\d{1,5})")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where the servers are and how to be let in.

    `addresses` ("host:port", never empty) are tried one after the other, in an order by chance, and again when the
    one in use is gone; with TLS every server's certificate has the name of the first. `token` may be a function where
    it is renewed while the process lives. `tls` None = for all addresses but loopback; `root_ca` (PEM) None = the
    system's.
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
    return grpc.intercept_channel(channel, Caller(endpoint.token, timeout_s))


def open_async_channel(endpoint: Endpoint, *, timeout_s: float = UNARY_TIMEOUT_S) -> grpc.aio.Channel:
    """Return a channel for the running event loop; `timeout_s` is the deadline of calls that give none."""
    target, options = _target(endpoint)
    kinds = (AsyncUnaryCaller, AsyncUploadCaller, AsyncStreamCaller)
    interceptors = [kind(endpoint.token, timeout_s) for kind in kinds]
    if not endpoint.is_encrypted:
        return grpc.aio.insecure_channel(target, options, interceptors=interceptors)
    credentials = grpc.ssl_channel_credentials(endpoint.root_ca)
    return grpc.aio.secure_channel(target, credentials, options, interceptors=interceptors)


def _target(endpoint: Endpoint) -> tuple[str, list[tuple[str, Any]]]:
    options: list[tuple[str, Any]] = [*SHARED_OPTIONS, *_CLIENT_OPTIONS]
    options.append(("grpc.service_config", json.dumps(_SERVICE)))
    if len(endpoint.addresses) == 1:
        return endpoint.addresses[0], options
    options.append(("grpc.default_authority", split_address(endpoint.addresses[0])[0]))
    return _numeric_target(endpoint.addresses), options


def _numeric_target(addresses: tuple[str, ...]) -> str:
    """Return one target for several addresses; gRPC takes a list in numbers of one family only."""
    found: dict[tuple[str, int], None] = {}
    for address in addresses:
        host, port = split_address(address)
        try:
            resolved = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError:
            continue  # one name that is not known today must not keep the others from being tried
        found |= {(str(place[0]), port): None for _, _, _, _, place in resolved}
    if not found:
        raise ServerUnreachableError(f"none of {', '.join(addresses)} is known to the name service")
    if not any(":" in number for number, _ in found):
        return f"ipv4:{','.join(f'{number}:{port}' for number, port in found)}"
    # An IPv4 address has a form in IPv6 too (RFC 4291, 2.5.5.2), and is reached over IPv4 all the same.
    places = (f"[{number if ':' in number else f'::ffff:{number}'}]:{port}" for number, port in found)
    return f"ipv6:{','.join(places)}"
