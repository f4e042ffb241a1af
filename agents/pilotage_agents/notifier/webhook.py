"""Sends a notification to a URL, which a user has chosen: an HTTP POST that cannot reach what only the operator may.

Rules
-----
- The notifier is in the operator's network. So requests go to public addresses only, and not to denied networks, except
  to allowed hosts. The address that was checked is the one that is connected to: a name that resolves differently
  later gains nothing.
- Only HTTPS, except to allowed hosts. Redirects are not followed.
- One deadline covers everything from the resolution of the name to the status of the answer, of which little is read.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Collection, Iterable
from concurrent.futures import Executor
from dataclasses import dataclass
from urllib.parse import SplitResult, urlsplit

from pilotage.notifications import url_fault
from pilotage_agents.notifier.errors import DeliveryError

MAX_LINE_BYTES = 8 * 1024
MAX_LINES = 100
"""Bounds of the answer's head; its body is not read."""

_RETRIED = frozenset({408, 425, 429})
_NAT64 = tuple(map(ipaddress.ip_network, ("64:ff9b::/96", "64:ff9b:1::/48")))

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class WebhookClient:
    """Sends requests. `allowed_hosts` are folded names, with or without a port; `resolver` runs slow resolutions."""

    allowed_hosts: Collection[str]
    denied_networks: Collection[Network]
    timeout_s: float
    tls: ssl.SSLContext
    resolver: Executor

    async def post(self, url: str, body: bytes, headers: dict[str, str]) -> None:
        """Send the body; raises DeliveryError unless the answer has a status of success."""
        if fault := url_fault(url):
            raise DeliveryError(fault, is_permanent=True)
        parts = urlsplit(url)
        try:
            async with asyncio.timeout(self.timeout_s):
                status = await self._exchange(parts, _request(parts, body, headers))
        except TimeoutError:
            raise DeliveryError(f"no answer within {self.timeout_s:g} s") from None
        except (OSError, ValueError, EOFError) as error:  # ssl.SSLError is an OSError
            raise DeliveryError(f"the request failed: {str(error) or type(error).__name__}") from error
        if not 200 <= status < 300:
            is_permanent = 300 <= status < 500 and status not in _RETRIED
            hint = "; redirects are not followed" if 300 <= status < 400 else ""
            raise DeliveryError(f"the answer has status {status}{hint}", is_permanent=is_permanent)

    async def _exchange(self, parts: SplitResult, request: bytes) -> int:
        """Send the request to the first address that takes it, and return the status of the answer."""
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        is_allowed = host in self.allowed_hosts or f"{host}:{port}" in self.allowed_hosts
        if parts.scheme != "https" and not is_allowed:
            raise DeliveryError("the host is not in the notifier's allowed_hosts, which http needs; use https")
        addresses = await self._resolve(host, port)
        reached = addresses if is_allowed else [each for each in addresses if is_public(each, self.denied_networks)]
        if not reached:
            raise DeliveryError("the host has a private or denied address, and is not in the notifier's allowed_hosts")
        failure = OSError("the host has no address")
        for address in reached:
            try:
                return await self._send(address, port, host if parts.scheme == "https" else None, request)
            except OSError as error:
                failure = error
        raise failure

    async def _resolve(self, host: str, port: int) -> list[Address]:
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self.resolver, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        )
        texts = dict.fromkeys(str(address[0]).partition("%")[0] for *_, address in found)
        return [ipaddress.ip_address(text) for text in texts]

    async def _send(self, address: Address, port: int, tls_name: str | None, request: bytes) -> int:
        tls = None if tls_name is None else self.tls
        reader, writer = await asyncio.open_connection(
            str(address), port, limit=MAX_LINE_BYTES, ssl=tls, server_hostname=tls_name
        )
        try:
            writer.write(request)
            await writer.drain()
            return await _final_status(reader)
        finally:
            writer.transport.abort()  # the rest of the answer is not wanted, and the peer may never close


def is_public(address: Address, denied: Iterable[Network] = ()) -> bool:
    """Whether an address lies outside of denied, private, local and special networks, also if it embeds another one."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return is_public(address.ipv4_mapped, denied)
        if address.sixtofour is not None or address.teredo is not None or any(address in each for each in _NAT64):
            return False
        if address.is_site_local:
            return False
    if any(address in each for each in denied):
        return False
    return address.is_global and not address.is_multicast and not address.is_reserved


def _request(parts: SplitResult, body: bytes, headers: dict[str, str]) -> bytes:
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    fields = {
        "Host": parts.netloc,
        "User-Agent": "Pilotage",
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Connection": "close",
        **headers,
    }
    head = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(head).encode("ascii") + body


async def _final_status(reader: asyncio.StreamReader) -> int:
    """Return the status of the answer, after those that are only informational (1xx)."""
    is_first, lines = True, 0
    while lines < MAX_LINES:
        line = await reader.readline()
        lines += 1
        if is_first:
            status = _status_of(line)
            if status >= 200:
                return status
        is_first = line in (b"\r\n", b"\n")
    raise ValueError("the answer has too many lines")


def _status_of(line: bytes) -> int:
    protocol, _, rest = line.partition(b" ")
    code = rest[:3]
    if not protocol.startswith(b"HTTP/1.") or len(code) != 3 or not code.isdigit():
        raise ValueError("the answer is not HTTP")
    return int(code)
